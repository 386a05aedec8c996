"""One connection to a backend: what is known unsent, how much is held, what breaks it."""

from __future__ import annotations

import asyncio

import pytest

from router.dispatch.connection import BUFFER_HIGH_BYTES, FIRST_BYTE, UpstreamExpired, UpstreamLost
from router.dispatch.heads import Framing
from tests.router.backend_peer import REQUEST, SMALL, answering, read_all, serving


async def test_connection_serves_one_request_after_another() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    chunked = interim + b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    async with serving(answering(SMALL, chunked, SMALL)) as upstream:
        for framing in (Framing.LENGTH, Framing.CHUNKED, Framing.LENGTH):
            connection = upstream.take_idle() or await upstream.connect(5)
            connection.send(REQUEST, b"")
            head = await connection.head()
            assert (head.status, head.framing) == (200, framing)
            assert await connection.read() == b"ok"
            assert await connection.read() == b""
            assert connection.is_drained
            upstream.give_back(connection)
            assert upstream.idle == 1


async def test_request_that_the_peer_never_read_whole_is_known_unsent() -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(10)
        writer.transport.abort()

    async with serving(resets) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"x" * 50_000_000)
        with pytest.raises(UpstreamLost) as lost:
            await connection.head()
        assert lost.value.unsent


@pytest.mark.field("B-103")
async def test_request_that_was_handed_over_is_not_known_unsent() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with serving(closes) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        with pytest.raises(UpstreamLost) as lost:
            await connection.head()
        assert not lost.value.unsent


async def test_request_on_a_connection_that_is_closing_is_known_unsent() -> None:
    async with serving(answering(SMALL)) as upstream:
        connection = await upstream.connect(5)
        connection.abort()
        connection.send(REQUEST, b"")
        with pytest.raises(UpstreamLost):
            await connection.head()


@pytest.mark.parametrize(
    "answer",
    [
        SMALL + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    ],
)
async def test_connection_with_bytes_behind_the_answer_is_not_kept(answer: bytes) -> None:
    async with serving(answering(answer)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        assert (await connection.head()).status == 200
        try:
            while await connection.read():
                pass
        except UpstreamLost:
            pass
        upstream.give_back(connection)
        assert upstream.idle == 0


async def test_answer_until_close_ends_with_the_connection() -> None:
    async with serving(answering(b"HTTP/1.0 200 OK\r\n\r\nall of it", then_close=True)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        assert await read_all(connection) == b"all of it"
        assert not connection.is_reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"220 smtp ready\r\n\r\n",
    ],
)
async def test_answers_that_are_none_break_the_connection(answer: bytes) -> None:
    async with serving(answering(answer)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        with pytest.raises(UpstreamLost):
            await connection.head()


async def test_deadline_names_its_cause_and_the_earlier_one_counts() -> None:
    async with serving(answering(b"")) as upstream:
        connection = await upstream.connect(5)
        now = asyncio.get_running_loop().time()
        connection.limit("total", now + 100)
        connection.limit(FIRST_BYTE, now + 0.02)
        connection.send(REQUEST, b"")
        with pytest.raises(UpstreamExpired) as expired:
            await connection.head()
        assert expired.value.cause == FIRST_BYTE


async def test_deadline_that_moves_on_does_not_fire() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        for _ in range(5):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.03)

    async with serving(slow) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        found = b""
        while len(found) < 5:
            connection.limit("idle", asyncio.get_running_loop().time() + 5)
            found += await connection.read()
        assert found == b"xxxxx"


async def test_reading_stops_while_nobody_takes_the_bytes() -> None:
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with serving(floods) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        await connection.head()
        before = -1
        while before != sent:  # until the flood has come to rest
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 20_000_000
        assert connection._buffered <= BUFFER_HIGH_BYTES + 256 * 1024
        total = 0
        while data := await connection.read():
            total += len(data)
        assert total == 50_000_000
        assert connection.is_reusable
