"""A log of which every record is a copy at its own offset: what staging is fed into.

It may begin anywhere and jumps where the original jumps. What a crash tore off is cut, not
jumped over as an owner would: the original still has those records, and they are copied
again to the offsets that are theirs.
"""

from __future__ import annotations

import os
from pathlib import Path

from ingest.log.segment_files import Disk, OwnerLock, log_folder, make_folder, segment_name, stored_segments
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_recovery import begin_segment
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import StoredSegment
from projections.events.segment_format import HEAD_BYTES, MARK_BYTES, SegmentHeader
from projections.events.segment_scan import StopKind, scan


def open_staged(
    data: Path, log_id: bytes, first_offset: int, settings: SegmentSettings, disk: Disk | None = None
) -> SegmentLog:
    """Own a staged log: go on with the one that is there, or begin one at `first_offset`.

    Raises LogHeld, LogCorrupt, OSError.
    """
    disk = disk or Disk()
    folder = log_folder(data)
    make_folder(folder)
    lock = OwnerLock(folder)
    try:
        if stored_segments(folder):
            _cut_torn(folder, disk)
        else:
            header = SegmentHeader(log_id, first_offset, os.urandom(MARK_BYTES), 0, bytes(HEAD_BYTES))
            os.close(begin_segment(disk, folder, header).fd)
    finally:
        lock.release()
    return SegmentLog.open_owner(data, settings, disk)


def _cut_torn(folder: Path, disk: Disk) -> None:
    """End the newest segment behind its last good batch, where what follows was half written."""
    first = stored_segments(folder)[-1]
    segment = StoredSegment(folder, first)
    try:
        found = scan(segment.read_at(0, segment.size()), segment.header)
        name = segment.name
    finally:
        segment.close()
    if found.stop.kind is not StopKind.TORN or name != segment_name(first):
        return
    fd = disk.open(folder / name)
    try:
        disk.truncate(fd, found.stop.position)
        disk.sync(fd)
    finally:
        os.close(fd)
