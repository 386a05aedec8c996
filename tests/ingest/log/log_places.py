"""Small logs on disk, and disks that fail, for the tests of this folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ingest.log.segment_files import Disk, log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue
from tests.log_suite import WRITER, read_all, record

SMALL = SegmentSettings(
    segment_bytes=16 << 10,
    allocate_bytes=4 << 10,
    reserve_bytes=0,
    durable=False,
    compress_level=3,
)
NO_ROOM_AHEAD = SegmentSettings(segment_bytes=1 << 20, allocate_bytes=0, reserve_bytes=0, durable=False)


def owned(number: int, stamp: int) -> bytes:
    """An owner's record with this stamp."""
    return encode_record(stamp, WRITER, 1, number + 1, CheckpointDue("test"))


def fill(log: SegmentLog, batches: Sequence[int]) -> int:
    """Commit batches of so many numbered records; the end offset."""
    for size in batches:
        first = log.end_offset()
        assert log.commit([record(first + n) for n in range(size)]) == first
    return log.end_offset()


def read_back(data: Path) -> list[tuple[int, bytes]]:
    """(offset, record) of everything that a reader of its own sees."""
    reader = SegmentReader.open(data)
    try:
        return read_all(reader, reader.first_offset())
    finally:
        reader.close()


def files(data: Path, pattern: str = "*.seg*") -> list[str]:
    """Names in the log's folder."""
    return sorted(path.name for path in log_folder(data).glob(pattern))


def newest_segment(data: Path) -> Path:
    """The plain segment with the highest first offset."""
    return sorted(log_folder(data).glob("*.seg"))[-1]


def first_segment(data: Path) -> Path:
    """The plain segment that begins at offset 0."""
    return log_folder(data) / segment_name(0)


class LimitedDisk(Disk):
    """A disk with so many bytes; `room` may be raised and lowered at will."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._sizes: dict[int, int] = {}

    def _take(self, fd: int, upto: int) -> None:
        size = os.fstat(fd).st_size
        if upto > size:
            if upto - size > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= upto - size

    def write(self, fd: int, data: bytes, position: int) -> None:
        self._take(fd, position + len(data))
        super().write(fd, data, position)

    def allocate(self, fd: int, start: int, size: int) -> None:
        self._take(fd, start + size)
        super().allocate(fd, start, size)

    def truncate(self, fd: int, size: int) -> None:
        self.room += max(0, os.fstat(fd).st_size - size)
        super().truncate(fd, size)

    def free_bytes(self, folder: Path) -> int:
        return self.room


class UnsyncedDisk(Disk):
    """A disk that is not waited for: for tests that kill nothing but processes."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class BrokenSync(Disk):
    """A disk whose fdatasync fails once `broken` is set."""

    broken = False

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)
