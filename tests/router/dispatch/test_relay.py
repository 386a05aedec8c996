"""The relay: bytes untouched, memory flat before a slow client, both ends told apart."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from projections.events.picks import EndStatus
from projections.registry.fleet import Role
from router.dispatch.connection import UpstreamConnection
from router.dispatch.relay import PushRelay, Relayed, RelayEnd
from router.dispatch.usage import Usage
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.rig import fleet_of, rig, settings_for, until, worker

FLEET = fleet_of(worker(31, Role.AGGREGATED))
MIB = 1024 * 1024


class _Sink:
    """A client that may be slow, or gone."""

    def __init__(self) -> None:
        self.data = b""
        self.is_full = False
        self.gone = False
        self.room = asyncio.Event()

    def begin(self) -> bytes:
        return b"HEAD "

    def write(self, data: bytes, head: bytes = b"") -> None:
        if self.gone:
            raise ConnectionResetError
        self.data += head + data

    async def drained(self) -> None:
        await self.room.wait()
        if self.gone:
            raise ConnectionResetError
        self.is_full = False


class _Begun:
    """The beginning of an answer on a real connection whose peer is the test."""

    def __init__(self, connection: UpstreamConnection, first: bytes) -> None:
        self.connection = connection
        self.first = first


@asynccontextmanager
async def moving(
    sink: _Sink, idle_us: int = 5_000_000, total_s: float = 60.0
) -> AsyncIterator[tuple[asyncio.Task[Relayed], socket.socket]]:
    """A relay under way: its task, and the backend's end of the connection."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), sock=ours)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
    theirs.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    await connection.head()
    begun = _Begun(connection, await connection.read())
    task = asyncio.create_task(PushRelay().run(begun, sink, idle_us, loop.time() + total_s))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    yield task, theirs
    connection.abort()
    theirs.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


USAGE = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'


async def test_whole_answer_goes_through_and_its_usage_is_seen() -> None:
    sink = _Sink()
    async with moving(sink) as (task, backend):
        backend.sendall(chunk(b"data: a\n\n") + chunk(USAGE)[:10])
        await until(lambda: b"data: a" in sink.data)
        backend.sendall(chunk(USAGE)[10:] + b"0\r\n\r\n")
        assert await task == (RelayEnd.WHOLE, Usage(1, 2, None), True)
        assert sink.data == b"HEAD firstdata: a\n\n" + USAGE


async def test_end_that_came_before_the_relay_began_is_not_missed() -> None:
    sink = _Sink()
    async with moving(sink) as (task, backend):
        backend.sendall(chunk(b"x") + b"0\r\n\r\n")
        assert (await task).end is RelayEnd.WHOLE
        assert sink.data == b"HEAD firstx"


@pytest.mark.parametrize(("last", "between"), [(b"data: a\n\n", True), (b"data: {", False)])
async def test_lost_backend_is_told_and_where_it_stopped(last: bytes, between: bool) -> None:
    async with moving(_Sink()) as (task, backend):
        backend.sendall(chunk(last))
        backend.close()
        relayed = await task
        assert (relayed.end, relayed.between_events) == (RelayEnd.LOST, between)


@pytest.mark.req("DYN-17")
@pytest.mark.parametrize(("idle_us", "total_s"), [(50_000, 60.0), (60_000_000, 0.05)])
async def test_silence_is_limited_by_the_nearer_deadline(idle_us: int, total_s: float) -> None:
    async with moving(_Sink(), idle_us, total_s) as (task, _):
        assert (await task).end is RelayEnd.EXPIRED


async def test_every_piece_moves_the_silence_on() -> None:
    sink = _Sink()
    async with moving(sink, 300_000) as (task, backend):
        for number in range(4):
            backend.sendall(chunk(b"%d" % number))
            await asyncio.wait({task}, timeout=0.15)
        assert not task.done()
        assert sink.data == b"HEAD first0123"
        assert (await task).end is RelayEnd.EXPIRED


async def test_full_client_stops_the_reading_until_it_has_room() -> None:
    sink = _Sink()
    async with moving(sink) as (task, backend):
        sink.is_full = True
        backend.sendall(chunk(b"a"))
        await until(lambda: sink.data.endswith(b"a"))
        backend.sendall(chunk(b"b") + b"0\r\n\r\n")
        await asyncio.wait({task}, timeout=0.05)
        assert sink.data == b"HEAD firsta"
        sink.room.set()
        assert (await task).end is RelayEnd.WHOLE
        assert sink.data == b"HEAD firstab"


async def test_slow_client_is_not_taken_for_a_silent_backend() -> None:
    sink = _Sink()
    async with moving(sink, 50_000) as (task, backend):
        sink.is_full = True
        backend.sendall(chunk(b"a"))
        await asyncio.wait({task}, timeout=0.3)
        assert not task.done()
        sink.room.set()
        backend.sendall(b"0\r\n\r\n")
        assert (await task).end is RelayEnd.WHOLE


@pytest.mark.field("B-108")
@pytest.mark.parametrize("slow", [False, True])
async def test_client_that_has_gone_ends_the_relay(slow: bool) -> None:
    sink = _Sink()
    async with moving(sink) as (task, backend):
        sink.is_full = slow
        if slow:
            backend.sendall(chunk(b"a"))
            await until(lambda: sink.data.endswith(b"a"))
        sink.gone = True
        sink.room.set()
        backend.sendall(chunk(b"b") * 3)
        with pytest.raises(ConnectionError):
            await task


async def slow_client(port: int) -> socket.socket:
    """A connected socket with a small receive buffer that has asked for a stream."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    body = json.dumps({"model": "tiny-chat", "messages": [], "stream": True}).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    await loop.sock_sendall(sock, request)
    return sock


@pytest.mark.field("B-108")
async def test_slow_client_holds_the_frontend_back_and_memory_stays_flat() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    frontend.events, frontend.event_bytes = 20, MIB
    async with running(frontend), rig(FLEET, settings_for({"dynamo": [frontend]})) as router:
        tracemalloc.start()
        sock = await slow_client(router.port)
        loop = asyncio.get_running_loop()
        found = 0
        for _ in range(20):  # 1 KiB at a time
            found += len(await loop.sock_recv(sock, 1024))
        before = -1
        while before != frontend.bytes_out:  # until all buffers between are full
            before = frontend.bytes_out
            await asyncio.sleep(0.1)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert frontend.bytes_out < 16 * MIB, "the frontend was held back"
        assert held < 30 * MIB, "of which the frontend's own answer is 20"
        assert not router.log.ends
        sock.close()  # with unread bytes: a reset
        end = await router.ended()
        assert end.status == EndStatus.CANCELLED
        await until(lambda: router.in_flight() == 0)
        async with asyncio.timeout(5):
            await frontend.chats[0].done.wait()


@pytest.mark.timeout(60)
async def test_a_long_stream_arrives_whole_at_a_client_that_reads_slowly() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    frontend.events, frontend.event_bytes = 40, 100_000
    async with running(frontend), rig(FLEET, settings_for({"dynamo": [frontend]})) as router:
        sock = await slow_client(router.port)
        loop = asyncio.get_running_loop()
        found = bytearray()
        while not found.endswith(b"0\r\n\r\n"):
            found += await loop.sock_recv(sock, 8192)
        sock.close()
        assert found.count(b"x" * 1000) >= 40
        assert found.partition(b"\r\n\r\n")[2].count(b"data: ") == 41
        assert (await router.ended()).status == EndStatus.OK
