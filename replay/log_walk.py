"""Walking over a log's committed records, and telling their kinds from a byte or two.

Kinds are read from record heads alone: a fold decodes and checks every record that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from projections.events.codec import RecordRefused, decode_record
from projections.events.envelope import Record
from projections.events.ports import LogReader, RecordBatch

READ_BYTES = 1 << 20
Progress = Callable[[int], None]
"""Told offsets that were reached, now and then."""


def records_of(reader: LogReader, start: int, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, record bytes) from `start` up to `stop` or the committed end at call time."""
    for batch in batches_of(reader, start, stop):
        yield from enumerate(batch.records, batch.first_offset)


def batches_of(reader: LogReader, start: int, stop: int | None = None) -> Iterator[RecordBatch]:
    """The same as batches, cut at `start` and `stop`."""
    end = reader.end_offset() if stop is None else min(stop, reader.end_offset())
    position = start
    while position < end:
        found = reader.read(position, READ_BYTES)
        if not found:
            return
        for batch in found:
            if batch.first_offset >= end:
                return
            position = batch.first_offset + len(batch.records)
            if position > end:
                yield RecordBatch(batch.first_offset, batch.records[: end - batch.first_offset])
                return
            yield batch


def kind_byte(data: bytes) -> int:
    """The kind that a record's head names, 0..255. Two bytes are looked at, nothing is verified.

    The array of a record has under 256 values: its kind is the byte after a short array
    head, or the third after a long one, whose first byte is then 0.
    """
    return data[3] or data[5]


def record_at(offset: int, data: bytes) -> Record | None:
    """The decoded record, None where the codec refuses it."""
    try:
        return decode_record(offset, data)
    except RecordRefused:
        return None
