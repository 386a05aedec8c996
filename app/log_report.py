"""Figures of a log for `log stat`: what is kept, how fast it grows, how long records last."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from app.marks import Marks, time_text
from ingest.log.manifest import SegmentInfo, SegmentState, read_manifest
from ingest.log.segment_files import Disk, has_owner, log_folder, stored_segments
from ingest.log.segment_recovery import describe_sealed
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import StoredSegment
from ingest.log.segment_upkeep import horizon_us
from projections.bounds import SECOND_US
from projections.events.ports import LogReader

USED_STEP_BYTES = 1 << 20


class SegmentRow(NamedTuple):
    """One segment as people read it."""

    first_offset: int
    end_offset: int
    state: str
    plain_bytes: int
    stored_bytes: int
    first_at: str | None


class LogReport(NamedTuple):
    """See the module's text. Sizes in bytes; `horizon_seconds` with the retention settings' defaults."""

    log_id: str
    first_offset: int
    end_offset: int
    records: int
    first_at: str | None
    last_at: str | None
    span_seconds: float
    records_per_second: float
    stored_bytes_per_second: float
    stored_bytes: int
    plain_bytes: int
    horizon_seconds: float
    has_owner: bool
    segments: list[SegmentRow]


def log_report(data: Path, reader: LogReader, settings: SegmentSettings | None = None) -> LogReport:
    """Figures of the log in a data directory. Raises LogCorrupt, OffsetGone."""
    settings = settings or SegmentSettings()
    folder = log_folder(data)
    infos = _infos(folder, reader)
    marks = Marks(reader)
    first, newest = marks.oldest_stamp(), marks.newest_stamp()
    span_us = newest - first if first is not None and newest is not None else 0
    stored = sum(info.stored_bytes for info in infos)
    records = sum(info.end_offset - info.first_offset for info in infos)
    disk = Disk()
    ceiling = settings.retention_bytes or disk.total_bytes(folder) * settings.retention_share // 100
    seconds = span_us / SECOND_US
    return LogReport(
        log_id=reader.log_id.hex(),
        first_offset=reader.first_offset(),
        end_offset=reader.end_offset(),
        records=records,
        first_at=None if first is None else marks.time_text(first),
        last_at=None if newest is None else marks.time_text(newest),
        span_seconds=seconds,
        records_per_second=records / seconds if seconds else 0.0,
        stored_bytes_per_second=stored / seconds if seconds else 0.0,
        stored_bytes=stored,
        plain_bytes=sum(info.plain_bytes for info in infos),
        horizon_seconds=horizon_us(settings, span_us, stored, ceiling) / SECOND_US,
        has_owner=has_owner(folder),
        segments=[_row(info) for info in infos],
    )


def _row(info: SegmentInfo) -> SegmentRow:
    first_at = time_text(info.first_time) if info.first_time else None
    return SegmentRow(
        info.first_offset, info.end_offset, info.state, info.plain_bytes, info.stored_bytes, first_at
    )


def _infos(folder: Path, reader: LogReader) -> list[SegmentInfo]:
    """All segments: sealed ones by the manifest where it knows them, the open one by its file."""
    known = read_manifest(folder, reader.log_id)
    firsts = stored_segments(folder)
    infos: list[SegmentInfo] = []
    for first in firsts[:-1]:
        info = known.get(first)
        infos.append(
            info if info is not None and info.head else describe_sealed(folder, first, reader.log_id)
        )
    return [*infos, _open_info(folder, firsts[-1], reader)]


def _open_info(folder: Path, first: int, reader: LogReader) -> SegmentInfo:
    segment = StoredSegment(folder, first)
    try:
        size = _used_bytes(segment)
        end = max(first, reader.end_offset())
        created = segment.header.created
        return SegmentInfo(first, end, created, created, size, size, "", "", SegmentState.OPEN)
    finally:
        segment.close()


def _used_bytes(segment: StoredSegment) -> int:
    """Bytes up to the last one that was written: room is taken ahead, as zeros."""
    position = segment.stored_bytes()
    while position > 0:
        start = max(0, position - USED_STEP_BYTES)
        written = segment.read_at(start, position - start).rstrip(b"\0")
        if written:
            return start + len(written)
        position = start
    return 0
