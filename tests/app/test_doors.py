"""Where a process listens: alone, beside its siblings, and for how long at its end."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from app import doors
from app.doors import SOCKET_FOLDER, DoorPlan, Doors
from ingest.log.segment_files import LogHeld
from router.ingress.http_server import Door, build_application

LOCAL = ("127.0.0.1:0",)


class Slow:
    """Requests to /slow wait for `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.set()
        await self.goes_on.wait()
        return web.Response(text="at last")


@pytest.fixture
async def slow() -> Slow:
    return Slow()


def doors_of(plan: DoorPlan | None = None, slow: Slow | None = None) -> Doors:
    handlers = {} if slow is None else {"/slow": slow}
    return Doors(Door(build_application(None, handlers)), plan or DoorPlan())


async def close(one: Doors) -> None:
    await one.close(failed=False, is_impatient=lambda: True)


async def answer(port: int, path: str = "/health") -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as reply:
        return await reply.text()


async def test_a_free_port_is_taken_and_told() -> None:
    one = doors_of()
    await one.open(LOCAL)
    (port,) = one.ports
    assert port > 0 and "ok" in await answer(port)
    await close(one)


async def test_told_addresses_stand_in_the_place_of_the_configured_ones() -> None:
    one = doors_of(DoorPlan(("127.0.0.1:0", "[::1]:0")))
    await one.open(("127.0.0.1:1",))
    assert len(one.ports) == 2 and 1 not in one.ports
    await close(one)
    nowhere = doors_of(DoorPlan(()))
    await nowhere.open(LOCAL)
    assert nowhere.ports == []
    await close(nowhere)


async def test_siblings_share_a_port_and_strangers_do_not() -> None:
    first = doors_of(DoorPlan(is_shared=True))
    await first.open(LOCAL)
    shared = (f"127.0.0.1:{first.ports[0]}",)
    second, stranger = doors_of(DoorPlan(is_shared=True)), doors_of()
    await second.open(shared)
    assert second.ports == first.ports
    with pytest.raises(OSError, match="change server") as refused:
        await stranger.open(shared)
    assert refused.value.filename == shared[0]
    assert refused.value.errno
    for one in (first, second, stranger):
        await close(one)


async def test_siblings_are_heard_on_a_socket_of_ones_own_and_a_dead_ones_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("folder" * 12) / ("folder" * 12)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    near = f"{SOCKET_FOLDER}/one.sock"
    path = deep / near
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(near)
    one = doors_of(DoorPlan((), own_socket=path))
    await one.open(LOCAL)
    connector = aiohttp.UnixConnector(near)
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://x/health") as reply:
        assert reply.status == 200
    await close(one)
    assert not path.exists(), "nobody waits for the figures of one that has ended"


async def test_a_living_process_keeps_its_socket_and_the_other_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / SOCKET_FOLDER / "one.sock"
    first, second = (doors_of(DoorPlan((), own_socket=path)) for _ in range(2))
    await first.open(LOCAL)
    with pytest.raises(LogHeld, match="answered by another process"):
        await second.open(LOCAL)
    await close(second)
    connector = aiohttp.UnixConnector(str(path.relative_to(tmp_path)))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://x/health") as reply:
        assert reply.status == 200
    await close(first)


async def test_a_configured_unix_socket_is_listened_on() -> None:
    one = doors_of()
    with tempfile.TemporaryDirectory() as folder:  # a name of a hundred bytes is too long
        await one.open((f"unix:{folder}/door",))
        assert one.ports == [] and os.listdir(folder) == ["door"]
        await close(one)


async def test_a_configured_unix_socket_is_taken_from_the_dead_and_not_from_the_living() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(path))
        left.close()  # by a process that was killed
        one, two = doors_of(), doors_of()
        await one.open((f"unix:{path}",))
        with pytest.raises(OSError, match=r"Address already in use: change server\.bind_address"):
            await two.open((f"unix:{path}",))
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await close(two)
        await close(one)


async def test_requests_in_flight_are_let_end(slow: Slow) -> None:
    one = doors_of(slow=slow)
    await one.open(LOCAL)
    asking = asyncio.create_task(answer(one.ports[0], "/slow"))
    await slow.asked.wait()
    closing = asyncio.create_task(one.close(failed=False, is_impatient=lambda: False))
    await asyncio.sleep(0.05)
    assert not closing.done()
    slow.goes_on.set()
    async with asyncio.timeout(10):
        assert await asking == "at last"
        await closing


@pytest.mark.parametrize("how", ["failed", "hurried", "impatient"])
async def test_requests_in_flight_are_not_waited_for_where_others_wait(
    how: str, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "FAILED_GRACE_S", 0.02)
    one = doors_of(slow=slow)
    one.hurry()  # nothing is closing yet
    await one.open(LOCAL)
    asking = asyncio.create_task(answer(one.ports[0], "/slow"))
    await slow.asked.wait()
    closing = asyncio.create_task(one.close(failed=how == "failed", is_impatient=lambda: how == "impatient"))
    await asyncio.sleep(0.01)
    if how == "hurried":
        one.hurry()
    async with asyncio.timeout(10):
        await closing
        with pytest.raises(aiohttp.ClientError):
            await asking
