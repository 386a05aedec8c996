"""Tokens of texts: what was encoded before comes from memory, the rest from an encode process.

Encoding runs in a process that can be killed, not in a thread. The tokenizer is pinned, and so
reviewed, but the text is a client's: a regular expression that is quadratic in blanks, or a
model that is in the length of a word, holds a thread for minutes, and a thread cannot be
stopped. A panic of the library ends a process too, and must not be ours. The price was
measured by `bench/prompt.py`: some 0.1 ms on top of an encode that takes one or more.

So that this price is paid for new text only, the memo is on this side: an 8k-token chat whose
turns are known is split, looked up and joined in some 50 us. A text in more pieces than any
chat has is encoded whole, since pieces are looked up on the event loop. A tokenizer is loaded in the
background, in up to as many processes as are busy with it; until the first has it, there are
no tokens. Files that make no tokenizer are not tried again for five minutes; where only the
process ended or was late, the first wait is a second, and each further one four times as long.

Sources: requirement rows RND-06..08, ART-13; performance design, section 5.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from typing import Final

import orjson

from projections.bounds import (
    ARTIFACT_RETRY_US,
    ARTIFACT_SETS_MAX,
    PROMPT_SEGMENTS_MAX,
    PROMPT_TOKENS_MAX,
    SECOND_US,
)
from router.prompt.render_pool import JobFailed, Load, RenderPool, TextTooLarge, Unavailable
from router.prompt.render_wire import Kind
from router.prompt.segment_memo import SegmentMemo, SplitPlan, Splitter

LOAD_S_MAX: Final = 30.0
RETRY_S: Final = ARTIFACT_RETRY_US / SECOND_US  # of files that make no tokenizer
REST_S: Final = 1.0  # after a load whose process ended, four times as long after each further one
LOAD_WAIT_S: Final = 1.0  # a prompt waits this long for a tokenizer that is being loaded
TOKEN_BYTES: Final = 4


class TokenizerUnavailable(Exception):
    """There is no tokenizer (yet); the text says why."""


class TooManyTokens(Exception):
    """More tokens than a prompt may have."""


class _Tokenizer:
    """One tokenizer's state here. splitter: None until it was loaded once.

    rests_until: when it may be loaded again, on the loop's clock. ended: loads in a row that
    were not answered.
    """

    __slots__ = ("ended", "loading", "rests_until", "splitter", "why")

    def __init__(self) -> None:
        self.splitter: Splitter | None = None
        self.loading: asyncio.Task[None] | None = None
        self.rests_until = 0.0
        self.ended = 0
        self.why = "it is being loaded"


class TokenizerPool:
    """Encodes with any of the latest ARTIFACT_SETS_MAX tokenizers. All calls are made on one loop."""

    def __init__(self, processes: RenderPool, memo: SegmentMemo) -> None:
        self._processes = processes
        self._memo = memo
        self._tokenizers: OrderedDict[str, _Tokenizer] = OrderedDict()

    async def tokens_of(self, key: str, data: bytes, text: bytes, deadline: float) -> bytes:
        """Packed little-endian u32 tokens of a UTF-8 text, no special token added.

        key: of the tokenizer whose file is `data`. deadline: a time of the loop's clock.
        Raises TokenizerUnavailable, TooManyTokens, and Unavailable or JobFailed of the process.
        """
        tokenizer = self._known(key)
        splitter = tokenizer.splitter or await self._loaded(key, data, tokenizer, deadline)
        segments = splitter.segments(text)
        if len(segments) > PROMPT_SEGMENTS_MAX:
            if len(segments) // 2 > PROMPT_TOKENS_MAX:  # by its special tokens alone
                raise TooManyTokens
            segments = [text]
        found = self._memo.find(key, segments, splitter.known)
        if None in found:
            await self._fill(key, data, tokenizer, segments, found, deadline)
        tokens = b"".join(found)  # type: ignore[arg-type]
        if len(tokens) > TOKEN_BYTES * PROMPT_TOKENS_MAX:
            raise TooManyTokens
        return tokens

    async def close(self) -> None:
        """End loads."""
        loading = [one.loading for one in self._tokenizers.values() if one.loading is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    # loading

    def _known(self, key: str) -> _Tokenizer:
        tokenizer = self._tokenizers.get(key)
        if tokenizer is None:
            tokenizer = self._tokenizers[key] = _Tokenizer()
        self._tokenizers.move_to_end(key)
        if len(self._tokenizers) > ARTIFACT_SETS_MAX:
            oldest, dropped = self._tokenizers.popitem(last=False)
            self._memo.forget(oldest)
            if dropped.loading is not None:
                dropped.loading.cancel()
        return tokenizer

    async def _loaded(self, key: str, data: bytes, tokenizer: _Tokenizer, deadline: float) -> Splitter:
        """How its text is split, once it was loaded. Raises TokenizerUnavailable."""
        await self._wait_for_load(key, data, tokenizer, deadline)
        if tokenizer.splitter is None:
            raise TokenizerUnavailable(tokenizer.why)
        return tokenizer.splitter

    async def _wait_for_load(self, key: str, data: bytes, tokenizer: _Tokenizer, deadline: float) -> None:
        self._load(key, data, tokenizer)
        if tokenizer.loading is not None:
            left = min(LOAD_WAIT_S, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([tokenizer.loading], timeout=max(0.0, left))

    def _load(self, key: str, data: bytes, tokenizer: _Tokenizer) -> None:
        """Load into one more process, unless that is under way or failed not long ago."""
        if tokenizer.loading is None and asyncio.get_running_loop().time() >= tokenizer.rests_until:
            task = asyncio.get_running_loop().create_task(self._bring(key, data, tokenizer))
            tokenizer.loading = task
            tokenizer.why = "it is being loaded"

    async def _bring(self, key: str, data: bytes, tokenizer: _Tokenizer) -> None:
        deadline = asyncio.get_running_loop().time() + LOAD_S_MAX
        try:
            frame = await self._processes.load(Load(key, Kind.TOKENIZER, key.encode(), (data,)), deadline)
            if tokenizer.splitter is None:
                tokens, ids = json.loads(frame.body)
                tokenizer.splitter = Splitter(SplitPlan(tuple(tokens), tuple(ids)))
            tokenizer.ended = 0
        except (JobFailed, Unavailable, ValueError, TypeError, OverflowError) as problem:
            rest = RETRY_S
            if isinstance(problem, Unavailable):  # which tells nothing of the file
                rest = min(RETRY_S, REST_S * 4.0**tokenizer.ended)
                tokenizer.ended = min(tokenizer.ended + 1, 8)
            tokenizer.rests_until = asyncio.get_running_loop().time() + rest
            tokenizer.why = f"it cannot be loaded: {problem}"
        finally:
            tokenizer.loading = None

    # encoding

    async def _fill(
        self,
        key: str,
        data: bytes,
        tokenizer: _Tokenizer,
        segments: list[bytes],
        found: list[bytes | None],
        deadline: float,
    ) -> None:
        """Encode the segments that were not found."""
        places = [place for place, ids in enumerate(found) if ids is None]
        wanted = list(dict.fromkeys((place == 0, segments[place]) for place in places))
        body = orjson.dumps([(is_first, text.decode("utf-8", "replace")) for is_first, text in wanted])
        if not self._processes.holders(key):
            await self._wait_for_load(key, data, tokenizer, deadline)
        elif self._processes.wants_more(key):
            self._load(key, data, tokenizer)
        try:
            frame = await self._processes.run_held(key, Kind.ENCODE, key.encode(), (body,), deadline)
        except TextTooLarge:
            raise TooManyTokens from None
        if frame is None:
            self._load(key, data, tokenizer)
            raise TokenizerUnavailable(tokenizer.why)
        counts = memoryview(frame.head).cast("I").tolist()
        if len(counts) != len(wanted) or TOKEN_BYTES * sum(counts) != len(frame.body):
            raise JobFailed("an answer of another size")
        at, encoded = 0, {}
        for (is_first, text), count in zip(wanted, counts, strict=True):
            ids = frame.body[at : at + TOKEN_BYTES * count]
            at += TOKEN_BYTES * count
            encoded[is_first, text] = ids
            self._memo.keep(key, is_first, text, ids)
        for place in places:
            found[place] = encoded[place == 0, segments[place]]
