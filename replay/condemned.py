"""Which offsets a log condemns, found without reading all of it.

A `RecordCondemned` points back at a record that every fold skips (decision 16), so whoever
folds a stretch of a log looks ahead for them. Every checkpoint holds those that the log had
said by then: the newest one and the records behind it say all.
"""

from __future__ import annotations

from projections.events.control import RecordCondemned
from projections.events.held import OwnerHeld
from projections.events.kinds import Kind
from projections.events.ports import CheckpointInfo, CheckpointStore, LogCorrupt, LogReader
from replay.log_walk import batches_of, kind_byte, record_at

_CONDEMNED, _OWNER = int(Kind.RECORD_CONDEMNED), int(Kind.OWNER_HELD)


def condemned_of(reader: LogReader, checkpoints: CheckpointStore | None, start: int) -> frozenset[int]:
    """Offsets at or behind `start` that the log condemns, and perhaps earlier ones."""
    first, end = reader.first_offset(), reader.end_offset()
    for info in reversed(checkpoints.list() if checkpoints is not None else ()):
        if max(start, first) <= info.offset < end:
            assert checkpoints is not None
            held = _held(checkpoints, info)
            if held is not None:
                return held | condemned_in(reader, info.offset + 1)
    return condemned_in(reader, max(start, first))


def condemned_in(reader: LogReader, start: int) -> frozenset[int]:
    """Offsets that records from `start` to the end of the log condemn."""
    found: set[int] = set()
    for batch in batches_of(reader, start):
        for place, data in enumerate(batch.records):
            if (data[3] or data[5]) == _CONDEMNED:  # as kind_byte, without its call
                record = record_at(batch.first_offset + place, data)
                if record is not None and isinstance(record.fact, RecordCondemned):
                    found.add(record.fact.offset)
    return frozenset(found)


def _held(checkpoints: CheckpointStore, info: CheckpointInfo) -> frozenset[int] | None:
    """What a checkpoint knows; None where it cannot be read."""
    try:
        for place, data in enumerate(checkpoints.read(info)):
            if kind_byte(data) == _OWNER:
                record = record_at(place, data)
                if record is not None and isinstance(record.fact, OwnerHeld):
                    return frozenset(record.fact.condemned)
    except (LogCorrupt, OSError):
        pass
    return None
