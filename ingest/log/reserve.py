"""Room on the disk that is kept for picks, ends and control records (decision 15).

The reserve is a file whose blocks are taken. When a critical write finds the disk full,
the reserve is cut by a step and the write is tried again; when there is room once more,
upkeep takes the blocks back.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from pathlib import Path

from ingest.log.segment_files import Disk, is_full
from projections.bounds import MIB

RESERVE_NAME = "reserve"
RESERVE_STEP_BYTES = 4 * MIB


class Room(IntEnum):
    """How much room there is for further records."""

    PLENTY = 1
    RESERVE = 2  # critical records only
    NONE = 3


class Reserve:
    """The reserve file of one log. `room` is what may be appended now."""

    def __init__(self, disk: Disk, folder: Path, wanted_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._path = folder / RESERVE_NAME
        self._wanted = wanted_bytes
        self.held_bytes = self._path.stat().st_size if self._path.exists() else 0
        self.room = Room.PLENTY
        self.fill()

    def fill(self) -> None:
        """Take the reserve (again) if the disk allows; room is plenty once it is whole."""
        if self.held_bytes < self._wanted:
            try:
                self._take()
            except OSError as problem:
                if not is_full(problem):
                    raise
                self.mark_full()
                return
        self.room = Room.PLENTY

    def mark_full(self) -> None:
        """A write found no room."""
        self.room = Room.RESERVE if self.held_bytes else Room.NONE

    def give_up_step(self) -> None:
        """Free some of the reserve for a critical write."""
        self.held_bytes = max(0, self.held_bytes - RESERVE_STEP_BYTES)
        fd = self._disk.open(self._path)
        try:
            self._disk.truncate(fd, self.held_bytes)
        finally:
            os.close(fd)

    def _take(self) -> None:
        if self._disk.free_bytes(self._folder) < self._wanted - self.held_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fd = self._disk.open(self._path) if self._path.exists() else self._disk.create(self._path)
        try:
            self._disk.allocate(fd, 0, self._wanted)
        finally:
            os.close(fd)
        self.held_bytes = self._wanted
