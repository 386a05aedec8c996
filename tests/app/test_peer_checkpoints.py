"""A replica without a good checkpoint takes one from a peer: whole, checked, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from app import peer_checkpoints
from app.admin_auth import AdminGate, credentials
from app.admin_checkpoints import CheckpointRoutes
from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.peer_checkpoints import PeerCheckpoints
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue
from projections.fold import Fold
from replay.engine import records_of
from tests.app.admin_site import a_config
from tests.replay.recorded_log import RecordedLog

AUTH = a_config().admin.auth


class Peers:
    """Folders behind admin endpoints on free ports."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.asked: list[str] = []

    async def add(self, store: CheckpointFolder, log_id: bytes) -> str:
        application, admin = web.Application(), web.Application()
        AdminGate(lambda: AUTH, True).open(admin, CheckpointRoutes(store, lambda: log_id).handlers())
        application.add_subapp("/admin", admin)
        return await self.serve(application)

    async def serve(self, application: web.Application) -> str:
        async def note(request: web.Request, _: web.StreamResponse) -> None:
            self.asked.append(request.path)

        application.on_response_prepare.append(note)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    async with AsyncExitStack() as stack:
        yield Peers(stack, tmp_path)


def a_world() -> tuple[RecordedLog, list[int]]:
    """A log with two due checkpoints, and their offsets."""
    world, due = RecordedLog(4), []
    for number in range(4):
        world.pass_time(1_000_000)
        world.sample(1 + number, number)
        if number % 2:
            due.append(world.say(CheckpointDue("time")))
    return world, due


def filled(folder: Path, world: RecordedLog, offsets: list[int]) -> CheckpointFolder:
    """A folder with the states of those offsets."""
    store = CheckpointFolder(folder)
    for wanted in offsets:
        fold = Fold()
        for offset, data in records_of(world.log, 0, wanted + 1):
            fold.apply(offset, data, [])
        mark = fold.mark
        records = checkpoint_records(fold, world.log.log_id)
        store.write(world.log.log_id, mark.offset, mark.check, mark.time, records)
    return store


def fetching(folder: Path, *urls: str) -> tuple[CheckpointFolder, PeerCheckpoints]:
    store = CheckpointFolder(folder)
    return store, PeerCheckpoints(urls, credentials(AUTH), store, shares=False)


@pytest.mark.req("EVS-13")
async def test_the_newest_one_of_all_peers_is_taken_and_begins_the_fold(tmp_path: Path, peers: Peers) -> None:
    world, (first, second) = a_world()
    old = await peers.add(filled(tmp_path / "a", world, [first]), world.log.log_id)
    new = await peers.add(filled(tmp_path / "b", world, [first, second]), world.log.log_id)
    store, client = fetching(tmp_path / "own", old, new)
    fetched = await client.fetch(world.log)
    assert fetched is not None and fetched.offset == second
    assert [info.offset for info in store.list()] == [second]
    start = start_fold(world.log, store)
    assert start.next_offset == second + 1
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == [fetched.name]


async def test_who_has_a_good_one_near_the_end_asks_nobody(tmp_path: Path, peers: Peers) -> None:
    world, due = a_world()
    url = await peers.add(filled(tmp_path / "a", world, due), world.log.log_id)
    filled(tmp_path / "own", world, due[:1])
    _, client = fetching(tmp_path / "own", url)
    assert await client.fetch(world.log) is None
    assert peers.asked == []


async def test_one_that_is_far_behind_is_no_reason_to_stay_with_it(
    tmp_path: Path, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_checkpoints, "NEAR_RECORDS", 0)
    world, due = a_world()
    url = await peers.add(filled(tmp_path / "a", world, due), world.log.log_id)
    filled(tmp_path / "own", world, due[:1])
    _, client = fetching(tmp_path / "own", url)
    fetched = await client.fetch(world.log)
    assert fetched is not None and fetched.offset == due[1]


async def test_a_damaged_one_is_thrown_away_and_the_next_is_tried(tmp_path: Path, peers: Peers) -> None:
    world, (first, second) = a_world()
    broken = filled(tmp_path / "a", world, [second])
    path = broken.path_of(broken.list()[0].name)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    urls = [
        await peers.add(broken, world.log.log_id),
        await peers.add(filled(tmp_path / "b", world, [first]), world.log.log_id),
    ]
    _, client = fetching(tmp_path / "own", *urls)
    fetched = await client.fetch(world.log)
    assert fetched is not None and fetched.offset == first
    assert [path.name for path in (tmp_path / "own").iterdir()] == [fetched.name]


async def test_peers_that_are_away_or_follow_another_log_or_do_not_let_in_cost_a_line_each(
    tmp_path: Path, peers: Peers
) -> None:
    world, due = a_world()
    full = filled(tmp_path / "a", world, due)
    other = await peers.add(full, bytes(16))
    mine = await peers.add(full, world.log.log_id)
    store = CheckpointFolder(tmp_path / "own")
    stranger = PeerCheckpoints([mine], {}, store, shares=False)
    assert await stranger.fetch(world.log) is None
    _, client = fetching(tmp_path / "own", "http://127.0.0.1:9", other)
    assert await client.fetch(world.log) is None
    assert store.list() == []


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"log_id": "", "checkpoints": []}', b"x" * (2 << 20)])
async def test_an_odd_list_is_no_list(tmp_path: Path, peers: Peers, body: bytes) -> None:
    async def odd(_: web.Request) -> web.Response:
        return web.Response(body=body)

    application = web.Application()
    application.router.add_get("/admin/checkpoints", odd)
    _, client = fetching(tmp_path / "own", await peers.serve(application))
    assert await client.fetch(a_world()[0].log) is None


async def test_a_file_of_another_size_than_was_told_is_not_taken(tmp_path: Path, peers: Peers) -> None:
    world, due = a_world()
    info = filled(tmp_path / "a", world, due).list()[-1]

    async def listed(_: web.Request) -> web.Response:
        rows = [{"name": info.name, "size_bytes": 10}, {"name": "../../x", "size_bytes": 10}]
        return web.json_response({"log_id": world.log.log_id.hex(), "checkpoints": rows})

    async def endless(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(1 << 20))

    application = web.Application()
    application.router.add_get("/admin/checkpoints", listed)
    application.router.add_get("/admin/checkpoints/{name}", endless)
    store, client = fetching(tmp_path / "own", await peers.serve(application))
    assert await client.fetch(world.log) is None
    assert store.list() == [] and [*(tmp_path / "own").iterdir()] == []
