"""Walking a whole log: check words, order and hash chain, from the oldest kept segment on.

The oldest kept segment's header names the chain head before it: the anchor, which the
check has to take as given. Everything after it follows from the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ingest.log.segment_files import segment_name, stored_segments
from ingest.log.segment_store import StoredSegment
from projections.events.ports import LogCorrupt
from projections.events.segment_format import (
    HEADER_BYTES,
    MARK_BYTES,
    TAIL_BYTES,
    SegmentRefused,
    chain_start,
    footer_position,
    frame_records,
    frame_size,
    read_footer,
    read_frame,
    record_checks,
)
from projections.events.segment_scan import is_zero

READ_BYTES = 4 << 20


class FirstBad(NamedTuple):
    """The first thing that does not check. byte: in the plain form of the segment."""

    segment: str
    offset: int
    byte: int
    what: str


@dataclass(slots=True)
class LogCheck:
    """What a check found. anchor: chain head before the oldest kept segment; head: after the last batch."""

    log_id: bytes
    first_offset: int
    end_offset: int
    anchor: bytes
    head: bytes
    segments: int = 0
    batches: int = 0
    records: int = 0
    torn_bytes: int = 0  # of an unfinished batch at the end, which the next owner cuts
    first_bad: FirstBad | None = None


def check_log(folder: Path, end: int, advance: Callable[[int], None] = lambda offset: None) -> LogCheck:
    """Check everything before offset `end`, which the reader of the log told.

    advance(offset): told now and then how far the check is. Raises FileNotFoundError for
    a log that is not there.
    """
    firsts = [first for first in stored_segments(folder) if first <= end]
    if not firsts:
        raise FileNotFoundError(f"{folder}: no log")
    result = LogCheck(b"", firsts[0], firsts[0], b"", b"")
    for index, first in enumerate(firsts):
        try:
            segment = StoredSegment(folder, first)
        except LogCorrupt as problem:
            result.first_bad = FirstBad(segment_name(first), first, 0, str(problem))
            return result
        try:
            if index == 0:
                result.log_id = segment.header.log_id
                result.anchor = result.head = segment.header.previous_head
            _Walk(segment, result, end, advance).walk(is_last=index + 1 == len(firsts))
        except LogCorrupt as problem:
            result.first_bad = FirstBad(segment.name, result.end_offset, 0, str(problem))
        finally:
            segment.close()
        if result.first_bad is not None:
            return result
        result.segments += 1
    return result


class _Walk:
    """Checks one segment; what it finds goes to `result`."""

    def __init__(
        self, segment: StoredSegment, result: LogCheck, end: int, advance: Callable[[int], None]
    ) -> None:
        self._segment = segment
        self._result = result
        self._end = end
        self._advance = advance
        self._position = HEADER_BYTES

    def walk(self, is_last: bool) -> None:
        header, result = self._segment.header, self._result
        if header.log_id != result.log_id:
            return self._bad("it is of another log")
        if header.previous_head != result.head:
            return self._bad("it does not continue the segment before it")
        if header.first_offset < result.end_offset:
            return self._bad(f"it begins at offset {header.first_offset}, {result.end_offset} is due")
        result.head, result.end_offset = chain_start(header), header.first_offset
        while True:
            buffer = self._segment.read_at(self._position, READ_BYTES)
            size = frame_size(buffer, 0, header.mark)
            if size is not None and size > len(buffer):
                buffer = self._segment.read_at(self._position, size)
            if not self._frames(buffer):
                return self._finish(buffer, is_last)
            self._advance(result.end_offset)

    def _frames(self, buffer: bytes) -> bool:
        """Check the whole batches in `buffer`; False where not even one is good."""
        header, result, at = self._segment.header, self._result, 0
        while (size := frame_size(buffer, at, header.mark)) is not None and at + size <= len(buffer):
            if result.end_offset >= self._end:
                break
            try:
                frame = read_frame(buffer, at, header.mark, result.head)
                records = frame_records(buffer, frame)
            except SegmentRefused:
                break
            wrong = next((n for n, record in enumerate(records) if not record_checks(record)), None)
            if wrong is not None or frame.first_offset != result.end_offset:
                break
            result.batches += 1
            result.records += frame.records
            result.end_offset += frame.records
            result.head = frame.head
            self._position += size
            at = frame.end
        return at > 0

    def _finish(self, buffer: bytes, is_last: bool) -> None:
        """No good batch stands at the position: the end of the segment, or the first bad thing."""
        header, result = self._segment.header, self._result
        if buffer[:MARK_BYTES] == header.footer_mark:
            rest = self._segment.read_at(self._position, self._segment.size() - self._position)
            try:
                footer, _ = read_footer(rest, 0, header, result.head)
            except SegmentRefused as refusal:
                return self._bad(str(refusal))
            if footer.first_offset != result.end_offset:
                return self._bad(f"the footer says offset {footer.first_offset}, {result.end_offset} is due")
            if footer_position(rest[-TAIL_BYTES:], header) != self._position:
                return self._bad("the end of the segment names another place for the footer")
            result.head = footer.head
            return None
        if is_last and result.end_offset >= self._end:
            if not is_zero(buffer, 0):
                result.torn_bytes = len(buffer.rstrip(b"\0"))
            return None
        return self._bad(self._reason(buffer))

    def _reason(self, buffer: bytes) -> str:
        header, result = self._segment.header, self._result
        try:
            frame = read_frame(buffer, 0, header.mark, result.head)
            records = frame_records(buffer, frame)
        except SegmentRefused as refusal:
            return str(refusal)
        if frame.first_offset != result.end_offset:
            return f"batch of offset {frame.first_offset}, {result.end_offset} is due"
        wrong = next((n for n, record in enumerate(records) if not record_checks(record)), 0)
        return f"the check word of record {frame.first_offset + wrong} differs"

    def _bad(self, what: str) -> None:
        result = self._result
        result.first_bad = FirstBad(self._segment.name, result.end_offset, self._position, what)
