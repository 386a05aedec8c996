"""The follower writes the state of the very offset at which a checkpoint is due."""

import asyncio
import os
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.follower import Follower, end_with_parent
from app.processes import PARENT_VARIABLE
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue
from projections.events.ports import OffsetGone
from projections.fold import Fold
from replay.engine import records_of
from tests.replay.recorded_log import RecordedLog


async def written(world: RecordedLog, store: CheckpointFolder, count: int) -> list[int]:
    """Follow until `count` checkpoints are written."""
    offsets: list[int] = []
    enough = asyncio.Event()

    loop = asyncio.get_running_loop()

    def on_checkpoint(offset: int) -> None:
        offsets.append(offset)
        if len(offsets) == count:
            loop.call_soon_threadsafe(enough.set)

    following = asyncio.create_task(Follower(world.log, store, on_checkpoint).run())
    await enough.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return offsets


@pytest.mark.req("EVS-13")
async def test_each_due_checkpoint_is_the_state_of_its_own_offset(tmp_path: Path) -> None:
    world = RecordedLog(4)
    due = []
    for number in range(6):
        world.pass_time(1_000_000)
        world.sample(1 + number % 4, number)
        if number % 2:
            due.append(world.say(CheckpointDue("time")))
            world.sample(1, 99)
    store = CheckpointFolder(tmp_path)
    assert await written(world, store, 3) == due
    for info in store.list():
        plain = Fold()
        for offset, data in records_of(world.log, 0, info.offset + 1):
            plain.apply(offset, data, [])
        assert start_fold(world.log, store, before=info.offset).fold.digests() == plain.digests()
        assert (info.check, info.time) == (plain.mark.check, plain.mark.time)


async def test_it_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    world = RecordedLog()
    store = CheckpointFolder(tmp_path)
    first = world.say(CheckpointDue("time"))
    assert await written(world, store, 1) == [first]
    second = world.say(CheckpointDue("time"))
    assert await written(world, store, 1) == [second]


async def test_a_full_disk_costs_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    class Full(CheckpointFolder):
        def write(self, log_id, offset, check, time, records):  # type: ignore[no-untyped-def]
            if offset == first:
                raise OSError(28, "No space left on device")
            return super().write(log_id, offset, check, time, records)

    world = RecordedLog()
    first = world.say(CheckpointDue("time"))
    second = world.say(CheckpointDue("time"))
    assert await written(world, Full(tmp_path), 1) == [second]


@pytest.mark.req("EVS-13")
async def test_retention_that_overtakes_it_makes_it_begin_at_a_newer_checkpoint(tmp_path: Path) -> None:
    world, store = RecordedLog(), CheckpointFolder(tmp_path)
    for _ in range(20):
        world.sample(1, 1)
    follower = Follower(world.log, store)
    following = asyncio.create_task(follower.run())
    async with asyncio.timeout(20):
        while follower.tail is None or follower.tail.next_offset < world.log.end_offset():  # noqa: ASYNC110
            await asyncio.sleep(0)
    world.sample(1, 2)
    newest = world.say(CheckpointDue("time"))
    fold = Fold()
    for offset, data in records_of(world.log, 0, newest + 1):
        fold.apply(offset, data, [])
    mark, log_id = fold.mark, world.log.log_id
    store.write(log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, log_id))
    world.sample(1, 2)
    world.log.forget(newest)
    async with asyncio.timeout(20):
        while follower.tail.fold.mark.offset < world.log.end_offset() - 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert follower.restarts == 1 and not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_it_ends_where_no_checkpoint_bridges_what_retention_removed(tmp_path: Path) -> None:
    world = RecordedLog()
    world.sample(1, 1)
    follower = Follower(world.log, CheckpointFolder(tmp_path))
    follower._begin(None, None)
    world.sample(1, 1)
    world.log.forget(world.log.end_offset() - 1)
    with pytest.raises(OffsetGone):
        follower._begin(None, OffsetGone(0, 1))


async def test_it_ends_with_its_parent() -> None:
    await asyncio.wait_for(end_with_parent(parent=-1), 5)
    waiting = asyncio.create_task(end_with_parent(os.getppid()))
    done, _ = await asyncio.wait({waiting}, timeout=0)
    assert not done
    waiting.cancel()


async def test_a_parent_that_was_killed_before_its_child_looked_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, str(1 << 30))
    await asyncio.wait_for(end_with_parent(os.getppid()), 5)
