"""Tokens of texts: loaded in the background, remembered, and encoded where it can be killed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from projections.bounds import ARTIFACT_SETS_MAX, GIB, PROMPT_SEGMENTS_MAX, PROMPT_TOKENS_MAX
from router.prompt import tokenizer_pool
from router.prompt.render_pool import RenderPool
from router.prompt.segment_memo import SegmentMemo
from router.prompt.tokenizer_pool import TokenizerPool, TokenizerUnavailable, TooManyTokens
from tests.router.prompt.prompts_of import TOKENIZER
from tests.router.prompt.tokenizer_files import KINDS, plain_tokenizer, tokenizer_file

TURN = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"


class Rig:
    """A pool with its processes and its memo."""

    def __init__(self) -> None:
        self.processes = RenderPool(2, 4 * GIB)
        self.memo = SegmentMemo(1 << 22)
        self.pool = TokenizerPool(self.processes, self.memo)

    async def tokens(self, text: str, key: str = "k", data: bytes = TOKENIZER) -> list[int]:
        """The tokens, once the tokenizer is loaded."""
        async with asyncio.timeout(20):
            while True:
                try:
                    return array("I", await self.once(text, key, data)).tolist()
                except TokenizerUnavailable as problem:
                    if "being loaded" not in str(problem):
                        raise
                    await asyncio.sleep(0.01)

    async def once(self, text: str, key: str = "k", data: bytes = TOKENIZER) -> bytes:
        deadline = asyncio.get_running_loop().time() + 10
        return await self.pool.tokens_of(key, data, text.encode(), deadline)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    under_test = Rig()
    try:
        yield under_test
    finally:
        await under_test.pool.close()
        await under_test.processes.close()


async def test_tokens_are_those_of_a_plain_encoding_for_every_kind() -> None:
    text = "the quick <s> brown</s> fox<|im_start|>user\n  two [INST] and [/INST]two é☕ <mask> x"
    async with rig() as one:
        for kind in KINDS:
            wanted = plain_tokenizer(kind).encode(text, add_special_tokens=False).ids
            for _ in range(2):
                assert await one.tokens(text, kind, tokenizer_file(kind)) == wanted, kind


async def test_known_text_needs_no_process() -> None:
    async with rig() as one:
        first = await one.tokens(TURN * 3)
        await one.processes.close()
        assert await one.tokens(TURN * 5) == first[: len(first) // 3] * 5


async def test_new_text_alone_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as one:
        await one.tokens(TURN * 3)
        sent: list[bytes] = []
        run = one.processes.run_held

        async def spied(key, kind, head, body, deadline):  # type: ignore[no-untyped-def]
            sent.extend(body)
            return await run(key, kind, head, body, deadline)

        monkeypatch.setattr(one.processes, "run_held", spied)
        await one.tokens(TURN * 3 + "new text<|im_end|>\nnew text<|im_end|>")
        assert sent == [b'[[false,"assistant\\nnew text"],[false,"\\nnew text"]]']


async def test_a_file_that_is_no_tokenizer_is_not_tried_again_soon() -> None:
    async with rig() as one:
        for _ in range(3):
            with pytest.raises(TokenizerUnavailable, match="cannot be loaded"):
                await one.tokens("x", "bad", b"{}")
        deaths, pids = one.processes.deaths, one.processes.pids
        assert deaths == 0 and len(pids) == 1


async def test_a_load_that_was_not_answered_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as one:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(tokenizer_pool, "LOAD_S_MAX", -1.0)
        rests = []
        for _ in range(7):
            with pytest.raises(TokenizerUnavailable, match="cannot be loaded"):
                await one.once("x")
            rests.append(round(one.pool._known("k").rests_until - loop.time()))
            one.pool._known("k").rests_until = 0.0
        assert rests == [1, 4, 16, 64, 256, 300, 300]
        monkeypatch.undo()
        assert len(await one.tokens("x")) == 1
        assert one.pool._known("k").ended == 0


async def test_a_text_in_very_many_pieces_is_encoded_whole() -> None:
    text = "".join(f"<|im_end|>{number}" for number in range(PROMPT_SEGMENTS_MAX))
    async with rig() as one:
        wanted = plain_tokenizer("byte_level").encode(text, add_special_tokens=False).ids
        assert await one.tokens(text) == wanted
        assert await one.tokens(text) == wanted
        assert len(one.memo._young.get("k", {})) == 0


async def test_a_process_that_dies_is_loaded_again() -> None:
    async with rig() as one:
        wanted = await one.tokens("one text")
        for process in list(one.processes._processes):
            process.end("a test")
        assert await one.tokens("one text") == wanted
        assert len(await one.tokens("another text")) > 0


@pytest.mark.req("RND-06")
async def test_more_tokens_than_a_prompt_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as one:
        await one.tokens("x")
        monkeypatch.setattr(tokenizer_pool, "PROMPT_TOKENS_MAX", 1_000)  # the process has its own
        assert len(await one.tokens("\x00" * 1_000)) == 1_000
        with pytest.raises(TooManyTokens):
            await one.once("\x00" * 1_001)


@pytest.mark.req("RND-06")
async def test_more_special_tokens_than_a_prompt_may_have_are_refused_without_a_process() -> None:
    async with rig() as one:
        await one.tokens("x")
        await one.processes.close()
        with pytest.raises(TooManyTokens):
            await one.once("<|im_end|>" * (PROMPT_TOKENS_MAX + 1))


@pytest.mark.req("ART-13")
async def test_the_latest_tokenizers_are_remembered() -> None:
    async with rig() as one:
        await one.tokens(TURN, "first")
        for number in range(ARTIFACT_SETS_MAX):
            one.pool._known(str(number))
        assert one.memo.size == 0
        assert "first" not in one.pool._tokenizers
