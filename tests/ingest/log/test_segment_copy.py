"""A data directory as the target of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from ingest.log.log_copy import Base
from ingest.log.segment_copy import SegmentCopy
from ingest.log.segment_files import LogHeld
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.bounds import COMMIT_BATCH_RECORDS_MAX
from projections.events.ports import CheckpointInfo, RecordBatch
from tests.log_suite import read_all, record

LOG_ID = bytes(range(16))
SETTINGS = SegmentSettings(durable=False, reserve_bytes=0, allocate_bytes=1 << 16)


def copy_of(data: Path) -> SegmentCopy:
    return SegmentCopy(data, CheckpointFolder(data / "checkpoints"), SETTINGS)


def test_a_copy_begins_with_its_base_and_keeps_offsets_that_jump(tmp_path: Path) -> None:
    target = copy_of(tmp_path)
    assert target.log_id is None
    base = Base(CheckpointInfo(99, 7, 1234, 0, "x"), lambda: iter([record(0)]))
    target.begin(LOG_ID, 100, base)
    target.take([RecordBatch(100, [record(100), record(101)]), RecordBatch(1 << 20, [record(1)])])
    assert target.log_id == LOG_ID
    wanted = [(100, record(100)), (101, record(101)), (1 << 20, record(1))]
    assert read_all(target.reader(), 100) == wanted
    target.close()
    (info,) = CheckpointFolder(tmp_path / "checkpoints").list()
    assert (info.offset, info.check, info.time) == (99, 7, 1234)
    again = copy_of(tmp_path)
    assert (again.log_id, read_all(again.reader(), 100)) == (LOG_ID, wanted)
    again.take([RecordBatch((1 << 20) + 1, [record(2)])])
    assert again.reader().end_offset() == (1 << 20) + 2
    again.close()


def test_more_records_than_a_batch_may_hold_are_committed_in_parts(tmp_path: Path) -> None:
    target = copy_of(tmp_path)
    target.begin(LOG_ID, 0, None)
    target.take([RecordBatch(0, [record(0)] * (COMMIT_BATCH_RECORDS_MAX + 1))])
    target.take([RecordBatch(COMMIT_BATCH_RECORDS_MAX + 1, [record(0, blob=3 << 20)] * 4)])
    assert target.reader().end_offset() == COMMIT_BATCH_RECORDS_MAX + 5
    target.close()


def test_a_directory_that_is_served_is_not_copied_into(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SETTINGS)
    log.commit([record(0)])
    with pytest.raises(LogHeld):
        copy_of(tmp_path)
    log.close()


def test_nothing_is_made_where_nothing_is_begun(tmp_path: Path) -> None:
    target = copy_of(tmp_path / "new")
    target.close()
    assert not (tmp_path / "new").exists()
