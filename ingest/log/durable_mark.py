"""How far readers of other processes may see: one number in a shared page.

The owner stores the offset after the last durable record into a mapped file once the
commit's fdatasync has returned. A reader looks at the page; no call, no lock. The store
is one aligned 8-byte word, so it is never seen half written. The page outlives the
death of the owner; after a power cut it may be behind what is on disk, never ahead.

    log id (16) | durable end u64 little-endian | zeros (8)
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

MARK_NAME = "durable"
MARK_FILE_BYTES = 32
_WORD = 2  # index of the durable end, in words of 8 bytes


class DurableMark:
    """The owner's side."""

    def __init__(self, folder: Path, log_id: bytes, end_offset: int) -> None:
        fd = os.open(folder / MARK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size != MARK_FILE_BYTES:
                os.ftruncate(fd, MARK_FILE_BYTES)
            self._page = mmap.mmap(fd, MARK_FILE_BYTES)
        finally:
            os.close(fd)
        self._words = memoryview(self._page).cast("Q")
        self._page[:16] = log_id
        self.publish(end_offset)

    def publish(self, end_offset: int) -> None:
        """Everything before `end_offset` is durable."""
        self._words[_WORD] = end_offset

    def close(self) -> None:
        """Unmap; the file stays."""
        self._words.release()
        self._page.close()


def acknowledged_end(folder: Path) -> int:
    """The durable end that the page in a folder tells, whatever log it is of; 0 without one."""
    try:
        page = (folder / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return 0
    return int.from_bytes(page[8 * _WORD : 8 * _WORD + 8], "little") if len(page) == MARK_FILE_BYTES else 0


class DurableMarkReader:
    """A reader's side."""

    def __init__(self, folder: Path, log_id: bytes) -> None:
        """Raises FileNotFoundError where there is none, ValueError where it is another log's."""
        fd = os.open(folder / MARK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != MARK_FILE_BYTES:
                raise ValueError("the durable mark has another size")
            self._page = mmap.mmap(fd, MARK_FILE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        if self._page[:16] != log_id:
            self._page.close()
            raise ValueError("the durable mark is of another log")
        self._words = memoryview(self._page).cast("Q")

    def end_offset(self) -> int:
        """The offset after the last durable record."""
        return self._words[_WORD]

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._page.close()
