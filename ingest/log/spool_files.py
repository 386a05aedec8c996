"""The spool on local disk: files under `DIR/spool` that are read once and never outlive their process.

    chunk    u64 LE xxh3-64 of the bytes | bytes

A file has no name once it is open, so that nothing is left of it when the process ends, however
it ends, and two processes that share a data directory have nothing to do with each other.
Where its chunks lie is known in memory alone. Nothing is synced: after a crash nobody reads it.

The ceiling is checked before bytes are written, and a write that fails half-way for want of
room takes nothing: its bytes are cut off, or written over. A file is let go of when
its last chunk was read, so the ceiling counts up to a file more than what waits.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from contextlib import suppress
from pathlib import Path

import structlog
import xxhash

from ingest.log.segment_files import Disk, make_folder
from ingest.log.spool import SpoolDamaged
from projections.bounds import MIB

FILE_BYTES = 64 * MIB
SUFFIX = ".spool"
CHECK_BYTES = 8

log = structlog.get_logger("picklog.log")


class _File:
    """One file. chunks: bytes of each that was not read yet."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.end = 0
        self.read_at = 0
        self.chunks: deque[int] = deque()


class SpoolFiles:
    """`Spill` in a folder, which is made where it is missing, for its owner alone. Raises OSError.

    bytes_max: ceiling of all files together.
    """

    def __init__(
        self, folder: Path, bytes_max: int, disk: Disk | None = None, *, file_bytes: int = FILE_BYTES
    ) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._disk = disk or Disk()
        self._file_bytes = file_bytes
        self._files: deque[_File] = deque()
        self._is_refused = False
        make_folder(folder)
        for left in folder.glob(f"*{SUFFIX}"):  # of a process that ended between two calls
            self._disk.remove(left)

    @property
    def size_bytes(self) -> int:
        """See Spill."""
        return sum(file.end for file in self._files)

    def put(self, chunk: bytes) -> bool:
        """See Spill."""
        data = xxhash.xxh3_64_digest(chunk)[::-1] + chunk
        if self.size_bytes + len(data) > self._bytes_max:
            return False
        try:
            if not self._files or self._files[-1].end >= self._file_bytes:
                self._files.append(self._begin())
            file = self._files[-1]
            self._disk.write(file.fd, data, file.end)
        except OSError as problem:
            self._cut_back()
            if not self._is_refused:  # once until it takes something again
                self._is_refused = True
                log.warning("the disk takes nothing more for the spool", error=problem.strerror)
            return False
        self._is_refused = False
        file.end += len(data)
        file.chunks.append(len(data))
        return True

    def take(self) -> bytes:
        """See Spill."""
        file = self._files[0]
        size = file.chunks.popleft()
        try:
            data = os.pread(file.fd, size, file.read_at)
        except OSError as problem:
            raise SpoolDamaged(f"the spool cannot be read back: {problem.strerror}") from problem
        chunk = data[CHECK_BYTES:]
        if len(data) != size or xxhash.xxh3_64_digest(chunk)[::-1] != data[:CHECK_BYTES]:
            raise SpoolDamaged("what was spooled does not come back as it was written")
        file.read_at += size
        if not file.chunks:
            self._end(self._files.popleft())
        return chunk

    def clear(self) -> None:
        """See Spill."""
        while self._files:
            self._end(self._files.popleft())

    def _cut_back(self) -> None:
        """Give back what a failed write took."""
        if self._files:
            with suppress(OSError):
                self._disk.truncate(self._files[-1].fd, self._files[-1].end)

    def _begin(self) -> _File:
        path = self._folder / f"{secrets.token_hex(8)}{SUFFIX}"
        fd = self._disk.create(path)
        try:
            self._disk.remove(path)
        except OSError:
            os.close(fd)
            raise
        return _File(fd)

    def _end(self, file: _File) -> None:
        with suppress(OSError):
            os.close(file.fd)
