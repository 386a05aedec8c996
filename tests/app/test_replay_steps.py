"""Steps stand beside the checkpoints and are read like them."""

from pathlib import Path

import pytest

import app.replay_steps as steps_module
from app.checkpoint_store import CheckpointFolder
from app.replay_steps import Steps, WithSteps, steps_folder, with_steps
from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.fold import Fold
from replay.log_walk import records_of
from replay.timeline import state_at
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_timeline import lived


def stepped(world: RecordedLog, data: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(steps_module, "STEP_RECORDS", 10)
    steps = Steps(data)
    fold = Fold()
    for offset, record in records_of(world.log, 0):
        fold.apply(offset, record, [])
        steps.offer(fold, world.log.log_id)
    return steps


def test_a_step_is_written_each_so_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived()
    steps = stepped(world, tmp_path, monkeypatch)
    assert [info.offset for info in steps.list()] == list(range(9, world.log.end_offset(), 10))
    again = Steps(tmp_path)
    assert not again.offer(Fold(), world.log.log_id), "what is there is known at the next start"


@pytest.mark.req("EVS-13")
def test_any_offset_is_reached_from_the_step_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lived()
    stepped(world, tmp_path, monkeypatch)
    store = with_steps(CheckpointFolder(tmp_path / "checkpoints"), tmp_path)
    assert isinstance(store, WithSteps)
    cursor = state_at(world.log, store, 27)
    assert cursor.base == 19
    assert cursor.fold.digests() == state_at(world.log, None, 27).fold.digests()


def test_a_kept_checkpoint_of_the_same_offset_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = lived()
    stepped(world, tmp_path, monkeypatch)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    fold = state_at(world.log, None, 19).fold
    mark, log_id = fold.mark, world.log.log_id
    folder.write(log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, log_id))
    store = with_steps(folder, tmp_path)
    assert [info.offset for info in store.list()] == [9, 19, 29, 39]
    (steps_folder(tmp_path) / store.list()[1].name).unlink()
    assert fold_from_checkpoint(store.read(store.list()[1])).digests() == fold.digests()


def test_a_byte_ceiling_drops_the_oldest(tmp_path: Path) -> None:
    world = lived()
    steps = Steps(tmp_path, bytes_max=1)
    for offset in (5, 15, 25):
        steps.write(state_at(world.log, None, offset).fold, world.log.log_id)
    assert [info.offset for info in steps.list()] == [25]


def test_a_disk_that_takes_no_step_costs_the_step(tmp_path: Path) -> None:
    world = lived()
    steps = Steps(tmp_path)
    steps_folder(tmp_path).write_text("in the way")
    assert steps.write(state_at(world.log, None, 5).fold, world.log.log_id) is False


def test_a_log_without_steps_or_in_a_file_has_its_checkpoints_alone(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert with_steps(folder, tmp_path) is folder
    assert with_steps(folder, None) is folder
