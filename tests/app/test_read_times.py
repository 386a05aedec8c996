"""Log times are shown as `Marks` shows them, by what was read alone."""

from __future__ import annotations

import pytest

import app.read_times
from app.marks import Marks, time_text
from app.read_times import ReadTimes
from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.ports import MemoryLog
from tests.app.timed_log import LOG, WALL, WRITER, write_seconds


def stepped(seconds: int) -> MemoryLog:
    """The wall clock goes a second and some microseconds each second, and is set back once."""
    log = MemoryLog()
    log.commit([encode_record(LOG, WRITER, 1, 1, LaneOpened(1, WALL, b"", "new"))])
    for second in range(1, seconds):
        back = 7_200 * SECOND_US if second > seconds // 2 else 0
        wall = WALL + second * (SECOND_US + 13) - back
        tick = ClockTicked(wall, -1, (), 0, 0)
        log.commit([encode_record(LOG + second * SECOND_US, WRITER, 1, 1 + second, tick)])
    return log


def read(times: ReadTimes, log: MemoryLog, start: int = 0) -> None:
    for batch in log.read(start, 1 << 30):
        times.read(batch.first_offset, batch.records)


@pytest.mark.parametrize("part_us", [0, 1, SECOND_US // 2])
def test_times_are_those_of_the_marks_also_over_a_clock_that_was_set_back(part_us: int) -> None:
    log = stepped(60)
    times, marks = ReadTimes(0), Marks(log)
    read(times, log)
    asked = [LOG + second * SECOND_US + part_us for second in range(60)]
    assert [times.text(at) for at in asked] == [marks.time_text(at) for at in asked]


def test_times_behind_the_newest_record_go_on_as_it_does() -> None:
    log = MemoryLog()
    write_seconds(log, 5)
    times = ReadTimes(0)
    read(times, log)
    assert times.text(LOG + 100 * SECOND_US) == time_text(WALL + 100 * SECOND_US)


def test_before_anything_was_read_the_known_difference_counts() -> None:
    assert ReadTimes(WALL - LOG).text(LOG) == time_text(WALL)


def test_what_is_held_is_bounded_and_the_newer_half_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.read_times, "TOLD_MAX", 16)
    log = stepped(200)
    times, marks = ReadTimes(0), Marks(log)
    for batch in log.read(0, 1 << 30):
        for offset, data in enumerate(batch.records, batch.first_offset):
            times.read(offset, [data])
            assert len(times) <= 16
    newer = [LOG + second * SECOND_US for second in range(193, 200)]
    assert [times.text(at) for at in newer] == [marks.time_text(at) for at in newer]
    assert times.text(LOG) == marks.time_text(LOG)
