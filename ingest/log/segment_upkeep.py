"""What a segment log needs beside commits: compression, retention, the reserve, its horizon.

All of it runs in a thread of its own beside the committing one. A segment is replaced by
its compressed form in one rename after that form has been read back and compared;
readers that hold the plain file keep it until they let go. Retention removes sealed
segments only, the oldest first, and none that reaches beyond `log.retention_floor`, the
oldest offset that a kept checkpoint needs; while nobody has said such an offset, nothing
goes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ingest.log.manifest import SegmentInfo, SegmentState, write_manifest
from ingest.log.segment_files import UNFINISHED, compressed_name, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import StoredSegment, compressed_parts
from projections.bounds import MIB, SECOND_US
from projections.events.ports import LogCorrupt

HORIZON_WARN_US = 24 * 3600 * SECOND_US
HORIZON_BYTES_MIN = MIB  # a log smaller than this says nothing of its rate
_CHECK_STEP_BYTES = MIB


class UpkeepDone(NamedTuple):
    """What a round of upkeep did."""

    compressed: int
    removed: int
    stored_bytes: int


def keep_up(log: SegmentLog) -> UpkeepDone:
    """One round: compress what was sealed, drop what is too old or too much, refill the reserve.

    Raises OSError where the disk fails, LogCorrupt where a sealed segment does not check.
    """
    compressed = compress_sealed(log) if log.settings.compress_level else 0
    removed = expire(log)
    log.reserve.fill()
    return UpkeepDone(compressed, removed, stored_bytes(log))


def stored_bytes(log: SegmentLog) -> int:
    """Bytes of all sealed segments on disk."""
    with log.manifest_lock:
        return sum(info.stored_bytes for info in log.manifest.values())


def retention_bytes(log: SegmentLog) -> int:
    """The byte ceiling in force."""
    if log.settings.retention_bytes is not None:
        return log.settings.retention_bytes
    return log.disk.total_bytes(log.folder) * log.settings.retention_share // 100


# Compression -----------------------------------------------------------------------------


def compress_sealed(log: SegmentLog) -> int:
    """Compress every plain sealed segment; how many were."""
    with log.manifest_lock:
        waiting = [info for info in log.manifest.values() if info.state is SegmentState.SEALED]
    for info in sorted(waiting):
        _compress(log, info)
    return len(waiting)


def _compress(log: SegmentLog, info: SegmentInfo) -> None:
    first = info.first_offset
    temporary = log.folder / (compressed_name(first) + UNFINISHED)
    plain = StoredSegment(log.folder, first)
    try:
        footer = plain.footer()
        if footer is None:
            raise LogCorrupt(f"segment {plain.name} was sealed and has no footer: restore it from a copy")
        log.disk.remove(temporary)
        fd = log.disk.create(temporary)
        try:
            position = 0
            for part in compressed_parts(plain, footer[1], log.settings.compress_level):
                log.disk.write(fd, part, position)
                position += len(part)
            log.disk.sync(fd)
        finally:
            os.close(fd)
        _compare(plain, temporary)
    finally:
        plain.close()
    log.disk.rename(temporary, log.folder / compressed_name(first))
    log.disk.sync_folder(log.folder)
    _note(log, info._replace(stored_bytes=position, state=SegmentState.COMPRESSED))
    log.disk.remove(log.folder / segment_name(first))


def _compare(plain: StoredSegment, temporary: Path) -> None:
    """Read the compressed form back: it must give the plain bytes. Raises LogCorrupt."""
    packed = StoredSegment(temporary.parent, plain.header.first_offset, temporary.name)
    try:
        size = plain.size()
        same = packed.size() == size and all(
            plain.read_at(at, _CHECK_STEP_BYTES) == packed.read_at(at, _CHECK_STEP_BYTES)
            for at in range(0, size, _CHECK_STEP_BYTES)
        )
    finally:
        packed.close()
    if not same:
        raise LogCorrupt(f"segment {plain.name} reads back differently once compressed: check the disk")


def _note(log: SegmentLog, info: SegmentInfo) -> None:
    with log.manifest_lock:
        log.manifest[info.first_offset] = info
        write_manifest(log.disk, log.folder, log.log_id, log.manifest)


# Retention -------------------------------------------------------------------------------


def expire(log: SegmentLog) -> int:
    """Remove sealed segments beyond age or bytes, as far as checkpoints allow; how many went."""
    if log.retention_floor is None:
        return 0
    oldest_kept = log.newest_stamp - log.settings.retention_age_us
    ceiling, size = retention_bytes(log), stored_bytes(log)
    with log.manifest_lock:
        sealed = [info for _, info in sorted(log.manifest.items()) if info.head]
    going: list[SegmentInfo] = []
    for info in sealed:
        if info.end_offset > log.retention_floor or not (info.last_time < oldest_kept or size > ceiling):
            break
        going.append(info)
        size -= info.stored_bytes
    _remove(log, going)
    return len(going)


def forget(log: SegmentLog, offset: int) -> int:
    """Remove every sealed segment that ends at or before `offset`, whatever its age; how many went."""
    with log.manifest_lock:
        going = [info for _, info in sorted(log.manifest.items()) if info.head and info.end_offset <= offset]
    _remove(log, going)
    return len(going)


def _remove(log: SegmentLog, going: list[SegmentInfo]) -> None:
    """Names go oldest first, so that what is left never has a hole."""
    if not going:
        return
    for info in going:
        log.disk.remove(log.folder / segment_name(info.first_offset))
        log.disk.remove(log.folder / compressed_name(info.first_offset))
    log.disk.sync_folder(log.folder)
    with log.manifest_lock:
        for info in going:
            log.manifest.pop(info.first_offset, None)
        write_manifest(log.disk, log.folder, log.log_id, log.manifest)


# Horizon ---------------------------------------------------------------------------------


def horizon_us(settings: SegmentSettings, span_us: int, stored: int, ceiling: int) -> int:
    """How long a record lasts at the rate seen so far: the age, or less where bytes run out first.

    span_us: log time that the kept records cover; stored: bytes that they take on disk.
    """
    if stored < HORIZON_BYTES_MIN or span_us <= 0:
        return settings.retention_age_us
    return min(settings.retention_age_us, span_us * ceiling // stored)


def log_horizon_seconds(log: SegmentLog) -> float:
    """The horizon of a log, for the metric of that name."""
    with log.manifest_lock:
        sealed = [info for _, info in sorted(log.manifest.items()) if info.head and info.first_time]
        stored = sum(info.stored_bytes for info in sealed)
    span = sealed[-1].last_time - sealed[0].first_time if sealed else 0
    return horizon_us(log.settings, span, stored, retention_bytes(log)) / SECOND_US
