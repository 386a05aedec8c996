"""Positions in a log as people write them, and times as people read them.

A mark is an offset (`18233`, or `0:18233` with the lane), an ISO-8601 time, a time before
the end of the log (`-15m`), `begin` or `end`. Wall times are looked up through the records
that carry both clocks (`LaneOpened`, `ClockTicked`), one a second; where the wall clock
was set back, a time may stand twice, and the later place is found.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import typer

from projections.bounds import SECOND_US
from projections.events.codec import RecordRefused, decode_record, owner_stamp, peek_kind
from projections.events.control import ClockTicked, LaneOpened
from projections.events.envelope import LANE
from projections.events.kinds import Kind
from projections.events.ports import LogReader

READ_BYTES = 1 << 18
MARK_CHARACTERS_MAX = 64
_LOOK_BACK_RECORDS = 65_536  # a second or two of a busy log
_READS_AHEAD = 16  # that a later time is worth before it is searched: a search reads about as often
_RUN_MAX = 4_096
_OFFSET = re.compile(r"(?:([0-9]{1,3}):)?([0-9]{1,19})")
_RELATIVE = re.compile(r"-((?:[0-9]{1,9}(?:d|h|m|s|ms|us))+)")
_PART = re.compile(r"([0-9]+)(d|h|ms|m|us|s)")
_UNIT_US = {
    "d": 86_400 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "m": 60 * SECOND_US,
    "s": SECOND_US,
    "ms": 1_000,
    "us": 1,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MarkRefused(typer.BadParameter, ValueError):
    """Text that is no mark; says what is allowed. A command ends with the status of bad usage."""


class BothTimes(NamedTuple):
    """A record that tells log time and wall time at once, microseconds."""

    offset: int
    time: int
    wall_us: int


def time_text(at_us: int) -> str:
    """RFC 3339 in UTC with microseconds."""
    try:
        moment = _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return "9999-12-31T23:59:59.999999Z"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def wall_of_text(text: str) -> int | None:
    """Wall time of an ISO-8601 text, microseconds; UTC where it names no zone. None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Marks:
    """Marks of one log. For one thread, like the reader."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._first = reader.first_offset()
        self._end = reader.end_offset()
        self._begin: int = getattr(reader, "window_start", self._first)  # of a capture: behind its lead-in
        self._skew_of_second: dict[int, int] = {}
        self._run: list[BothTimes] = []  # with none of the log between them, by ascending time
        self._run_end = self._first

    def offset(self, text: str) -> int:
        """The offset that a mark names: of the first record at or after it.

        `end` is the offset after the newest record. Raises MarkRefused.
        """
        text = text.strip()
        if len(text) > MARK_CHARACTERS_MAX:
            raise MarkRefused(f"a mark of {len(text)} characters: at most {MARK_CHARACTERS_MAX} are read")
        if text == "begin":
            return self._begin
        if text == "end":
            return self._end
        found = _OFFSET.fullmatch(text)
        if found is not None:
            if found[1] is not None and int(found[1]) != LANE:
                raise MarkRefused(
                    f"mark {text!r}: a log has one lane, 0; for a time of day write the day too, such as "
                    "2026-11-29T20:45Z"
                )
            return int(found[2])
        found = _RELATIVE.fullmatch(text)
        if found is not None:
            back_us = sum(int(number) * _UNIT_US[unit] for number, unit in _PART.findall(found[1]))
            newest = self.newest_stamp()
            return self._first if newest is None else self.offset_of_time(newest - back_us)
        wall_us = wall_of_text(text)
        if wall_us is None:
            raise MarkRefused(
                f"mark {text!r}: an offset (18233 or 0:18233), an ISO time, a time back from the end (-15m), "
                "begin or end"
            )
        return self.offset_of_wall(wall_us)

    def offset_of_wall(self, wall_us: int) -> int:
        """Offset of the first record that was written at or after a wall time."""
        return self._search(wall_us, by_wall=True)

    def offset_of_time(self, at_us: int) -> int:
        """Offset of the first owner's record with this log time or a later one."""
        return self._search(at_us, by_wall=False)

    def time_text(self, at_us: int) -> str:
        """A log time as people read it: as the wall clock stood in that second, RFC 3339 in UTC.

        Quick for times in ascending order, as tables have them: the log is read on, not searched.
        """
        second = at_us // SECOND_US
        skew = self._skew_of_second.get(second)
        if skew is None:
            if len(self._skew_of_second) > 4_096:
                self._skew_of_second.clear()
            told = self._told_since(second * SECOND_US)
            skew = self._skew_of_second[second] = told.wall_us - told.time if told else 0
        return time_text(at_us + skew)

    def skew_at(self, offset: int) -> int:
        """Wall time minus log time at the next record that tells both, or else at the one before it.

        Microseconds; 0 if none does.
        """
        told = self._told_near(offset)
        return 0 if told is None else told.wall_us - told.time

    def oldest_stamp(self) -> int | None:
        """Log time of the oldest owner's record, None where the log holds none."""
        return next((stamp for _, data in self._records(self._first) if (stamp := owner_stamp(data))), None)

    def beginning(self) -> int | None:
        """Log time that the log began with, 0 where its beginning is not kept; None before any owner."""
        return 0 if self._first else self.oldest_stamp()

    def newest_stamp(self) -> int | None:
        """Log time of the newest owner's record, None where the log holds none."""
        start, step = self._end, 1_024
        while start > self._first:
            stop, start, step = start, max(self._first, start - step), step * 2
            newest = None
            for offset, data in self._records(start):
                if offset >= stop:
                    break
                newest = owner_stamp(data) or newest
            if newest is not None:
                return newest
        return None

    # Searching -----------------------------------------------------------------------

    def _search(self, target: int, by_wall: bool) -> int:
        """Bisect offsets by the records that tell times, then walk the last stretch."""
        low = self._told_before(target, by_wall)
        told = self._told_from(low, self._end)
        skew = told.wall_us - told.time if by_wall and told is not None else 0
        for offset, data in self._records(low):
            stamp = owner_stamp(data)
            if stamp is not None and stamp + skew >= target:
                return offset
        return self._end

    def _told_before(self, target: int, by_wall: bool) -> int:
        """Offset of the last record that tells an earlier time, the log's first where none does."""
        low, high = self._first, self._end
        while high - low > 1:
            middle = (low + high) // 2
            told = self._told_from(middle, high)
            if told is None:
                high = middle
            elif (told.wall_us if by_wall else told.time) < target:
                low = told.offset
            else:
                high = middle
        return low

    def _told_since(self, at_us: int) -> BothTimes | None:
        """The first record that tells both times at or after a log time, or else the last one."""
        run = self._run
        is_behind_first = bool(run) and run[0].time < at_us
        if is_behind_first:
            self._read_run(at_us, _READS_AHEAD)
        if not is_behind_first or (run[-1].time < at_us and self._run_end < self._end):
            run.clear()
            self._run_end = self._told_before(at_us, by_wall=False)
            self._read_run(at_us, None)
        return run[min(bisect_left(run, at_us, key=_time_of), len(run) - 1)] if run else None

    def _read_run(self, at_us: int, reads_max: int | None) -> None:
        """Read on until a record tells this time or a later one; to the log's end where there is none."""
        run, reads = self._run, 0
        while not run or run[-1].time < at_us:
            if self._run_end >= self._end or reads == reads_max:
                return
            reads += 1
            batches = self._reader.read(max(self._run_end, self._first), READ_BYTES)
            if not batches:
                self._run_end = self._end
            for batch in batches:
                for offset, data in enumerate(batch.records, batch.first_offset):
                    told = _both_told(offset, data) if offset < self._end else None
                    if told is not None and (not run or told.time > run[-1].time):
                        run.append(told)
                self._run_end = batch.first_offset + len(batch.records)
            if len(run) > _RUN_MAX:
                del run[: -_RUN_MAX // 2]

    def _told_near(self, offset: int) -> BothTimes | None:
        told = self._told_from(offset, self._end)
        step, begin = 1_024, max(self._first, offset - _LOOK_BACK_RECORDS)
        while told is None and offset > begin:
            stop, offset, step = offset, max(begin, offset - step), step * 2
            told = self._told_last(offset, stop)
        return told

    def _told_last(self, start: int, stop: int) -> BothTimes | None:
        """The last record in start..stop-1 that tells both times."""
        last = None
        for offset, data in self._records(start):
            if offset >= stop:
                break
            last = _both_told(offset, data) or last
        return last

    def _told_from(self, start: int, stop: int) -> BothTimes | None:
        """The first record in start..stop-1 that tells both times."""
        for offset, data in self._records(start):
            if offset >= stop:
                return None
            told = _both_told(offset, data)
            if told is not None:
                return told
        return None

    def _records(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) from `start` to the end that the log had when this was made."""
        while start < self._end:
            batches = self._reader.read(max(start, self._first), READ_BYTES)
            if not batches:
                return
            for batch in batches:
                yield from enumerate(batch.records, batch.first_offset)
            start = batches[-1].first_offset + len(batches[-1].records)


def told_by(offset: int, data: bytes) -> BothTimes | None:
    """What a LaneOpened or ClockTicked says of both times; None for any other bytes."""
    try:
        record = decode_record(offset, data)
    except RecordRefused:
        return None
    if isinstance(record.fact, LaneOpened | ClockTicked):
        return BothTimes(offset, record.time, record.fact.wall_us)
    return None


def _both_told(offset: int, data: bytes) -> BothTimes | None:
    """As `told_by`, at little cost for the records that do not."""
    return told_by(offset, data) if peek_kind(data) in (Kind.LANE_OPENED, Kind.CLOCK_TICKED) else None


def _time_of(told: BothTimes) -> int:
    return told.time
