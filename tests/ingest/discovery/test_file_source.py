"""The file source keeps every source's promises, leaves the store alone, and outlives bad ones."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.discovery.blocking_calls import CallHung
from ingest.discovery.file_source import FileSource
from ingest.discovery.runner import DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings, FileStore, SourceKind
from ingest.discovery.source import EndReason, NamesCut, NamesRefused, SourceFailed
from projections.events.discovery import KeyDeleted, KeyPut
from tests.ingest.discovery.file_store import Clocks, InlineLane, StoreFolder
from tests.source_suite import WATCHED, Following, SourceSuite, connected, read_all

pytestmark = pytest.mark.looptime
RECORDINGS = Path(__file__).parents[2] / "recordings"


class AsyncFolder:
    """The suite's writing side on a folder."""

    def __init__(self, folder: StoreFolder, clocks: Clocks) -> None:
        self._folder = folder
        self._clocks = clocks

    async def put(self, key: str, value: bytes) -> None:
        if key.startswith("v1/instances2/"):
            return  # the file store has four folders, there is no fifth to write into
        self._clocks.pass_by(0.01)
        self._folder.write(key, value)

    async def delete(self, key: str) -> None:
        self._folder.remove(key)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def folder(tmp_path: Path, clocks: Clocks) -> StoreFolder:
    root = tmp_path / "store"
    root.mkdir()
    return StoreFolder(root, clocks)


@pytest.fixture
def source(folder: StoreFolder, clocks: Clocks) -> FileSource:
    return FileSource(FileStore(str(folder.root)), InlineLane(), clocks.wall_us, clocks.monotonic_us)


@pytest.mark.req("FILE-01")
class TestFileSource(SourceSuite):
    @pytest.fixture
    def store(self, folder: StoreFolder, clocks: Clocks) -> AsyncFolder:
        return AsyncFolder(folder, clocks)


KEY = "v1/instances/prod/backend/generate/1a"


async def test_file_changed_in_place_is_read_again(
    source: FileSource, folder: StoreFolder, clocks: Clocks
) -> None:
    folder.write(KEY, b"one")
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    clocks.pass_by(0.5)
    folder.path(KEY).write_bytes(b"two")
    folder.touch(KEY)
    assert await following.put() == (KEY, b"two")


@pytest.mark.req("FILE-02")
async def test_untouched_key_goes_and_comes_back_with_a_touch(
    source: FileSource, folder: StoreFolder, clocks: Clocks
) -> None:
    folder.write(KEY, b"{}")
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    clocks.pass_by(10.0)
    assert await following.gone() == KEY
    assert folder.path(KEY).exists()
    folder.touch(KEY)
    assert await following.put() == (KEY, b"{}")


async def test_removals_of_a_look_come_before_additions(source: FileSource, folder: StoreFolder) -> None:
    folder.write("v1/instances/prod/b/generate/9", b"old")
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    folder.write("v1/instances/prod/b/generate/1", b"new")
    folder.remove("v1/instances/prod/b/generate/9")
    assert await following.gone() == "v1/instances/prod/b/generate/9"
    assert await following.put() == ("v1/instances/prod/b/generate/1", b"new")


def _everything(root: Path) -> list[tuple[str, int, int, int]]:
    rows = []
    for path in sorted(root.rglob("*")):
        status = path.stat()
        rows.append((str(path), status.st_mtime_ns, status.st_ctime_ns, status.st_atime_ns))
    return rows


@pytest.mark.req("FILE-03")
async def test_store_is_left_as_it_was(source: FileSource, folder: StoreFolder, clocks: Clocks) -> None:
    folder.write(KEY, b"{}")
    folder.write("v1/mdc/prod/backend/generate/2", b"{}")
    folder.touch("v1/mdc/prod/backend/generate/2", age_s=3600)
    (folder.root / "v1" / "instances" / ".tmp_0123456789abcdef").write_bytes(b"{")
    before = [row[:3] for row in _everything(folder.root)]
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    clocks.pass_by(11)
    assert await following.gone() == KEY
    assert [row[:3] for row in _everything(folder.root)] == before


@pytest.mark.req("FILE-03")
async def test_store_without_write_permission_is_read(source: FileSource, folder: StoreFolder) -> None:
    folder.write(KEY, b"{}")
    places = [folder.path(KEY), folder.path(KEY).parent, folder.root / "v1", folder.root]
    for place in places:
        place.chmod(stat.S_IRUSR | (stat.S_IXUSR if place.is_dir() else 0))
    try:
        session = await connected(source)
        assert (await read_all(session, WATCHED)).values == {KEY: b"{}"}
    finally:
        for place in reversed(places):
            place.chmod(stat.S_IRWXU)


async def test_missing_root_is_waited_for_and_said_once(
    tmp_path: Path, clocks: Clocks, looptime: Any
) -> None:
    root = tmp_path / "later"
    source = FileSource(FileStore(str(root)), InlineLane(), clocks.wall_us, clocks.monotonic_us)
    told: list[str] = []
    connecting = asyncio.ensure_future(source.connect(told.append))
    await asyncio.sleep(3600)
    assert not connecting.done()
    assert told == ["the store's folder does not exist yet"]
    root.mkdir()
    session = await connecting
    assert (await read_all(session, WATCHED)).values == {}


async def test_root_that_goes_ends_the_pass(source: FileSource, folder: StoreFolder) -> None:
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    folder.root.rmdir()
    with pytest.raises(SourceFailed) as failure:
        await following.next()
    assert failure.value.reason is EndReason.ROOT_MISSING


async def test_root_that_is_a_file_is_unreadable(tmp_path: Path, clocks: Clocks) -> None:
    root = tmp_path / "store"
    root.mkdir()
    source = FileSource(FileStore(str(root)), InlineLane(), clocks.wall_us, clocks.monotonic_us)
    session = await connected(source)
    root.rmdir()
    root.write_text("no folder")
    with pytest.raises(SourceFailed) as failure:
        await read_all(session, WATCHED)
    assert failure.value.reason is EndReason.UNREADABLE


def _dumps(recording: str) -> list[list[dict[str, Any]]]:
    """The files of a real store at five moments."""
    dumps: list[list[dict[str, Any]]] = []
    with gzip.open(RECORDINGS / f"{recording}.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if "dump" in row:
                dumps.append([])
            else:
                dumps[-1].append(row)
    return dumps


@pytest.mark.req("FILE-01", "FILE-02")
@pytest.mark.parametrize(
    ("recording", "waits_s", "expected"),
    [
        ("file_kv-1.4.2-agg", [0, 6, 5.1, 20, 20], [2, 2, 1, 2, 1]),
        ("file_kv-1.6.1-disagg", [0, 6, 6.2, 20, 20], [4, 4, 3, 4, 3]),
    ],
)
async def test_recorded_stores_of_real_fleets_are_followed_moment_by_moment(
    folder: StoreFolder, clocks: Clocks, recording: str, waits_s: list[float], expected: list[int]
) -> None:
    """Ready, killed, dropped, restarted, stopped: what is held is what was touched within 10 s."""
    source = FileSource(FileStore(str(folder.root)), InlineLane(), clocks.wall_us, clocks.monotonic_us)
    settings = DiscoverySettings(SourceKind.FILE, ("dynamo",), file=FileStore(str(folder.root)))
    loop = asyncio.get_running_loop()
    facts: list[Any] = []
    refused: list[Any] = []
    runner = DiscoveryRunner(
        settings,
        facts.append,
        {},
        refused.append,
        lambda state: None,
        lambda: int(loop.time() * 1e6),
        make_source=lambda settings: source,
    )
    task = asyncio.ensure_future(runner.run())
    workers = []
    for dump, waited_s in zip(_dumps(recording), waits_s, strict=True):
        clocks.pass_by(waited_s)
        names = {row["file"] for row in dump}
        for path in [path for path in folder.root.rglob("*") if path.is_file()]:
            if str(path.relative_to(folder.root)) not in names:
                path.unlink()
        for row in dump:
            path = folder.root / row["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != row["text"]:
                path.write_text(row["text"])
            at_ns = clocks.wall_us() * 1000 - int(row["age_s"] * 1e9)
            if abs(path.stat().st_mtime_ns - at_ns) > 200_000_000:  # ages are rounded: that is no touch
                os.utime(path, ns=(at_ns, at_ns))
        await asyncio.sleep(2)
        held: dict[tuple[int, str], bytes] = {}
        for fact in facts:
            if isinstance(fact, KeyPut):
                held[fact.keyspace, fact.key] = fact.value
            elif isinstance(fact, KeyDeleted):
                del held[fact.keyspace, fact.key]
        assert sorted(held.values()) == sorted(r["text"].encode() for r in dump if r["age_s"] < 10)
        workers.append(len([key for space, key in held if space == 1 and "/generate/" in key]))
    assert workers == expected
    assert refused == []
    runner.stop()
    await task


class HangingLane(InlineLane):
    """Hangs from the given call on."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def call(self, function: Callable[[], Any], deadline_s: float) -> Any:
        self.left -= 1
        if self.left < 0:
            raise CallHung("no answer")
        return function()


async def test_hung_file_system_ends_the_pass_with_its_reason(folder: StoreFolder, clocks: Clocks) -> None:
    lane = HangingLane(2)  # the root and the first look are answered
    source = FileSource(FileStore(str(folder.root)), lane, clocks.wall_us, clocks.monotonic_us)
    session = await connected(source)
    following = Following(session, await read_all(session, WATCHED))
    await following.stands()
    with pytest.raises(SourceFailed) as failure:
        await following.next()
    assert failure.value.reason is EndReason.HUNG


async def test_names_that_are_no_keys_are_counted_once(source: FileSource, folder: StoreFolder) -> None:
    folder.write(KEY, b"{}")
    (folder.path(KEY).parent / "prod%2").write_bytes(b"{}")
    (folder.path(KEY).parent / os.fsdecode(b"prod\xff")).write_bytes(b"{}")
    session = await connected(source)
    events = [event async for event in session.names(WATCHED)]
    assert [event for event in events if isinstance(event, NamesRefused)] == [
        NamesRefused(WATCHED[0].keyspace, 2)
    ]
    following = session.changes(())
    await anext(following)
    (folder.path(KEY).parent / "broken%zz").write_bytes(b"{}")
    assert await anext(following) == NamesRefused(WATCHED[0].keyspace, 1)


async def test_file_that_may_not_be_read_is_counted_and_others_go_on(
    source: FileSource, folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("v1/instances/prod/b/generate/1", b"{}")
    folder.write("v1/instances/prod/b/generate/2", b"{}")
    closed = str(folder.path("v1/instances/prod/b/generate/1"))
    really_open = os.open

    def refusing(path: Any, *arguments: Any) -> int:
        if path == closed:
            raise PermissionError(13, "denied")
        return really_open(path, *arguments)

    monkeypatch.setattr("ingest.discovery.file_listing.os.open", refusing)
    session = await connected(source)
    [event async for event in session.names(WATCHED)]
    events = [event async for event in session.values(())]
    assert events[0] == NamesRefused(WATCHED[0].keyspace, 1)
    assert [found.key for event in events[1:] for found in event.found] == [b"v1/instances/prod/b/generate/2"]  # type: ignore[union-attr]


async def test_cut_listing_is_said(
    source: FileSource, folder: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.discovery.file_listing.FILES_MAX", 3)
    for worker in range(5):
        folder.write(f"v1/instances/prod/b/generate/{worker}", b"{}")
    session = await connected(source)
    events = [event async for event in session.names(WATCHED)]
    assert NamesCut(WATCHED[0].keyspace) in events
