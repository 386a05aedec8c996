"""Judging the bytes of a whole segment: what stands in it, and where it stops to check.

A scan follows the chain from the header. Whatever does not continue it is judged by what
comes after: only zeros are room taken ahead; the footer ends a sealed segment; a bad
frame with nothing good behind it is a torn tail, the mark of a crash; a bad frame with a
good batch behind it is corruption, for a crash tears only the end. A later batch counts
as good by its mark and the check words of all its records, since its place in the chain
cannot be known any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from projections.events.segment_format import (
    HEADER_BYTES,
    TAIL_BYTES,
    Frame,
    IndexBuilder,
    IndexEntry,
    SegmentHeader,
    SegmentRefused,
    chain_start,
    footer_position,
    frame_records,
    read_footer,
    read_frame,
    record_checks,
)


class StopKind(Enum):
    """How a scan ended."""

    CLEAN = "clean"  # no byte, or only zeros, after the last batch
    SEALED = "sealed"  # at the footer
    TORN = "torn"  # a frame that does not check, and no good one after it
    CORRUPT = "corrupt"  # a frame that does not check, and a good one after it


class Stop(NamedTuple):
    """Where a scan ended: position in the bytes, offset that was expected there, why."""

    kind: StopKind
    position: int
    offset: int
    detail: str = ""


class Scan(NamedTuple):
    """What a scan found. head: after the last frame that checks; entries: as a footer holds them."""

    batches: list[Frame]
    end_offset: int
    head: bytes
    stop: Stop
    entries: list[IndexEntry]


def scan(data: bytes, header: SegmentHeader) -> Scan:
    """All batches of a whole segment, and the exact place and kind of the first thing that does not check.

    data: the segment's bytes from its header on. A batch must continue the chain, begin at
    or beyond the offset after the one before it, and hold records that add up to its size.
    """
    head = chain_start(header)
    batches: list[Frame] = []
    index = IndexBuilder()
    offset, position = header.first_offset, HEADER_BYTES
    while True:
        try:
            frame = read_frame(data, position, header.mark, head)
            if frame.first_offset != offset:
                raise SegmentRefused(f"the batch says offset {frame.first_offset}, {offset} is due")
            frame_records(data, frame)
        except SegmentRefused as refusal:
            stop, head = _stop_at(data, position, offset, header, head, str(refusal))
            return Scan(batches, offset, head, stop, index.entries)
        batches.append(frame)
        index.note(frame.first_offset, frame.position)
        offset, position, head = offset + frame.records, frame.end, frame.head


def _stop_at(
    data: bytes, position: int, offset: int, header: SegmentHeader, head: bytes, detail: str
) -> tuple[Stop, bytes]:
    """Judge what stands where a batch was due; the second value is the last good chain head."""
    if is_zero(data, position):
        return Stop(StopKind.CLEAN, position, offset), head
    try:
        footer, _ = read_footer(data, position, header, head)
        if footer.first_offset == offset and footer_position(data[-TAIL_BYTES:], header) == position:
            return Stop(StopKind.SEALED, position, offset), footer.head
        detail = f"a footer of offset {footer.first_offset} in a wrong place, {offset} is due"
    except SegmentRefused:
        pass
    for later in good_frames_after(data, position, header):
        detail = f"{detail}; a good batch with offset {later.first_offset} follows at byte {later.position}"
        return Stop(StopKind.CORRUPT, position, offset, detail), head
    if _is_sealed(data, header):
        return Stop(StopKind.CORRUPT, position, offset, f"{detail}; the segment was sealed"), head
    return Stop(StopKind.TORN, position, offset, detail), head


def is_zero(data: bytes, position: int) -> bool:
    """Whether only zeros follow: room that was taken ahead, never written."""
    rest = len(data) - position
    return data.count(0, position) == rest if rest else True


def good_frames_after(data: bytes, position: int, header: SegmentHeader) -> Iterator[Frame]:
    """Batches beyond `position` whose records all carry right check words, chain or not."""
    at = data.find(header.mark, position + 1)
    while at >= 0:
        try:
            frame = read_frame(data, at, header.mark, None)
            if all(map(record_checks, frame_records(data, frame))):
                yield frame
        except SegmentRefused:
            pass
        at = data.find(header.mark, at + 1)


def _is_sealed(data: bytes, header: SegmentHeader) -> bool:
    position = footer_position(data[-TAIL_BYTES:], header)
    if position is None or position > len(data):
        return False
    try:
        read_footer(data, position, header, None)
    except SegmentRefused:
        return False
    return True
