"""Copying a log record by record: what a target must offer, and what proves that both ends are equal.

A copy has the records of its source at the same offsets, also where they jump, under the same
log id. It goes on behind the last record that it has, if the source has the very same one there
(offset and check word), so it may be ended at any point and called again. A log that does not
begin at offset 0 can be folded only from a checkpoint, so a copy begins with that: its base.

Source: issue "Many machines", point 8; decisions 5 (positions are offset and check word), 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from blake3 import blake3

from projections.events.codec import check_word
from projections.events.ports import CheckpointInfo, LogError, LogReader, RecordBatch

READ_BYTES = 1 << 20
LOOK_BACK_RECORDS = (1, 64, 4_096, 1 << 20, 1 << 62)
FRAME_BYTES = 8


class CopyRefused(LogError):
    """The target holds something else, or the source cannot be copied whole; says which and what to do."""


class Base(NamedTuple):
    """The checkpoint that a copy begins with. records: its held records, in order, each time anew."""

    info: CheckpointInfo
    records: Callable[[], Iterator[bytes]]


class CopyTarget(Protocol):
    """Where a log is copied to."""

    @property
    def log_id(self) -> bytes | None:
        """Of the log that is there; None where nothing is."""

    def begin(self, log_id: bytes, first_offset: int, base: Base | None) -> None:
        """Begin a copy where nothing is: all of the base, or nothing, is there afterwards."""

    def take(self, batches: Sequence[RecordBatch]) -> None:
        """The next records, durable on return. Offsets grow, and may jump."""

    def reader(self) -> LogReader:
        """A reader of what is there. Closed with the target."""

    def close(self) -> None:
        """Give the target back."""


class LogDigest(NamedTuple):
    """What two equal stretches of a log have in common: their offsets, count and blake3 digest."""

    first_offset: int
    end_offset: int
    records: int
    digest: bytes


def copy_records(
    source: LogReader, target: CopyTarget, start: int, stop: int, on_progress: Callable[[int], object]
) -> int:
    """Copy start..stop-1; how many records that were. Raises what both ends raise."""
    copied = 0
    while start < stop and (batches := source.read(start, READ_BYTES)):
        batches = [batch for batch in _before(batches, stop) if batch.records]
        if not batches:
            break
        target.take(batches)
        copied += sum(len(batch.records) for batch in batches)
        start = batches[-1].first_offset + len(batches[-1].records)
        on_progress(start)
    return copied


def digest_log(reader: LogReader, start: int, stop: int, on_progress: Callable[[int], object]) -> LogDigest:
    """Of the records at start..stop-1: each one's offset, length and bytes, in order."""
    digest, records, offset = blake3(), 0, start
    while offset < stop and (batches := reader.read(offset, READ_BYTES)):
        for batch in _before(batches, stop):
            for offset, data in enumerate(batch.records, batch.first_offset):
                digest.update(offset.to_bytes(FRAME_BYTES, "big") + len(data).to_bytes(FRAME_BYTES, "big"))
                digest.update(data)
            records += len(batch.records)
        offset = batches[-1].first_offset + len(batches[-1].records)
        on_progress(min(offset, stop))
    return LogDigest(start, stop, records, digest.digest())


def last_record(reader: LogReader) -> tuple[int, bytes] | None:
    """Offset and bytes of the newest record, None in an empty log. Offsets may jump before the end."""
    first, end = reader.first_offset(), reader.end_offset()
    for back in LOOK_BACK_RECORDS:
        start = max(first, end - back)
        newest = None
        while batches := reader.read(start, READ_BYTES):
            last = batches[-1]
            start = last.first_offset + len(last.records)
            newest = (start - 1, last.records[-1])
        if newest is not None or start <= first:
            return newest
    return None


def place_to_go_on(source: LogReader, target: LogReader) -> int:
    """The offset behind the last record of a copy, which the source must have too. Raises CopyRefused."""
    newest = last_record(target)
    if newest is None:
        return target.first_offset()
    offset, data = newest
    batches = source.read(offset, 1) if offset >= source.first_offset() else []
    if offset < source.first_offset():
        raise CopyRefused(
            f"the copy ends at offset {offset}, the source begins at {source.first_offset()}: what lies "
            "between was let go of: copy into an empty place"
        )
    if not batches or batches[0].first_offset != offset:
        raise CopyRefused(f"the target has a record at offset {offset} that the source has not: it went on")
    if check_word(batches[0].records[0]) != check_word(data):
        raise CopyRefused(f"the target's record at offset {offset} is another one than the source's")
    return offset + 1


def _before(batches: Sequence[RecordBatch], stop: int) -> Iterator[RecordBatch]:
    for batch in batches:
        if batch.first_offset < stop:
            yield RecordBatch(batch.first_offset, batch.records[: stop - batch.first_offset])
