"""One render process as its router sees it: answers, deadlines, and processes that misbehave."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from projections.bounds import GIB, MIB, RENDER_FRAME_BYTES_MAX
from router.prompt.render_process import ProcessDied, RenderProcess, start_process
from router.prompt.render_wire import Kind, prefix_of
from tests.router.prompt.prompts_of import TOKENIZER, is_running, until


class Owner:
    """What a pool hears of a process."""

    def __init__(self) -> None:
        self.freed = 0
        self.gone = 0

    def on_free(self, process: RenderProcess) -> None:
        self.freed += 1

    def on_gone(self, process: RenderProcess) -> None:
        self.gone += 1


@asynccontextmanager
async def running() -> AsyncIterator[tuple[RenderProcess, Owner]]:
    owner = Owner()
    process, wire = await asyncio.to_thread(start_process, GIB)
    under_test = RenderProcess(process, wire, owner.on_free, owner.on_gone)
    try:
        yield under_test, owner
    finally:
        under_test.end("the test ends")
        await under_test.ended()
    assert owner.gone == 1 and not is_running(under_test.pid)


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


@asynccontextmanager
async def scripted(answer: Callable[[bytes], bytes]) -> AsyncIterator[tuple[RenderProcess, socket.socket]]:
    """A process whose answers the test writes itself, to what it reads."""
    owner = Owner()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    child = await asyncio.to_thread(_sleeper)
    under_test = RenderProcess(child, ours, owner.on_free, owner.on_gone)
    loop = asyncio.get_running_loop()
    loop.add_reader(theirs, lambda: theirs.send(answer(theirs.recv(1 << 20))))
    try:
        yield under_test, theirs
    finally:
        loop.remove_reader(theirs)
        under_test.end("the test ends")
        await under_test.ended()
        theirs.close()
        assert child.stdin is not None
        child.stdin.close()


async def test_a_job_is_answered_and_the_process_is_free_again() -> None:
    async with running() as (process, owner):
        answer = process.ask(Kind.TOKENIZER, b"k", (TOKENIZER,), 20.0)
        assert process.is_busy
        assert (await answer).kind is Kind.DONE
        assert not process.is_busy and owner.freed == 1
        encoded = await process.ask(Kind.ENCODE, b"k", (b'[[true,"a"]]',), 20.0)
        assert encoded.kind is Kind.DONE and len(encoded.body) == 4


async def test_a_large_file_goes_in_pieces() -> None:
    async with running() as (process, _):
        answer = await process.ask(Kind.TOKENIZER, b"k", (b" " * (24 * MIB),), 20.0)
        assert answer.kind is Kind.FAILED


async def test_a_job_past_its_deadline_ends_the_process() -> None:
    async with running() as (process, owner):
        with pytest.raises(ProcessDied, match="out of time"):
            await process.ask(Kind.TOKENIZER, b"k", (TOKENIZER,), 0.0)
        assert not process.is_alive and owner.gone == 1
        await process.ended()
        assert not is_running(process.pid)


async def test_a_process_that_is_killed_fails_its_job() -> None:
    async with running() as (process, _):
        answer = process.ask(Kind.TOKENIZER, b"k", (TOKENIZER,), 20.0)
        process._process.kill()
        with pytest.raises(ProcessDied, match=r"ended|closed"):
            await answer


async def test_a_caller_that_goes_away_leaves_the_job_to_end() -> None:
    async with running() as (process, owner):
        answer = process.ask(Kind.TOKENIZER, b"k", (TOKENIZER,), 20.0)
        answer.cancel()
        await until(lambda: owner.freed == 1)
        assert process.is_alive and not process.is_busy


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((RENDER_FRAME_BYTES_MAX + 1).to_bytes(4, "little") + b"x" * 100, "another size"),
        (b"\x00\x00\x00\x00", "another size"),
        (prefix_of(Kind.DONE, b"", 0) * 2, "more than one"),
        (b"\x05\x00\x00\x00\x63\x00\x00\x00\x00", "no kind"),
        (b"\x05\x00\x00\x00\x10\xff\x00\x00\x00", "head"),
    ],
)
async def test_an_answer_that_is_none_ends_the_process(answer: bytes, why: str) -> None:
    async with scripted(lambda asked: answer) as (process, _):
        with pytest.raises(ProcessDied, match=why):
            await process.ask(Kind.ENCODE, b"k", (b"[]",), 5.0)


async def test_an_answer_byte_by_byte_is_one_answer() -> None:
    async with scripted(lambda asked: b"") as (process, theirs):
        answer = process.ask(Kind.ENCODE, b"k", (b"[]",), 5.0)
        for byte in prefix_of(Kind.DONE, b"head", 4) + b"body":
            theirs.send(bytes([byte]))
            await asyncio.sleep(0)
        frame = await answer
        assert (frame.head, frame.body) == (b"head", b"body")


async def test_a_process_that_speaks_unasked_is_ended() -> None:
    async with scripted(lambda asked: b"") as (process, theirs):
        theirs.send(b"hello")
        await until(lambda: not process.is_alive)
        with pytest.raises(ProcessDied, match="had ended"):
            await process.ask(Kind.ENCODE, b"k", (b"[]",), 5.0)


async def test_a_process_that_does_not_read_is_ended_in_time() -> None:
    async with scripted(lambda asked: b"") as (process, theirs):
        asyncio.get_running_loop().remove_reader(theirs)
        with pytest.raises(ProcessDied, match="out of time"):
            await process.ask(Kind.TOKENIZER, b"k", (b"x" * (16 * MIB),), 0.2)
