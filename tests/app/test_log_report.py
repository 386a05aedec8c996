from __future__ import annotations

from pathlib import Path

import pytest

from app.log_report import log_report
from ingest.log.manifest import MANIFEST_NAME
from ingest.log.segment_files import log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_upkeep import compress_sealed
from tests.app.timed_log import write_seconds

SETTINGS = SegmentSettings(segment_bytes=16 << 10, reserve_bytes=0, durable=False, allocate_bytes=4096)


def test_a_report_is_the_same_with_and_without_the_manifest(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SETTINGS)
    write_seconds(log, 100)
    compress_sealed(log)
    log.close()
    reader = SegmentReader.open(tmp_path)
    before = log_report(tmp_path, reader)
    assert {segment.state for segment in before.segments} == {"compressed", "open"}
    assert sum(s.end_offset - s.first_offset for s in before.segments) == before.records == 1001
    assert before.stored_bytes < before.plain_bytes
    (log_folder(tmp_path) / MANIFEST_NAME).unlink()
    assert log_report(tmp_path, reader) == before
    reader.close()


def test_the_horizon_shrinks_with_the_bytes_that_are_allowed(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SegmentSettings(reserve_bytes=0, durable=False))
    write_seconds(log, 2000)
    reader = SegmentReader.open(tmp_path)
    report = log_report(tmp_path, reader, SegmentSettings(retention_bytes=4 << 20))
    expected = report.span_seconds * (4 << 20) / report.stored_bytes
    assert report.horizon_seconds == pytest.approx(expected)
    assert report.horizon_seconds < log_report(tmp_path, reader).horizon_seconds
    assert report.has_owner
    reader.close()
    log.close()
