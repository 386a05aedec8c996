"""The reading side of a segment log, in any process, with or without a living owner.

Beside a living owner a reader sees what the durable mark says; without one it sees every
batch that checks. It keeps one segment open, follows the chain from batch to batch, and
goes on through roll, compression and retention: a file that was replaced stays readable
while it is open, a hole before the next segment is told from a jump of offsets by the
chain. What does not check below the visible end is LogCorrupt, never skipped.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingest.log.durable_mark import DurableMarkReader
from ingest.log.segment_files import LogAbsent, has_owner, log_folder, stored_segments
from ingest.log.segment_store import StoredSegment
from projections.events.ports import LogCorrupt, OffsetGone, RecordBatch
from projections.events.segment_format import (
    HEADER_BYTES,
    MARK_BYTES,
    IndexBuilder,
    SegmentRefused,
    chain_start,
    frame_records,
    frame_size,
    read_frame,
)
from projections.events.segment_scan import StopKind, scan

POLL_S_MIN = 0.001
POLL_S_MAX = 0.01  # reached after about 30 ms without news
POLL_GROWTH = 1.3
FIRST_READ_BYTES = 64 << 10
READ_BYTES = 1 << 20


@dataclass(slots=True)
class _Cursor:
    """A place between two batches of an open segment.

    offset: due next. floor: after the batch before it; lower than `offset` after a jump.
    head:   chain head there, None where it is not known.
    """

    segment: StoredSegment
    position: int
    floor: int
    offset: int
    head: bytes | None


class SegmentReader:
    """LogReader over a folder of segments. For one thread."""

    def __init__(self, folder: Path, visible_end: Callable[[], int] | None = None) -> None:
        """visible_end: the owner's own word in its process, else the durable mark is asked.

        Raises LogAbsent, LogCorrupt.
        """
        self._folder = folder
        self._visible_end = visible_end
        self._mark: DurableMarkReader | None = None
        self._mark_when_dead = -1  # the mark while no owner lived; then the scanned end holds
        self._dead_end = 0
        self._broken: LogCorrupt | None = None
        self._cursor: _Cursor | None = None
        self._walked: dict[int, IndexBuilder] = {}
        self._firsts = stored_segments(folder)
        if not self._firsts:
            raise LogAbsent(f"no log at {folder}: check the path, or start the owner first")
        first = StoredSegment(folder, self._firsts[0])
        self._log_id = first.header.log_id
        first.close()
        if visible_end is None:
            self._find_end()

    @classmethod
    def open(cls, data: Path) -> SegmentReader:
        """The log of a data directory."""
        return cls(log_folder(data))

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    def first_offset(self) -> int:
        """See LogReader."""
        self._firsts = stored_segments(self._folder) or self._firsts
        return self._firsts[0]

    def end_offset(self) -> int:
        """See LogReader."""
        if self._visible_end is not None:
            return self._visible_end()
        if self._mark is None:
            self._mark = self._find_mark()  # an owner may have come meanwhile
        marked = self._mark.end_offset() if self._mark is not None else -1
        if self._mark_when_dead == marked:
            return self._dead_end
        self._broken = None
        return marked

    def acknowledged_end(self) -> int:
        """What the durable mark says, whether that is there or not; -1 without a mark."""
        return self._mark.end_offset() if self._mark is not None else -1

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        end = self.end_offset()
        if start >= end:
            if self._broken is not None:
                raise self._broken
            return []
        cursor = self._cursor
        if cursor is None or not cursor.floor <= start <= cursor.offset:
            cursor = self._seek(start)
        found: list[RecordBatch] = []
        size, want = 0, min(FIRST_READ_BYTES, max(4096, bytes_max))
        while cursor.offset < end and (size < bytes_max or not found):  # walking to `start` may cost more
            buffer = cursor.segment.read_at(cursor.position, want)
            taken = self._take(cursor, buffer, start, end, max(1, bytes_max - size), found)
            size += taken
            if taken == 0:
                step = self._unfinished(cursor, buffer, end)
                if step is None:
                    break
                want = step
            else:
                want = READ_BYTES
        return found

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader. Looks at the shared mark, sparsely once nothing happens."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        pause = POLL_S_MIN
        while self.end_offset() <= offset and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(pause * POLL_GROWTH, POLL_S_MAX)

    def close(self) -> None:
        """Close files; reading again opens them again."""
        if self._cursor is not None:
            self._cursor.segment.close()
            self._cursor = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    # Finding places ------------------------------------------------------------------

    def _find_end(self) -> None:
        """Learn how far may be read: the mark of a living owner, else a scan of the last segment."""
        self._mark = self._find_mark()
        if self._mark is not None and has_owner(self._folder):
            return
        self._mark_when_dead = self._mark.end_offset() if self._mark is not None else -1
        segment = StoredSegment(self._folder, self._firsts[-1])
        try:
            footer = segment.footer()
            if footer is not None:
                self._dead_end = footer[0].first_offset
                return
            found = scan(segment.read_at(0, segment.size()), segment.header)
        finally:
            segment.close()
        self._dead_end = found.end_offset
        if found.stop.kind is StopKind.CORRUPT:
            self._broken = corrupt_at(segment.name, found.stop.offset, found.stop.position, found.stop.detail)

    def _find_mark(self) -> DurableMarkReader | None:
        try:
            return DurableMarkReader(self._folder, self._log_id)
        except (FileNotFoundError, ValueError):
            return None

    def _seek(self, start: int) -> _Cursor:
        """A cursor at the nearest known batch at or before `start`."""
        for _ in range(3):  # retention or compression may take a file away in between
            self._firsts = stored_segments(self._folder)
            if not self._firsts or start < self._firsts[0]:
                raise OffsetGone(start, self._firsts[0] if self._firsts else self.end_offset())
            first = self._firsts[bisect_right(self._firsts, start) - 1]
            try:
                segment = StoredSegment(self._folder, first)
                break
            except FileNotFoundError:
                continue
        else:
            raise OffsetGone(start, self.first_offset())
        footer = segment.footer()
        entries = footer[1] if footer is not None else self._index_of(first).entries
        at = bisect_right(entries, start, key=lambda entry: entry.first_offset) - 1
        if at > 0:
            return self._move(
                _Cursor(
                    segment, entries[at].position, entries[at].first_offset, entries[at].first_offset, None
                )
            )
        return self._move(_Cursor(segment, HEADER_BYTES, first, first, chain_start(segment.header)))

    def _move(self, cursor: _Cursor) -> _Cursor:
        if self._cursor is not None:
            self._cursor.segment.close()
        self._cursor = cursor
        return cursor

    def _index_of(self, first: int) -> IndexBuilder:
        """What this reader has walked over of an open segment; only the newest is kept."""
        if first not in self._walked:
            self._walked = {first: IndexBuilder()}
        return self._walked[first]

    # Taking batches ------------------------------------------------------------------

    def _take(
        self, cursor: _Cursor, buffer: bytes, start: int, end: int, bytes_max: int, found: list[RecordBatch]
    ) -> int:
        """Move over the whole batches in `buffer`; those that reach beyond `start` go to `found`.

        Returns the bytes moved over.
        """
        mark = cursor.segment.header.mark
        walked = self._index_of(cursor.segment.header.first_offset)
        at, taken = 0, 0
        while cursor.offset < end and taken < bytes_max:
            size = frame_size(buffer, at, mark)
            if size is None or at + size > len(buffer):
                break
            try:
                frame = read_frame(buffer, at, mark, cursor.head)
                if frame.first_offset != cursor.offset:
                    raise SegmentRefused(f"batch of offset {frame.first_offset}, {cursor.offset} is due")
                after = cursor.offset + frame.records
                if after > start:
                    records = frame_records(buffer, frame)
                    skip = max(0, start - cursor.offset)
                    found.append(RecordBatch(cursor.offset + skip, records[skip:] if skip else records))
            except SegmentRefused as refusal:
                raise self._corrupt(cursor, str(refusal)) from refusal
            if after > start:
                taken += size
            walked.note(frame.first_offset, cursor.position)
            cursor.position += size
            cursor.floor = cursor.offset = after
            cursor.head = frame.head
            at = frame.end
        return max(taken, 1) if at else 0

    def _unfinished(self, cursor: _Cursor, buffer: bytes, end: int) -> int | None:
        """No whole batch in the buffer: bytes to read next time, None at the end, or LogCorrupt."""
        header = cursor.segment.header
        size = frame_size(buffer, 0, header.mark)
        if size is not None and size > len(buffer):
            whole = cursor.segment.read_at(cursor.position, size)
            if len(whole) == size:
                return max(size, READ_BYTES)
            raise self._corrupt(cursor, f"batch of {size} bytes, {len(whole)} are there")
        if buffer[:MARK_BYTES] == header.footer_mark:
            return FIRST_READ_BYTES if self._go_on(cursor) else None
        raise self._corrupt(cursor, f"no batch, though the log reaches to offset {end}")

    def _go_on(self, cursor: _Cursor) -> bool:
        """Move `cursor` from a footer to the next segment; False where there is none yet."""
        footer = cursor.segment.footer()
        if footer is None:
            raise self._corrupt(cursor, "a footer that does not end the segment")
        here = cursor.segment.header.first_offset
        for _ in range(3):
            self._firsts = stored_segments(self._folder)
            later = [first for first in self._firsts if first > here]
            if not later:
                return False
            try:
                segment = StoredSegment(self._folder, later[0])
                break
            except FileNotFoundError:
                continue
        else:
            raise OffsetGone(cursor.offset, self.first_offset())
        if segment.header.previous_head != footer[0].head:
            segment.close()
            if self._firsts[0] == later[0]:
                raise OffsetGone(cursor.offset, later[0])
            raise self._corrupt(cursor, f"segment {segment.name} does not continue it")
        cursor.segment.close()
        cursor.segment, cursor.position = segment, HEADER_BYTES
        cursor.offset, cursor.head = segment.header.first_offset, chain_start(segment.header)
        return True

    def _corrupt(self, cursor: _Cursor, detail: str) -> LogCorrupt:
        return corrupt_at(cursor.segment.name, cursor.offset, cursor.position, detail)


def corrupt_at(name: str, offset: int, position: int, detail: str) -> LogCorrupt:
    """The error for bytes that were durable and do not check."""
    return LogCorrupt(
        f"segment {name}, offset {offset}, byte {position}: {detail}: "
        f"records before offset {offset} are good; restore the file from a copy, "
        "or move it and later ones aside"
    )
