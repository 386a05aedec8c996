"""One connection to a backend: what is known unsent, what is kept, how much is held."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from router.dispatch.heads import Framing
from router.dispatch.upstream import (
    BUFFER_HIGH_BYTES,
    FIRST_BYTE,
    IDLE_S_MAX,
    Address,
    ConnectFailed,
    Upstream,
    UpstreamConnection,
    UpstreamExpired,
    UpstreamLost,
)
from tests.router.rig import until

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
SMALL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[Upstream]:
    """An upstream whose connections are served by `peer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(Address.of_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    try:
        yield upstream
    finally:
        upstream.retire()
        server.close()
        await asyncio.sleep(0)


async def read_all(connection: UpstreamConnection) -> bytes:
    await connection.head()
    found = b""
    while data := await connection.read():
        found += data
    return found


def answering(*answers: bytes, then_close: bool = False) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        if not then_close:
            await reader.read()

    return peer


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h", ("h", 80, False, "", b"h")),
        ("https://h/a/", ("h", 443, True, "/a", b"h")),
        ("http://127.0.0.1:8000/x", ("127.0.0.1", 8000, False, "/x", b"127.0.0.1:8000")),
        ("http://[::1]:80", ("::1", 80, False, "", b"[::1]")),
        ("http://[::1]:81", ("::1", 81, False, "", b"[::1]:81")),
    ],
)
def test_addresses_come_from_urls(url: str, address: tuple[object, ...]) -> None:
    assert Address.of_url(url) == address


@pytest.mark.parametrize("url", ["h:80", "ftp://h", "http://", "http://h:99999"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Address.of_url(url)


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


async def test_refused_and_late_connections_fail_before_anything_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url(f"http://127.0.0.1:{port}")).connect(5)
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url("http://name.invalid")).connect(5)
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url(f"http://127.0.0.1:{port}")).connect(0.0)


async def test_kept_connection_that_the_peer_closed_is_not_taken() -> None:
    async with serving(answering(SMALL, then_close=True)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        assert await read_all(connection) == b"ok"
        upstream.give_back(connection)
        await until(lambda: not connection.looks_alive())
        assert upstream.take_idle() is None
        assert upstream.idle == 0


async def test_end_of_stream_that_the_loop_has_not_seen_yet_is_seen_on_the_socket() -> None:
    """The loop lags behind: the peer's close is in the socket, not yet in a callback (B-103)."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    upstream = Upstream(Address.of_url("http://127.0.0.1:1"))
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), sock=ours)
    theirs.sendall(SMALL)
    connection.send(REQUEST, b"")
    assert await read_all(connection) == b"ok"
    upstream.give_back(connection)
    assert connection.looks_alive()
    theirs.close()
    assert not connection.looks_alive()
    assert upstream.take_idle() is None


async def test_old_idle_connections_are_not_taken() -> None:
    async with serving(answering(SMALL)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        await read_all(connection)
        upstream.give_back(connection)
        connection.idle_since_s -= IDLE_S_MAX + 1
        assert upstream.take_idle() is None


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


async def test_retired_upstream_keeps_nothing() -> None:
    async with serving(answering(SMALL)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        await read_all(connection)
        upstream.retire()
        upstream.give_back(connection)
        assert upstream.idle == 0
