"""The shell of a feed keeps to its pace and stops when told to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.feeding import Feeding, StagingDirectory, joined
from app.following import Following
from app.log_places import OpenLog
from projections.events.ports import RecordBatch
from tests.replay.recorded_log import RecordedLog


def timed(seconds: int) -> RecordedLog:
    world = RecordedLog()
    for number in range(seconds):
        world.pass_time(1_000_000)
        world.sample(1, number)
    return world


def staging_of(world: RecordedLog, folder: Path) -> StagingDirectory:
    origin = OpenLog(world.log, CheckpointFolder(folder / "none"), "memory")
    return StagingDirectory(folder / "staging", origin, 0)


@pytest.mark.looptime
async def test_log_time_passes_at_the_speed_that_was_asked_for(tmp_path: Path) -> None:
    world = timed(60)
    with staging_of(world, tmp_path) as staging:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await Feeding(staging, Following(world.log), 20.0, None, False, lambda text: None).run(False)
        assert loop.time() - began == pytest.approx(3.0, abs=0.1)
        assert staging.log.end_offset() == world.log.end_offset()


@pytest.mark.looptime
async def test_an_order_to_stop_is_obeyed_in_the_middle_of_a_wait(tmp_path: Path) -> None:
    world = timed(600)
    with staging_of(world, tmp_path) as staging:
        feeding = Feeding(staging, Following(world.log), 1.0, None, False, lambda text: None)
        loop = asyncio.get_running_loop()
        loop.call_later(10.5, feeding._source.stop)
        began = loop.time()
        await feeding.run(False)
        assert loop.time() - began == pytest.approx(10.5, abs=0.1)
        fed = staging.feed.fed
        assert world.log.end_offset() - 600 < fed < world.log.end_offset() - 580
    document = feeding.document(1.0)
    assert (document["records"], document["other"]) == (fed, None)


async def test_what_retention_does_not_keep_goes_and_sealed_segments_are_compressed(tmp_path: Path) -> None:
    world = timed(5)
    with staging_of(world, tmp_path) as staging:
        await Feeding(staging, Following(world.log), None, None, False, lambda text: None).run(False)
        staging.log.jump(1 << 20)
        staging.keep_up()
        names = sorted(path.name for path in (tmp_path / "staging" / "log").iterdir())
        assert f"{0:020d}.seg.zst" in names
        assert staging.log.retention_floor == 0


def test_batches_are_joined_up_to_a_jump_of_offsets() -> None:
    batches = [
        RecordBatch(0, [b"a"]),
        RecordBatch(1, [b"b", b"c"]),
        RecordBatch(7, [b"d"]),
        RecordBatch(8, [b"e"]),
    ]
    assert joined(batches) == [RecordBatch(0, [b"a", b"b", b"c"]), RecordBatch(7, [b"d", b"e"])]
    assert joined([]) == []


async def test_the_state_of_the_end_is_a_checkpoint(tmp_path: Path) -> None:
    world = timed(5)
    with staging_of(world, tmp_path) as staging:
        feeding = Feeding(staging, Following(world.log), None, None, False, lambda text: None)
        await feeding.run(False)
        assert [info.offset for info in staging.checkpoints.list()] == [world.log.end_offset() - 1]
        assert feeding.document(1.0)["checkpoints"] == 1
