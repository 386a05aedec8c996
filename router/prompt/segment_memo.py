"""What a text's segments were encoded to before: exact, bounded, shared by all prompts of a router.

A chat's prompt is mostly the prompt before it and one more turn. Cut at special tokens, all
but the new turn was encoded earlier; see `segment_encoder` for why the cut is exact. Looking
up the segments of an 8k-token chat takes some 30 us, encoding it 15 ms.

The memo is two generations of dicts: what is used moves to the younger one, and when that has
grown to half the ceiling the older one is dropped. So it holds what was used lately, without
bookkeeping at each look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_ENTRY_BYTES: Final = 250  # of two objects and their place in a dict
_BEGINNINGS: Final = "beginnings of "  # goes before a tokenizer's key
_NOTHING: Final[dict[str, bytes]] = {"": b""}  # no text has no tokens
_KEPT_SHARE: Final = 16  # a segment above 1/16 of the ceiling is not kept


class SplitPlan(NamedTuple):
    """Special tokens at which text can be cut, and their ids; both empty where it cannot."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]


class Splitter:
    """Cuts texts of one tokenizer. known: packed little-endian u32 ids of the special tokens."""

    def __init__(self, plan: SplitPlan) -> None:
        self.known = {
            token: number.to_bytes(4, "little") for token, number in zip(plan.tokens, plan.ids, strict=True)
        }
        self._pattern = _pattern_of(plan.tokens)

    def segments(self, text: str) -> list[str]:
        """Texts and special tokens in turn, beginning and ending with a text, which may be empty."""
        return self._pattern.split(text) if self._pattern is not None else [text]


def _pattern_of(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """Matches the longest token at the leftmost place.

    What all tokens begin with goes before the choice: the engine then jumps from one candidate
    to the next instead of trying every character.
    """
    if not tokens:
        return None
    start = _common_start(min(tokens), max(tokens))
    rests = sorted((token[len(start) :] for token in tokens), key=len, reverse=True)
    return re.compile(f"({re.escape(start)}(?:{'|'.join(map(re.escape, rests))}))")


def _common_start(one: str, other: str) -> str:
    """What both begin with; of the least and the greatest text it is what all begin with."""
    size = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:size]


class SegmentMemo:
    """Encoded segments by tokenizer and text. bytes_max: of all, by estimate."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._young: dict[str, dict[str, bytes]] = {}
        self._old: dict[str, dict[str, bytes]] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def size(self) -> int:
        """Bytes kept, by estimate."""
        return self._young_bytes + self._old_bytes

    def find(self, tokenizer: str, segments: Sequence[str], known: dict[str, bytes]) -> list[bytes | None]:
        """Packed ids of each segment, None where it has to be encoded.

        segments: texts and special tokens in turn. known: ids of the tokens. The first text is
        looked for as a beginning, the others as what follows a special token.
        """
        found: list[bytes | None] = [None] * len(segments)
        found[1::2] = map(known.__getitem__, segments[1::2])
        found[::2] = self._looked_up(tokenizer, segments[::2])
        found[:1] = self._looked_up(_BEGINNINGS + tokenizer, segments[:1])
        return found

    def _looked_up(self, table: str, texts: Sequence[str]) -> list[bytes | None]:
        found = [*map(self._young.get(table, _NOTHING).get, texts)]
        if None in found:
            old = self._old.get(table, _NOTHING)
            for place, text in enumerate(texts):
                if found[place] is None and (ids := old.get(text)) is not None:
                    found[place] = ids
                    self._put(table, text, ids)
        return found

    def keep(self, tokenizer: str, is_first: bool, text: str, ids: bytes) -> None:
        """Remember what a segment was encoded to."""
        if _bytes_of(text, ids) * _KEPT_SHARE <= self._bytes_max:
            self._put(_BEGINNINGS + tokenizer if is_first else tokenizer, text, ids)

    def forget(self, tokenizer: str) -> None:
        """Drop all of one tokenizer."""
        for table in (tokenizer, _BEGINNINGS + tokenizer):
            self._young_bytes -= _bytes_of_table(self._young.pop(table, {}))
            self._old_bytes -= _bytes_of_table(self._old.pop(table, {}))

    def _put(self, table: str, text: str, ids: bytes) -> None:
        size = _bytes_of(text, ids)
        if self._young_bytes + size > self._bytes_max // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        entries = self._young.setdefault(table, {"": b""})
        if text not in entries:
            entries[text] = ids
            self._young_bytes += size


def _bytes_of(text: str, ids: bytes) -> int:
    return len(text) * (1 if text.isascii() else 4) + len(ids) + _ENTRY_BYTES


def _bytes_of_table(entries: dict[str, bytes]) -> int:
    return sum(_bytes_of(text, ids) for text, ids in entries.items() if text)
