"""A tokenizer that encodes a text in segments. For the encode process only.

Text between special tokens is encoded on its own by every tokenizer of this library, so a
text can be cut there and each piece be remembered (see `segment_memo`). That holds for a token
which is matched before normalization and takes no blanks and no word beside it along: `plan`
names those, but for tokens that could overlap with one that is not of this kind. A tokenizer
whose added tokens may stand for whole words only, or whose merges are drawn by lot, has none
and is given whole texts.

A piece that stands behind a token differs from the same text at the front where the tokenizer
marks beginnings, so it is encoded with a token before it, whose id is dropped. What the
rules above leave open is tried: a plan that does not reproduce a plain encoding of a dozen
texts is not used.

Source: the algorithm of `tokenizers`: added tokens first, then normalizer, pre-tokenizer and
model on each piece.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from projections.bounds import SPECIAL_TOKENS_MAX
from router.prompt.segment_memo import SplitPlan, Splitter

BATCH_CHARACTERS: Final = 2_048  # encoded in half a millisecond, after which others have their turn
_PIECES: Final = (
    "user",
    " a",
    "b ",
    "\n",
    " \n\n x",
    "é☕ 今日",
    "don't  stop\t",
    "1234567",
    "<",
    "A b\r\nc ",
)


class TokenizerRefused(Exception):
    """The file is no tokenizer that we can use."""


class Encoded(NamedTuple):
    """counts: tokens of each segment. tokens: of all, packed little-endian u32."""

    counts: array[int]
    tokens: bytes


class SegmentEncoder:
    """One tokenizer. Raises TokenizerRefused for a file that makes none."""

    def __init__(self, data: bytes) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_buffer(data)
        except BaseException as problem:  # a panic of the library is no Exception
            raise TokenizerRefused(type(problem).__name__) from problem
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        plan = _plan_of(self._tokenizer)
        self._lead = plan.tokens[0] if plan.tokens else None
        self.plan = plan if self._reproduces(plan) else SplitPlan((), ())
        self._lead = self.plan.tokens[0] if self.plan.tokens else None

    def encode(self, segments: Sequence[tuple[bool, str]]) -> Encoded:
        """The tokens of segments. Each is (whether it is the text's first, its text)."""
        lead = self._lead
        texts = [text if first or lead is None else lead + text for first, text in segments]
        rows: list[list[int]] = []
        for batch in _batches(texts):
            rows += [one.ids for one in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
            os.sched_yield()  # an event loop that waits for this core goes first
        if lead is not None:
            rows = [row if first else row[1:] for row, (first, _) in zip(rows, segments, strict=True)]
        tokens = array("I")
        for row in rows:
            tokens.extend(row)
        return Encoded(array("I", map(len, rows)), tokens.tobytes())

    def _reproduces(self, plan: SplitPlan) -> bool:
        """Whether texts that are cut by the plan give what they give whole."""
        tokens = plan.tokens[:3] or ("",)
        splitter = Splitter(plan)
        for number, first in enumerate(_PIECES):
            pieces = _PIECES[number:] + _PIECES[:number]
            text = first + "".join(
                tokens[place % len(tokens)] + piece for place, piece in enumerate(pieces) if place % 4
            )
            segments = splitter.segments(text.encode())
            wanted = [(not place, one) for place, one in enumerate(segments) if one not in splitter.known]
            texts = [(is_first, one.decode()) for is_first, one in wanted if one]
            rows = iter(self._rows(self.encode(texts)))
            made = b"".join(splitter.known.get(one) or (next(rows) if one else b"") for one in segments)
            if made != self.encode([(True, text)]).tokens:
                return False
        return True

    @staticmethod
    def _rows(encoded: Encoded) -> list[bytes]:
        at, rows = 0, []
        for count in encoded.counts:
            rows.append(encoded.tokens[at : at + 4 * count])
            at += 4 * count
        return rows


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in turn, each batch as long as BATCH_CHARACTERS, or a text more."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _plan_of(tokenizer: Any) -> SplitPlan:
    """The special tokens at which a text can be cut, none where that is not sure."""
    none = SplitPlan((), ())
    if getattr(tokenizer.model, "dropout", None):
        return none
    added = tokenizer.get_added_tokens_decoder()
    raw = {number: token for number, token in added.items() if not token.normalized}
    plain = {
        token.content: number
        for number, token in raw.items()
        if token.content and not (token.lstrip or token.rstrip or token.single_word)
    }
    others = [token for token in raw.values() if token.content not in plain]
    if any(token.single_word for token in others) or len(raw) > SPECIAL_TOKENS_MAX:
        return none
    left_out = [token.content for token in others]
    if others:  # blanks that one of them takes along must not be part of a token that is cut at
        left_out += [text for text in plain if text != text.strip()]
    while left_out:
        other = left_out.pop()
        plain.pop(other, None)
        left_out += [text for text in plain if _can_meet(text, other)]
    return SplitPlan(tuple(plain), tuple(plain.values()))


def _can_meet(plain: str, other: str) -> bool:
    """Whether two tokens can overlap in a text."""
    if plain in other or other in plain:
        return True
    shorter = min(len(plain), len(other))
    return any(plain.endswith(other[:size]) or other.endswith(plain[:size]) for size in range(1, shorter))


def plan_json(plan: SplitPlan) -> bytes:
    """A plan as it goes to the router."""
    return json.dumps([plan.tokens, plan.ids]).encode()
