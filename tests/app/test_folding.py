"""A fold that begins anew is folded aside, told nothing twice, and handed over when it has caught up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app import folding
from app.checkpoint_store import CheckpointFolder
from app.folding import Folding
from app.tail import Restart, Seen, Tail
from projections.checkpoint import checkpoint_records
from projections.events.codec import peek_kind
from projections.events.control import CheckpointDue, ClockTicked, ConfigAdopted, Pinged, RecordCondemned
from projections.events.kinds import Kind
from projections.events.ports import OffsetGone
from projections.fold import Fold
from projections.notices import Notice
from replay.engine import records_of
from tests.app.test_aside import read
from tests.replay.recorded_log import SETTINGS, RecordedLog

ME = bytes([42]) * 16
WATCHED = frozenset((CheckpointDue,))


class Process:
    """What a fold told, and a log that answers pings at once where it may."""

    def __init__(self, world: RecordedLog, folder: Path) -> None:
        self.world = world
        self.news: list[Notice] = []
        self.old: list[Notice] = []
        self.seen_at: list[int] = []
        self.condemned: list[tuple[int, str]] = []
        self.given_up: list[str] = []
        self.replaced: list[Tail] = []
        self.folded_at: list[int] = []
        self.checkpoints = CheckpointFolder(folder)
        self.folding = Folding(world.log, self.checkpoints, ME, WATCHED, self)

    def append_ping(self, number: int, as_of: int) -> None:
        self.world.say(Pinged(ME, number, as_of), ME)

    def noticed(self, notices: tuple[Notice, ...], is_news: bool) -> None:
        (self.news if is_news else self.old).extend(notices)

    def folded(self) -> None:
        self.folded_at.append(self.folding.tail.fold.mark.offset)

    def seen(self, seen: Seen) -> None:
        self.seen_at.append(seen.offset)

    def condemn(self, offset: int, detail: str) -> None:
        self.condemned.append((offset, detail))

    def fold_given_up(self, reason: str) -> None:
        self.given_up.append(reason)

    def fold_replaced(self, tail: Tail) -> None:
        self.replaced.append(tail)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.folding.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def caught_up(self) -> None:
        async with asyncio.timeout(20):
            while self.folding.tail.next_offset < self.world.log.end_offset():  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.fixture
def world() -> RecordedLog:
    world = RecordedLog(3)
    for number in range(5):
        world.sample(1 + number % 3, number)
    return world


async def test_what_the_log_held_before_is_old_news(world: RecordedLog, tmp_path: Path) -> None:
    old = world.say(CheckpointDue("time"))
    process = Process(world, tmp_path)
    async with process.running():
        await process.caught_up()
        assert process.old and not process.news
        new = world.say(CheckpointDue("time"))
        await process.caught_up()
    assert old < new
    assert process.seen_at == [new]
    assert process.folded_at[-1] == new


async def test_a_successor_skips_the_condemned_record_and_tells_nothing_twice(
    world: RecordedLog, tmp_path: Path
) -> None:
    process = Process(world, tmp_path)
    async with process.running():
        await process.caught_up()
        bad = world.say(CheckpointDue("time"))
        await process.caught_up()
        before = process.folding.tail
        told = len(process.news)
        world.say(RecordCondemned(bad, "it cannot be applied elsewhere"))
        behind = world.say(CheckpointDue("time"))
        async with asyncio.timeout(20):
            while not process.replaced:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert process.given_up == ["condemned"]
    assert process.replaced == [process.folding.tail] == [process.folding.newest]
    assert process.folding.tail is not before
    assert process.seen_at == [bad, behind]
    assert bad in process.folding.tail.fold.state.intake.condemned
    assert len(process.news) - told <= 2, "the condemned record and its condemnation"


async def test_while_a_successor_folds_the_old_one_stands(world: RecordedLog, tmp_path: Path) -> None:
    process = Process(world, tmp_path)
    task = asyncio.create_task(process.folding.run())
    await process.caught_up()
    before = process.folding.tail
    bad = world.say(CheckpointDue("time"))
    await process.caught_up()
    for _ in range(3_000):
        world.sample(1, 1)
    world.say(RecordCondemned(bad, "it cannot be applied elsewhere"))
    stood = 0
    async with asyncio.timeout(20):
        while not process.replaced:
            if process.folding.newest is not before:
                assert process.folding.tail is before
                stood += 1
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert stood > 3
    assert process.folding.tail.fold.mark.offset == world.log.end_offset() - 1


@pytest.mark.req("EVS-13")
def test_it_begins_at_a_checkpoint(world: RecordedLog, tmp_path: Path) -> None:
    fold = Fold()
    for offset, data in records_of(world.log, 0):
        fold.apply(offset, data, [])
    mark = fold.mark
    records: Any = checkpoint_records(fold, world.log.log_id)
    CheckpointFolder(tmp_path).write(world.log.log_id, mark.offset, mark.check, mark.time, records)
    process = Process(world, tmp_path)
    assert process.folding.start.next_offset == mark.offset + 1
    assert process.folding.tail.fold.digests() == fold.digests()


async def test_a_process_that_could_not_append_proposes_again(
    world: RecordedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(world, tmp_path)
    async with process.running():
        await process.caught_up()
        process.folding.condemn_again()
        assert process.condemned == [], "nothing is wrong"
        bad = world.log.end_offset()
        poison(process, monkeypatch)
        async with asyncio.timeout(20):
            while not process.condemned:  # noqa: ASYNC110
                await asyncio.sleep(0)
        process.folding.condemn_again()
    assert [offset for offset, _ in process.condemned] == [bad, bad]


def poison(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose apply raises, as a fault of ours would."""

    def raising(*_: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(process.folding.tail.fold.state.status, "apply_adopted", raising)
    process.world.say(ConfigAdopted(2, "x", b"", "{}", SETTINGS, True))


def state_at(world: RecordedLog, store: CheckpointFolder, wanted: int) -> None:
    """Write the state of an offset into a folder."""
    fold = Fold()
    for offset, data in records_of(world.log, 0, wanted + 1):
        fold.apply(offset, data, [])
    mark = fold.mark
    records = checkpoint_records(fold, world.log.log_id)
    store.write(world.log.log_id, mark.offset, mark.check, mark.time, records)


@pytest.mark.req("EVS-13")
async def test_a_fold_that_retention_overtook_begins_anew_from_a_checkpoint(
    world: RecordedLog, tmp_path: Path
) -> None:
    process = Process(world, tmp_path)
    for number in range(10):
        world.sample(1, number)
    newest = world.say(CheckpointDue("time"))
    state_at(world, process.checkpoints, newest)
    world.sample(2, 7)
    world.log.forget(newest)
    async with process.running(), asyncio.timeout(20):
        while not process.replaced:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert process.given_up == ["overtaken"]
    assert process.folding.tail.next_offset == world.log.end_offset()


async def test_it_ends_where_no_checkpoint_bridges_what_is_gone(world: RecordedLog, tmp_path: Path) -> None:
    process = Process(world, tmp_path)
    world.log.forget(world.log.end_offset() - 1)
    with pytest.raises(OffsetGone, match="start from a checkpoint"):
        await asyncio.wait_for(process.folding.run(), 20)


async def test_a_checkpoint_that_is_fetched_meanwhile_bridges_it(world: RecordedLog, tmp_path: Path) -> None:
    process = Process(world, tmp_path)
    newest = world.say(CheckpointDue("time"))
    world.sample(2, 7)

    async def fetch() -> None:
        process.checkpoints.write(log_id, mark[0], mark[1], mark[2], iter(state))

    fold = Fold()
    for offset, data in records_of(world.log, 0, newest + 1):
        fold.apply(offset, data, [])
    log_id, mark = world.log.log_id, (fold.mark.offset, fold.mark.check, fold.mark.time)
    state = [*checkpoint_records(fold, log_id)]
    process.folding = Folding(world.log, process.checkpoints, ME, WATCHED, process, before_start=fetch)
    world.log.forget(newest)
    async with process.running(), asyncio.timeout(20):
        while not process.replaced:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert process.given_up == ["overtaken"]


@pytest.mark.req("EVS-13", "EVS-14")
async def test_what_is_begun_anew_has_no_hole_where_older_checkpoints_are_gone(
    world: RecordedLog, tmp_path: Path
) -> None:
    process = Process(world, tmp_path)
    async with process.running():
        await process.caught_up()
        wrong = process.folding.tail
        due = world.say(CheckpointDue("time"))
        await process.caught_up()
        fold = Fold()
        for offset, data in records_of(world.log, 0, due + 1):
            fold.apply(offset, data, [])
        mark, log_id = fold.mark, world.log.log_id
        state = checkpoint_records(fold, log_id)
        process.checkpoints.write(log_id, mark.offset, mark.check, mark.time, state)
        world.log.forget(due)
        process.folding._shell.restart = Restart("disagreed", 2, frozenset())  # agreed at 2 at last
        world.sample(2, 9)
        async with asyncio.timeout(20):
            while not process.replaced:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert process.folding.tail is not wrong
    for offset, data in records_of(world.log, due + 1):
        fold.apply(offset, data, [])
    assert process.folding.tail.fold.digests() == fold.digests()


def checkpoint_of(fold: Fold, world: RecordedLog, folder: Path) -> None:
    mark, log_id = fold.mark, world.log.log_id
    state = checkpoint_records(fold, log_id)
    CheckpointFolder(folder).write(log_id, mark.offset, mark.check, mark.time, state)


def write_false_checkpoint(world: RecordedLog, folder: Path) -> Fold:
    """One that lacks a sample, two ticks of the owner behind it, and the fold of the owner."""
    true, false = Fold(), Fold()
    world.say(CheckpointDue("time"))
    records = [*records_of(world.log, 0)]
    sample = next(offset for offset, data in reversed(records) if peek_kind(data) == Kind.SAMPLE_RECEIVED)
    for offset, data in records:
        true.apply(offset, data, [])
        if offset != sample:
            false.apply(offset, data, [])
    checkpoint_of(false, world, folder)
    noted: ClockTicked = ClockTicked(0, -1, (), 0, 0)
    for _ in range(2):
        at = world.say(noted)
        true.apply(at, dict(records_of(world.log, at))[at], [])
        noted = ClockTicked(0, at, true.digests(), *true.state.status.closed_tick)
    return true


async def stands_as(process: Process, true: Fold) -> None:
    """The fold that stands becomes the owner's."""
    async with process.running(), asyncio.timeout(20):
        while not process.replaced:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await process.caught_up()
    for offset, data in records_of(process.world.log, true.mark.offset + 1):
        true.apply(offset, data, [])
    assert process.folding.tail.fold.digests() == true.digests()


@pytest.mark.req("EVS-11", "EVS-13")
async def test_a_checkpoint_of_another_state_is_left_for_an_older_one(
    world: RecordedLog, tmp_path: Path
) -> None:
    true = write_false_checkpoint(world, tmp_path)
    process = Process(world, tmp_path)
    assert process.folding.start.checkpoint is not None
    await stands_as(process, true)
    assert process.given_up == ["disagreed"]


@pytest.mark.parametrize("has_data", [True, False])
async def test_a_state_that_disagreed_is_written_aside_where_there_is_a_place(
    world: RecordedLog, tmp_path: Path, has_data: bool
) -> None:
    true = write_false_checkpoint(world, tmp_path / "checkpoints")
    process = Process(world, tmp_path / "checkpoints")
    data = tmp_path / "data" if has_data else None
    process.folding = Folding(world.log, process.checkpoints, ME, WATCHED, process, data=data)
    wrong = process.folding.tail
    with capture_logs() as lines:
        await stands_as(process, true)
    [line] = [line for line in lines if line["event"] == "the fold is given up"]
    if has_data:
        assert process.folding.aside is not None
        await process.folding.aside.written()
        kept = read(Path(line["aside"]))
        assert kept.digests() == wrong.fold.digests() != true.digests()
    else:
        assert line["aside"] == "not written: this process has no data directory"


@pytest.mark.req("EVS-11", "EVS-13")
async def test_a_checkpoint_of_another_state_that_is_the_only_one_is_not_begun_with_again(
    world: RecordedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "LOOK_AGAIN_S", 0.001)
    true = write_false_checkpoint(world, tmp_path)
    process = Process(world, tmp_path)
    begun = process.folding.start.checkpoint
    assert begun is not None
    world.log.forget(begun.offset + 1)
    looks = 0

    async def fetch() -> None:
        nonlocal looks
        looks += 1
        if looks == 4:  # somebody has a good one at last
            checkpoint_of(true, world, tmp_path)
            world.sample(1, 9)

    process.folding = Folding(world.log, process.checkpoints, ME, WATCHED, process, before_start=fetch)
    await stands_as(process, true)
    assert looks == 4
    assert process.given_up == ["disagreed"]
