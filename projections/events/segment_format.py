"""Bytes of a segment: header, commit batches, footer, and the chain that binds them.

    segment  = header | batch ... | footer            (an open segment has no footer yet)
    header   = 128 bytes, names the log, the first offset and the chain head before it
    batch    = frame whose payload is: u32 length of each record | the records
    footer   = frame whose payload is a sparse index, then 16 bytes that find it from the end
    frame    = mark (8) | offset u64 | count u32 | payload bytes u32 | head (32) | payload

All numbers are little-endian. A frame's mark is drawn per segment, so that no record's
content and no stale disk block can pass for a frame. The chain: the head of a header is
blake3(header); the head after a frame is blake3(head before | first 24 bytes | payload).
The next segment's header holds the head after this one's footer. Records carry their
own check words (see `codec`); there is no third scheme.

The same bytes serve the log, checkpoints and captures; `docs/log-format.md` describes
them for other languages. Everything here is a function over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import xxhash
from blake3 import blake3

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX

FORMAT_VERSION = 1
HEADER_BYTES = 128
FRAME_HEAD_BYTES = 56
HEAD_BYTES = 32
MARK_BYTES = 8
TAIL_BYTES = 16  # of a sealed segment: position of the footer u64 | footer mark
INDEX_STEP_BYTES = 1 << 20  # a batch that begins this far beyond the last entry gets one
PAYLOAD_BYTES_MAX = COMMIT_BATCH_BYTES_MAX + 4 * COMMIT_BATCH_RECORDS_MAX
INDEX_ENTRIES_MAX = 1 << 18  # of one footer: 256 GiB of batches

_MAGIC = b"PICKLOG\n"
_HEADER = struct.Struct("<8sHHI16sQ8sQ32s32x")  # 120 bytes, the check word follows
_FRAME = struct.Struct("<8sQII")
_CHECK = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQ")
_TAIL = struct.Struct("<Q8s")
_INVERT = bytes(255 - byte for byte in range(256))
_RECORD_BYTES_MIN = 11  # schema, the shortest array, check word


class SegmentHeader(NamedTuple):
    """What a segment says of itself.

    log_id:        16 bytes, the same in all segments of a log.
    first_offset:  of the first batch that may stand here.
    mark:          8 bytes drawn for this segment; begins each of its batches.
    created:       log time of the owner's newest record when it was opened, microseconds.
    previous_head: chain head after the segment before it, zeros for the first of a log.
    """

    log_id: bytes
    first_offset: int
    mark: bytes
    created: int
    previous_head: bytes

    @property
    def footer_mark(self) -> bytes:
        """Begins the footer: the batch mark with every bit inverted."""
        return self.mark.translate(_INVERT)


class Frame(NamedTuple):
    """A batch (or footer) that checks: where it stands and what it says.

    first_offset: of its first record; in a footer the offset after the last record.
    records:      how many; in a footer the number of index entries.
    head:         chain head after it.
    """

    position: int
    end: int
    first_offset: int
    records: int
    head: bytes


class IndexEntry(NamedTuple):
    """A batch that a reader may start at."""

    first_offset: int
    position: int


class SegmentRefused(ValueError):
    """Bytes that are no segment header, frame or footer; says why."""


# Header ------------------------------------------------------------------------------


def encode_header(header: SegmentHeader) -> bytes:
    """The 128 bytes that a segment begins with."""
    body = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        HEADER_BYTES,
        0,
        header.log_id,
        header.first_offset,
        header.mark,
        header.created,
        header.previous_head,
    )
    return body + _CHECK.pack(xxhash.xxh3_64_intdigest(body))


def decode_header(data: bytes) -> SegmentHeader:
    """The header that `data` begins with. Raises SegmentRefused."""
    if len(data) < HEADER_BYTES:
        raise SegmentRefused(f"{len(data)} bytes are too few for a segment header")
    body = data[: _HEADER.size]
    magic, version, size, flags, log_id, first, mark, created, previous = _HEADER.unpack(body)
    if magic != _MAGIC:
        raise SegmentRefused("no segment of a log: the first 8 bytes differ")
    if _CHECK.unpack_from(data, _HEADER.size)[0] != xxhash.xxh3_64_intdigest(body):
        raise SegmentRefused("the check word of the segment header differs")
    if version != FORMAT_VERSION or size != HEADER_BYTES or flags != 0:
        raise SegmentRefused(f"segment format {version} is newer than this release reads ({FORMAT_VERSION})")
    return SegmentHeader(log_id, first, mark, created, previous)


def chain_start(header: SegmentHeader) -> bytes:
    """Chain head before the first batch of a segment."""
    return blake3(encode_header(header)).digest()


# Frames ------------------------------------------------------------------------------


def encode_batch(
    mark: bytes, first_offset: int, records: Sequence[bytes], head: bytes
) -> tuple[bytes, bytes]:
    """One commit batch after `head`: its bytes and the chain head after it.

    Raises ValueError above the batch ceilings, or for no record.
    """
    count = len(records)
    if not 0 < count <= COMMIT_BATCH_RECORDS_MAX:
        raise ValueError(f"a batch of {count} records: 1 to {COMMIT_BATCH_RECORDS_MAX} are allowed")
    payload = struct.pack(f"<{count}I", *map(len, records)) + b"".join(records)
    if len(payload) - 4 * count > COMMIT_BATCH_BYTES_MAX:
        raise ValueError(f"a batch of {len(payload)} bytes is above {COMMIT_BATCH_BYTES_MAX}")
    return _frame(mark, first_offset, count, payload, head)


def encode_footer(
    header: SegmentHeader, end_offset: int, index: Sequence[IndexEntry], head: bytes, position: int
) -> tuple[bytes, bytes]:
    """The footer that seals a segment at byte `position`: its bytes and the last chain head."""
    payload = b"".join(_ENTRY.pack(*entry) for entry in index)
    frame, after = _frame(header.footer_mark, end_offset, len(index), payload, head)
    return frame + _TAIL.pack(position, header.footer_mark), after


def _frame(mark: bytes, offset: int, count: int, payload: bytes, head: bytes) -> tuple[bytes, bytes]:
    start = _FRAME.pack(mark, offset, count, len(payload))
    after = blake3(head).update(start).update(payload).digest()
    return b"".join((start, after, payload)), after


def frame_size(data: bytes, position: int, mark: bytes) -> int | None:
    """Bytes of the frame at `position`, from its first 24 bytes; None if it cannot be one."""
    if len(data) - position < FRAME_HEAD_BYTES:
        return None
    found, _, count, size = _FRAME.unpack_from(data, position)
    if found != mark or size > PAYLOAD_BYTES_MAX or not 0 < count <= COMMIT_BATCH_RECORDS_MAX:
        return None
    return FRAME_HEAD_BYTES + int(size) if size >= count * (4 + _RECORD_BYTES_MIN) else None


def read_frame(data: bytes, position: int, mark: bytes, head: bytes | None) -> Frame:
    """The batch at `position`. Raises SegmentRefused.

    head: chain head before it, None to take the batch's own word (a reader that starts in
    the middle; the records' check words remain).
    """
    size = frame_size(data, position, mark)
    if size is None:
        raise SegmentRefused("no batch begins here")
    end = position + size
    if end > len(data):
        raise SegmentRefused(f"batch of {size} bytes, {len(data) - position} are there")
    _, first, count, _ = _FRAME.unpack_from(data, position)
    after = data[position + _FRAME.size : position + FRAME_HEAD_BYTES]
    if head is not None and _head_after(data, position, end, head) != after:
        raise SegmentRefused("the batch does not continue the hash chain")
    return Frame(position, end, first, count, after)


def _head_after(data: bytes, position: int, end: int, head: bytes) -> bytes:
    view = memoryview(data)
    chain = blake3(head).update(view[position : position + _FRAME.size])
    return chain.update(view[position + FRAME_HEAD_BYTES : end]).digest()


def frame_records(data: bytes, frame: Frame) -> list[bytes]:
    """The records of a batch, in order. Raises SegmentRefused where lengths do not add up."""
    start = frame.position + FRAME_HEAD_BYTES
    lengths = struct.unpack_from(f"<{frame.records}I", data, start)
    ends = [*accumulate(lengths, initial=start + 4 * frame.records)]
    if ends[-1] != frame.end or max(lengths) > RECORD_BYTES_MAX:
        raise SegmentRefused("lengths of records do not add up to the batch")
    return [data[begin:end] for begin, end in pairwise(ends)]


# Footer ------------------------------------------------------------------------------


def footer_position(tail: bytes, header: SegmentHeader) -> int | None:
    """Where the footer begins, from a segment's last TAIL_BYTES; None for an open segment."""
    if len(tail) != TAIL_BYTES:
        return None
    position, mark = _TAIL.unpack(tail)
    return int(position) if mark == header.footer_mark and position >= HEADER_BYTES else None


def read_footer(
    data: bytes, position: int, header: SegmentHeader, head: bytes | None
) -> tuple[Frame, list[IndexEntry]]:
    """The footer at `position` of `data`, with its index. Raises SegmentRefused.

    The footer must end the bytes.
    """
    if len(data) - position < FRAME_HEAD_BYTES + TAIL_BYTES:
        raise SegmentRefused("too few bytes for a footer")
    mark, end_offset, count, size = _FRAME.unpack_from(data, position)
    if mark != header.footer_mark or count > INDEX_ENTRIES_MAX or size != count * _ENTRY.size:
        raise SegmentRefused("no footer begins here")
    end = position + FRAME_HEAD_BYTES + size
    if len(data) != end + TAIL_BYTES or data[end + 8 :] != header.footer_mark:
        raise SegmentRefused("the footer does not end the segment")
    after = data[position + _FRAME.size : position + FRAME_HEAD_BYTES]
    if head is not None and _head_after(data, position, end, head) != after:
        raise SegmentRefused("the footer does not continue the hash chain")
    entries = [
        IndexEntry(*_ENTRY.unpack_from(data, at))
        for at in range(position + FRAME_HEAD_BYTES, end, _ENTRY.size)
    ]
    return Frame(position, end + TAIL_BYTES, end_offset, count, after), entries


class IndexBuilder:
    """Chooses the batches that a sparse index names, while they are written or scanned."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self._next = 0

    def note(self, first_offset: int, position: int) -> None:
        """A batch begins at `position`."""
        if position >= self._next and len(self.entries) < INDEX_ENTRIES_MAX:
            self.entries.append(IndexEntry(first_offset, position))
            self._next = position + INDEX_STEP_BYTES


def record_checks(record: bytes) -> bool:
    """Whether a record's check word is that of its bytes."""
    if len(record) < _RECORD_BYTES_MIN:
        return False
    word: int = _CHECK.unpack_from(record, len(record) - 8)[0]
    return word == xxhash.xxh3_64_intdigest(record[:-8])
