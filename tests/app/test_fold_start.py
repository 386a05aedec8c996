"""A fold begins at the newest checkpoint that checks, belongs to the log and has its tail."""

from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from projections.checkpoint import checkpoint_records
from projections.events.ports import CheckpointInfo
from projections.fold import Fold
from replay.engine import records_of
from tests.replay.recorded_log import RecordedLog


def checkpoint(world: RecordedLog, store: CheckpointFolder, offset: int) -> CheckpointInfo:
    fold = Fold()
    for at, data in records_of(world.log, 0, offset + 1):
        fold.apply(at, data, [])
    mark = fold.mark
    records = checkpoint_records(fold, world.log.log_id)
    return store.write(world.log.log_id, mark.offset, mark.check, mark.time, records)


def whole(world: RecordedLog) -> Fold:
    fold = Fold()
    for at, data in records_of(world.log, 0):
        fold.apply(at, data, [])
    return fold


@pytest.fixture
def world() -> RecordedLog:
    world = RecordedLog(8)
    for number in range(30):
        world.pass_time(10_000)
        world.sample(1 + number % 8, number)
    return world


@pytest.mark.req("EVS-13")
def test_checkpoint_and_tail_are_the_full_fold(world: RecordedLog, tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    checkpoint(world, store, 10)
    newest = checkpoint(world, store, 25)
    start = start_fold(world.log, store)
    assert (start.checkpoint, start.next_offset, start.passed_over) == (newest, 26, ())
    for at, data in records_of(world.log, start.next_offset):
        start.fold.apply(at, data, [])
    assert start.fold.digests() == whole(world).digests()
    assert not start.incomplete


def test_without_a_checkpoint_it_begins_at_the_logs_beginning(world: RecordedLog, tmp_path: Path) -> None:
    start = start_fold(world.log, CheckpointFolder(tmp_path / "none"))
    assert (start.checkpoint, start.next_offset, start.incomplete) == (None, 0, False)


def test_a_log_whose_beginning_is_gone_without_a_checkpoint_is_incomplete(
    world: RecordedLog, tmp_path: Path
) -> None:
    world.log.forget(12)
    start = start_fold(world.log, CheckpointFolder(tmp_path))
    assert (start.next_offset, start.incomplete) == (12, True)


@pytest.mark.parametrize("damage", ["bytes", "other log", "future", "gap"])
def test_what_does_not_fit_is_passed_over_with_the_reason(
    world: RecordedLog, tmp_path: Path, damage: str
) -> None:
    store = CheckpointFolder(tmp_path)
    good = checkpoint(world, store, 5)
    if damage == "bytes":
        bad = checkpoint(world, store, 20)
        path = tmp_path / bad.name
        data = bytearray(path.read_bytes())
        data[400] ^= 1
        path.write_bytes(data)
    elif damage == "other log":
        other = RecordedLog(3)
        for number in range(20):
            other.sample(1, number)
        checkpoint(other, store, 15)
    elif damage == "future":
        checkpoint(world, store, 20)
        world.log._batches = world.log._batches[:15]  # a log that was cut back below it
        world.log._end = 15
    else:
        world.log.forget(7)
        start = start_fold(world.log, store)
        assert start.checkpoint is None
        assert "are gone" in start.passed_over[0][1]
        return
    start = start_fold(world.log, store)
    assert start.checkpoint == good
    assert len(start.passed_over) == 1
    assert start.passed_over[0][1]


def test_a_restart_asks_for_a_state_before_an_offset(world: RecordedLog, tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    early, _ = checkpoint(world, store, 5), checkpoint(world, store, 25)
    assert start_fold(world.log, store, before=24).checkpoint == early
    assert start_fold(world.log, store, before=4).next_offset == 0


def test_a_checkpoint_that_is_removed_meanwhile_is_passed_over(
    world: RecordedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointFolder(tmp_path)
    older = checkpoint(world, store, 10)
    newest = checkpoint(world, store, 25)
    listed = store.list()
    monkeypatch.setattr(store, "list", lambda: listed)
    (tmp_path / newest.name).unlink()
    start = start_fold(world.log, store)
    assert start.checkpoint == older
    assert start.passed_over == ((newest.name, "it was removed as newer ones came"),)
