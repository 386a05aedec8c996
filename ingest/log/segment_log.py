"""The owner's side of a segment log: commit, roll, and what may go wrong in between.

A commit is one write and one fdatasync; only then does the durable mark move, so that no
reader of another process ever sees a record that a crash could take back. After a failed
fdatasync nobody knows what is on disk: the segment is cut at the last durable byte and
the log refuses everything from then on (decision 5). When the disk is full, a reserve is
given up step by step to critical records alone (decision 15).

One thread commits; upkeep runs in another one and shares the manifest under a lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ingest.log.durable_mark import DurableMark
from ingest.log.manifest import SegmentInfo, SegmentState, write_manifest
from ingest.log.reserve import Reserve, Room
from ingest.log.segment_files import Disk, OwnerLock, is_full, log_folder, make_folder
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_recovery import OpenTail, name_segment, prepare_segment, recover
from ingest.log.segment_settings import SegmentSettings
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX
from projections.events.codec import owner_stamp
from projections.events.ports import CommitFailed, LogFailed, LogFull, RecordBatch
from projections.events.segment_format import (
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    MARK_BYTES,
    IndexBuilder,
    SegmentHeader,
    chain_start,
    encode_batch,
    encode_footer,
)

STAMP_SEARCH_RECORDS_MAX = 64  # looked through, from a batch's end, for an owner's record


class SegmentLog:
    """LogStore over the segments of a data directory; holds the owner's lock."""

    def __init__(self, folder: Path, settings: SegmentSettings, disk: Disk, lock: OwnerLock) -> None:
        """Use `open_owner`."""
        self.folder = folder
        self.settings = settings
        self.disk = disk
        self.manifest_lock = threading.Lock()
        self.retention_floor: int | None = None
        self._lock = lock
        self._failed: str | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._tail, self.manifest = recover(folder, disk)
        self._log_id = self._tail.header.log_id
        self._mark = DurableMark(folder, self._log_id, self._tail.end_offset)
        self.reserve = Reserve(disk, folder, settings.reserve_bytes)
        self._reader = SegmentReader(folder, self.end_offset)

    @classmethod
    def open_owner(
        cls, data: Path, settings: SegmentSettings | None = None, disk: Disk | None = None
    ) -> SegmentLog:
        """Own the log of a data directory: lock, recover, or begin a new one.

        Raises LogHeld, LogCorrupt, OSError.
        """
        folder = log_folder(data)
        make_folder(folder)
        lock = OwnerLock(folder)
        try:
            return cls(folder, settings or SegmentSettings(), disk or Disk(), lock)
        except BaseException:
            lock.release()
            raise

    @staticmethod
    def open_reader(data: Path) -> SegmentReader:
        """A reader of the same files for this or another process."""
        return SegmentReader.open(data)

    # Reading -------------------------------------------------------------------------

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    @property
    def newest_stamp(self) -> int:
        """Log time of the newest owner's record; of the log's creation in a new one."""
        return self._tail.newest_stamp

    @property
    def open_bytes(self) -> int:
        """Bytes written into the open segment."""
        return self._tail.position

    @property
    def room(self) -> Room:
        """What the disk has room for."""
        return self.reserve.room

    def is_full(self) -> bool:
        """See LogStore."""
        return self.reserve.room is not Room.PLENTY

    def first_offset(self) -> int:
        """See LogReader."""
        return self._reader.first_offset()

    def end_offset(self) -> int:
        """See LogReader."""
        return self._tail.end_offset

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader. For the thread of the event loop."""
        return self._reader.read(start, bytes_max)

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader. Woken by the commit itself."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._waiters.append(waiter)
        try:
            if self.end_offset() <= offset:
                async with asyncio.timeout(timeout_s):
                    await waiter[1].wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.remove(waiter)

    # Writing -------------------------------------------------------------------------

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore. critical: picks, ends and control records, which may use the reserve.

        Raises LogFull (nothing was written), LogFailed (this log is over), CommitFailed.
        """
        if self._failed is not None:
            raise LogFailed(f"{self.folder}: {self._failed}: restart the process")
        size = sum(map(len, records))
        if len(records) > COMMIT_BATCH_RECORDS_MAX or size > COMMIT_BATCH_BYTES_MAX:
            raise CommitFailed(f"a batch of {len(records)} records, {size} bytes: send smaller batches")
        if not records:
            return self.end_offset()
        if self.room is not Room.PLENTY and not critical:
            raise LogFull(f"{self.folder}: the disk is full, only picks, ends and control records are taken")
        room = FRAME_HEAD_BYTES + 4 * len(records) + size
        if self._must_roll(room):
            self._with_reserve(self._roll, critical)
        tail = self._tail
        first = tail.end_offset
        batch, head = encode_batch(tail.header.mark, first, records, tail.head)
        self._with_reserve(lambda: self._take_room(room), critical)
        self._write(batch)
        tail.index.note(first, tail.position)
        tail.position += room
        tail.head = head
        tail.newest_stamp = _newest_stamp(records, tail.newest_stamp)
        tail.end_offset = first + len(records)
        self._mark.publish(tail.end_offset)
        self._wake()
        return first

    def jump(self, offset: int) -> None:
        """Let the next record take `offset`: in a copy of a log whose offsets jump there.

        Raises CommitFailed for an offset that was used, LogFull and LogFailed as `commit`.
        """
        if offset < self.end_offset():
            raise CommitFailed(f"offset {offset} was used, the next one is {self.end_offset()}")
        if offset > self.end_offset():
            self._with_reserve(lambda: self._roll(offset), True)

    def close(self) -> None:
        """Give back room taken ahead, write the manifest, let the lock go."""
        if self._failed is None:
            with suppress(OSError):
                self.disk.truncate(self._tail.fd, self._tail.position)
                self._sync()
                self._note(SegmentState.OPEN, "", self._tail.position)
        self._reader.close()
        self._mark.close()
        os.close(self._tail.fd)
        self._lock.release()

    # Parts of a commit ---------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        """Write at the tail and make it durable, without moving the tail."""
        tail = self._tail
        try:
            self.disk.write(tail.fd, data, tail.position)
        except OSError as problem:
            if is_full(problem):
                with suppress(OSError):
                    self.disk.truncate(tail.fd, tail.position)
                tail.allocated = tail.position
                self.reserve.mark_full()
                raise LogFull(f"{self.folder}: {problem}: nothing of the batch was kept") from problem
            self._fail(f"write failed: {problem}")
        try:
            self._sync()
        except OSError as problem:
            self._fail(f"fdatasync failed: {problem}")

    def _sync(self) -> None:
        if self.settings.durable:
            self.disk.sync(self._tail.fd)

    def _fail(self, what: str) -> NoReturn:
        """Seal at the last durable byte as well as can be, and be over."""
        self._failed = what
        with suppress(OSError):
            self.disk.truncate(self._tail.fd, self._tail.position)
        end = self.end_offset()
        raise LogFailed(f"{self.folder}: {what}; the log ends before offset {end}: exit and start again")

    def _take_room(self, size: int) -> None:
        """Room ahead of the next write, in steps. Raises OSError when the disk is full."""
        tail = self._tail
        upto = tail.position + size
        if upto <= tail.allocated:
            return
        target = max(upto, min(tail.position + self.settings.allocate_bytes, self.settings.segment_bytes))
        start = max(tail.position, tail.allocated)
        try:
            self.disk.write_zeros(tail.fd, start, target - start)
        except OSError as problem:
            with suppress(OSError):
                self.disk.truncate(tail.fd, start)
            if not is_full(problem) or target == upto:
                raise
            self.disk.write_zeros(tail.fd, start, upto - start)
            target = upto
        tail.allocated = target

    def _with_reserve(self, act: Callable[[], None], critical: bool) -> None:
        """Do what needs room; on a full disk give the reserve up for it, step by step."""
        while True:
            try:
                return act()
            except OSError as problem:
                if not is_full(problem):
                    self._fail(str(problem))
                self.reserve.mark_full()
                if not critical or not self.reserve.held_bytes:
                    raise LogFull(f"{self.folder}: {problem}: free some room on the disk") from problem
            self.reserve.give_up_step()

    def _must_roll(self, size: int) -> bool:
        tail, created = self._tail, self._tail.header.created
        if tail.position == HEADER_BYTES:
            return False
        if tail.position + size > self.settings.segment_bytes:
            return True
        return bool(created) and tail.newest_stamp - created > self.settings.segment_age_us

    def _roll(self, first: int | None = None) -> None:
        """Seal the segment and open the next one, at the same offset or at `first`.

        Repeatable until it succeeds.
        """
        tail = self._tail
        end, stamp = tail.end_offset, tail.newest_stamp
        footer, head = encode_footer(tail.header, end, tail.index.entries, tail.head, tail.position)
        self._take_room(len(footer))
        begin = end if first is None else first
        header = SegmentHeader(self._log_id, begin, os.urandom(MARK_BYTES), stamp, head)
        fd = prepare_segment(self.disk, self.folder, header)
        try:
            self._write(footer)
            self.disk.truncate(tail.fd, tail.position + len(footer))
            self._sync()
            name_segment(self.disk, self.folder, header)
        except BaseException:
            os.close(fd)
            raise
        self._note(SegmentState.SEALED, head.hex(), tail.position + len(footer))
        os.close(tail.fd)
        at = HEADER_BYTES
        self._tail = OpenTail(fd, header, at, at, begin, chain_start(header), IndexBuilder(), stamp)

    # Notes and news ------------------------------------------------------------------

    def _note(self, state: SegmentState, head: str, size: int) -> None:
        tail, header = self._tail, self._tail.header
        first, before = header.first_offset, header.previous_head.hex()
        info = SegmentInfo(
            first, tail.end_offset, header.created, tail.newest_stamp, size, size, before, head, state
        )
        with self.manifest_lock:
            self.manifest[first] = info
            write_manifest(self.disk, self.folder, self._log_id, self.manifest)

    def _wake(self) -> None:
        for loop, event in self._waiters[:]:
            with suppress(RuntimeError):  # a loop that was closed has nobody waiting
                loop.call_soon_threadsafe(event.set)


def _newest_stamp(records: Sequence[bytes], before: int) -> int:
    """Log time of the last owner's record in a batch, looked for near its end."""
    for record in reversed(records[-STAMP_SEARCH_RECORDS_MAX:]):
        stamp = owner_stamp(record)
        if stamp is not None:
            return stamp
    return before
