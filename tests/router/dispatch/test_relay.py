"""The relay: bytes untouched, memory flat before a slow client, both ends told apart."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc

import pytest

from projections.events.picks import EndStatus
from projections.registry.fleet import Role
from router.dispatch.relay import PullRelay, RelayEnd
from router.dispatch.upstream import UpstreamExpired, UpstreamLost
from router.dispatch.usage import Usage
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.rig import fleet_of, rig, settings_for, until, worker

FLEET = fleet_of(worker(31, Role.AGGREGATED))
MIB = 1024 * 1024


class _Connection:
    """A backend connection that says what it is given."""

    def __init__(self, pieces: list[bytes | Exception]) -> None:
        self._pieces = pieces
        self.limits: list[tuple[str, float]] = []

    @property
    def is_drained(self) -> bool:
        return not self._pieces

    def limit(self, cause: str, due_s: float) -> None:
        self.limits.append((cause, due_s))

    async def read(self) -> bytes:
        piece = self._pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece


class _Begun:
    def __init__(self, first: bytes, *pieces: bytes | Exception) -> None:
        self.first = first
        self.connection = _Connection(list(pieces))


class _Sink:
    def __init__(self) -> None:
        self.data = b""

    async def write(self, data: bytes) -> None:
        self.data += data


async def relay(begun: _Begun, due_s: float = 1e9) -> tuple[RelayEnd, Usage, bool, bytes]:
    sink = _Sink()
    result = await PullRelay().run(begun, sink, 5_000_000, due_s)  # type: ignore[arg-type]
    return result.end, result.usage, result.between_events, sink.data


async def test_whole_answer_goes_through_and_its_usage_is_seen() -> None:
    usage = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    end, counts, _, data = await relay(_Begun(b"data: a\n\n", usage, b"data: [DONE]\n\n"))
    assert (end, counts) == (RelayEnd.WHOLE, Usage(1, 2, None))
    assert data == b"data: a\n\n" + usage + b"data: [DONE]\n\n"


async def test_ends_are_told_apart() -> None:
    lost = await relay(_Begun(b"data: a\n\n", b"data: {", UpstreamLost("x")))
    assert (lost[0], lost[2], lost[3]) == (RelayEnd.LOST, False, b"data: a\n\ndata: {")
    expired = await relay(_Begun(b"data: a\n\n", UpstreamExpired("idle")))
    assert (expired[0], expired[2]) == (RelayEnd.EXPIRED, True)


async def test_silence_is_limited_by_the_nearer_deadline() -> None:
    now = asyncio.get_running_loop().time()
    begun = _Begun(b"a", b"b")
    await relay(begun, now + 1.0)
    assert begun.connection.limits == [("total", now + 1.0)]
    begun = _Begun(b"a", b"b")
    await relay(begun, now + 100.0)
    ((cause, due_s),) = begun.connection.limits
    assert cause == "idle"
    assert now + 5.0 <= due_s <= now + 15.0


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
