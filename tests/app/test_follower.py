"""The follower writes the state of the very offset at which a checkpoint is due."""

import asyncio
import os
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.follower import Follower, end_with_parent
from app.processes import PARENT_VARIABLE
from projections.events.control import CheckpointDue
from projections.fold import Fold
from replay.engine import records_of
from tests.replay.recorded_log import RecordedLog


async def written(world: RecordedLog, store: CheckpointFolder, count: int) -> list[int]:
    """Follow until `count` checkpoints are written."""
    offsets: list[int] = []
    enough = asyncio.Event()

    def on_checkpoint(offset: int) -> None:
        offsets.append(offset)
        if len(offsets) == count:
            enough.set()

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
