"""What a text's segments were encoded to before: exact, bounded, shared by all prompts of a router.

A chat's prompt is mostly the prompt before it and one more turn. Cut at special tokens, all
but the new turn was encoded earlier; see `segment_encoder` for why the cut is exact. Looking
up the segments of an 8k-token chat takes some 30 us, encoding it 15 ms.

Texts are UTF-8, and a segment is looked up by its xxh3-64, which is a third of the work of a
dict's own hash; what is found counts only if the text is the same.

The memo is two generations of dicts: what is used moves to the younger one, and when that has
grown to half the ceiling the older one is dropped. So it holds what was used lately, without
bookkeeping at each look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

_ENTRY_BYTES: Final = 300  # of four objects and their place in a dict
_BEGINNINGS: Final = "beginnings of "  # goes before a tokenizer's key
_name_of: Final = xxhash.xxh3_64_digest
_Table = dict[bytes, tuple[bytes, bytes]]  # xxh3-64 of a text -> the text, its ids
_NOTHING: Final[_Table] = {_name_of(b""): (b"", b"")}  # no text has no tokens
_KEPT_SHARE: Final = 16  # a segment above 1/16 of the ceiling is not kept


class SplitPlan(NamedTuple):
    """Special tokens at which text can be cut, and their ids; both empty where it cannot."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]


class Splitter:
    """Cuts texts of one tokenizer. known: packed little-endian u32 ids of the special tokens."""

    def __init__(self, plan: SplitPlan) -> None:
        self.known = {
            token.encode(): number.to_bytes(4, "little")
            for token, number in zip(plan.tokens, plan.ids, strict=True)
        }
        self._pattern = _pattern_of(list(self.known))

    def segments(self, text: bytes) -> list[bytes]:
        """Texts and special tokens in turn, beginning and ending with a text, which may be empty."""
        return self._pattern.split(text) if self._pattern is not None else [text]


def _pattern_of(tokens: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """Matches the longest token at the leftmost place.

    What all tokens begin with goes before the choice: the engine then jumps from one candidate
    to the next instead of trying every character.
    """
    if not tokens:
        return None
    start = _common_start(min(tokens), max(tokens))
    rests = sorted((token[len(start) :] for token in tokens), key=len, reverse=True)
    return re.compile(b"(%b(?:%b))" % (re.escape(start), b"|".join(map(re.escape, rests))))


def _common_start(one: bytes, other: bytes) -> bytes:
    """What both begin with; of the least and the greatest token it is what all begin with."""
    size = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:size]


class SegmentMemo:
    """Encoded segments by tokenizer and text. bytes_max: of all, by estimate."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._young: dict[str, _Table] = {}
        self._old: dict[str, _Table] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def size(self) -> int:
        """Bytes kept, by estimate."""
        return self._young_bytes + self._old_bytes

    def find(
        self, tokenizer: str, segments: Sequence[bytes], known: dict[bytes, bytes]
    ) -> list[bytes | None]:
        """Packed ids of each segment, None where it has to be encoded.

        segments: texts and special tokens in turn. known: ids of the tokens. The first text is
        looked for as a beginning, the others as what follows a special token.
        """
        found: list[bytes | None] = [None] * len(segments)
        found[1::2] = map(known.__getitem__, segments[1::2])
        found[::2] = self._looked_up(tokenizer, segments[::2])
        found[:1] = self._looked_up(_BEGINNINGS + tokenizer, segments[:1])
        return found

    def _looked_up(self, table: str, texts: Sequence[bytes]) -> list[bytes | None]:
        kept = map(self._young.get(table, _NOTHING).get, map(_name_of, texts))
        found = [one[1] if one and one[0] == text else None for one, text in zip(kept, texts, strict=True)]
        if None in found:
            old = self._old.get(table, _NOTHING)
            for place, text in enumerate(texts):
                if found[place] is None and (one := old.get(_name_of(text))) and one[0] == text:
                    found[place] = one[1]
                    self._put(table, *one)
        return found

    def keep(self, tokenizer: str, is_first: bool, text: bytes, ids: bytes) -> None:
        """Remember what a segment was encoded to."""
        if _bytes_of(text, ids) * _KEPT_SHARE <= self._bytes_max:
            self._put(_BEGINNINGS + tokenizer if is_first else tokenizer, text, ids)

    def forget(self, tokenizer: str) -> None:
        """Drop all of one tokenizer."""
        for table in (tokenizer, _BEGINNINGS + tokenizer):
            self._young_bytes -= _bytes_of_table(self._young.pop(table, {}))
            self._old_bytes -= _bytes_of_table(self._old.pop(table, {}))

    def _put(self, table: str, text: bytes, ids: bytes) -> None:
        size = _bytes_of(text, ids)
        if self._young_bytes + size > self._bytes_max // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        entries = self._young.setdefault(table, {**_NOTHING})
        name = _name_of(text)
        before = entries.get(name)
        if before is not None:  # the same text, or another of this name, which goes
            self._young_bytes -= _bytes_of(*before)
        entries[name] = text, ids
        self._young_bytes += size


def _bytes_of(text: bytes, ids: bytes) -> int:
    return len(text) + len(ids) + _ENTRY_BYTES if text else 0


def _bytes_of_table(entries: _Table) -> int:
    return sum(_bytes_of(text, ids) for text, ids in entries.values())
