"""A log that several processes verify has the totals of one walk."""

from pathlib import Path

import pytest

import replay.engine as engine_module
from app.checkpoint_store import CheckpointFolder
from app.log_places import checkpoint_folder, open_log
from app.verify_processes import processes_for, verify_by_processes
from projections.checkpoint import checkpoint_records
from projections.fold import Fold
from replay.log_walk import records_of
from replay.verify import Report
from tests.app.log_on_disk import written
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_engine import long_log


def on_disk(world: RecordedLog, data: Path, every: int) -> Path:
    """The log with a checkpoint each `every` records."""
    written(world, data)
    folder = CheckpointFolder(checkpoint_folder(data), keep=1_000)
    fold = Fold()
    for offset, record in records_of(world.log, 0):
        fold.apply(offset, record, [])
        if offset % every == every - 1:
            mark, log_id = fold.mark, world.log.log_id
            folder.write(log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, log_id))
    return data


def plain(report: Report) -> tuple[object, ...]:
    chains = report.chains
    return (*report._replace(chains=None, ticks=0), chains.gaps, chains.breaks)  # type: ignore[arg-type]


@pytest.mark.req("EVS-06", "EVS-13")
def test_totals_are_those_of_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "OVERLAP_RECORDS", 40)
    data = on_disk(long_log(), tmp_path / "data", 60)
    with open_log(data) as opened:
        end = opened.reader.end_offset()
        alone, one = verify_by_processes(opened, 0, end, 1, lambda _: None)
        monkeypatch.setattr("app.verify_processes.PARTS_PER_PROCESS", 2)
        several, two = verify_by_processes(opened, 0, end, 2, lambda _: None)
    assert (one, two) == (1, 2)
    assert plain(alone) == plain(several)
    assert several.picks == several.equal == 160


def test_a_log_without_checkpoints_to_cut_at_is_walked_by_one(tmp_path: Path) -> None:
    data = written(long_log(20), tmp_path / "data")
    with open_log(data) as opened:
        report, used = verify_by_processes(opened, 0, opened.reader.end_offset(), 4, lambda _: None)
    assert used == 1 and report.equal == 27


def test_short_ranges_are_not_worth_a_process() -> None:
    assert processes_for(1_000, None) == 1
    assert processes_for(10**9, None) >= 1
    assert processes_for(1_000, 7) == 7
