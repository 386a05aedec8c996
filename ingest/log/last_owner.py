"""Who owned a log last, and until when: read backwards from its end."""

from __future__ import annotations

from contextlib import suppress

from ingest.log.log_clock import OwnerSeen
from projections.events.codec import RecordRefused, decode_record, owner_stamp, peek_kind
from projections.events.control import ClockTicked, LaneOpened
from projections.events.kinds import Kind
from projections.events.ports import LogReader

_STEP_RECORDS = 4_096
_READ_BYTES = 4 << 20
_TELLERS = (Kind.LANE_OPENED, Kind.CLOCK_TICKED)


def last_owner(log: LogReader, before: int | None = None) -> OwnerSeen | None:
    """The newest owner that the kept records tell of, None where none does.

    before: look no further than this offset, None for all that is there.
    Looks at windows that double backwards from the end, until one holds a LaneOpened or
    ClockTicked: with an owner's tick each second that is soon. Where retention left neither, any
    record that an owner said names it; a claim with an epoch that was there before never wins.
    """
    first, end = log.first_offset(), log.end_offset() if before is None else before
    stop, step = end, _STEP_RECORDS
    stamp = 0
    while stop > first:
        start = max(first, stop - step)
        found, newest = _in_window(log, start, stop)
        stamp = max(stamp, newest)
        if found is not None:
            return found._replace(stamp=max(stamp, found.stamp))
        stop, step = start, step * 2
    return _speaker(log, first, end) if first and stamp else None


def _speaker(log: LogReader, start: int, end: int) -> OwnerSeen | None:
    """The owner with the highest epoch that said any of these records."""
    found: OwnerSeen | None = None
    while start < end and (batches := log.read(start, _READ_BYTES)):
        for batch in batches:
            for offset, data in enumerate(batch.records, batch.first_offset):
                if offset < end and owner_stamp(data) is not None:
                    with suppress(RecordRefused):
                        said = decode_record(offset, data)
                        if found is None or said.epoch >= found.epoch:
                            stamp = max(said.time, found.stamp if found is not None else 0)
                            found = OwnerSeen(said.writer, said.epoch, stamp, stamp, None)
        start = batches[-1].first_offset + len(batches[-1].records)
    return found


def _in_window(log: LogReader, start: int, stop: int) -> tuple[OwnerSeen | None, int]:
    """The last record of the window that tells both times, and the newest stamp in it."""
    found: OwnerSeen | None = None
    stamp = 0
    while start < stop:
        batches = log.read(start, _READ_BYTES)
        if not batches:
            break
        for batch in batches:
            for offset, data in enumerate(batch.records, batch.first_offset):
                if offset >= stop:
                    break
                stamp = max(stamp, owner_stamp(data) or 0)
                if peek_kind(data) in _TELLERS:
                    told = _told(offset, data)
                    if told is not None and (found is None or told.epoch >= found.epoch):
                        found = told  # not the late word of an owner that was superseded
        start = batches[-1].first_offset + len(batches[-1].records)
    return found, stamp


def _told(offset: int, data: bytes) -> OwnerSeen | None:
    try:
        record = decode_record(offset, data)
    except RecordRefused:
        return None
    fact = record.fact
    if isinstance(fact, LaneOpened):
        return OwnerSeen(record.writer, fact.epoch, record.time, record.time, fact.wall_us)
    if isinstance(fact, ClockTicked):
        return OwnerSeen(record.writer, record.epoch, record.time, record.time, fact.wall_us)
    return None
