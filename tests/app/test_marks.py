from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.marks import MarkRefused, Marks, time_text, wall_of_text
from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.ports import MemoryLog, RecordBatch
from tests.app.timed_log import LOG, PER_SECOND, WALL, WRITER, offset_of_second, write_seconds

SECONDS = 300


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    made = MemoryLog()
    write_seconds(made, SECONDS)
    return made


@pytest.fixture
def marks(log: MemoryLog) -> Marks:
    return Marks(log)


def test_offsets_are_read_with_and_without_the_lane(marks: Marks) -> None:
    assert marks.offset("18233") == marks.offset("0:18233") == marks.offset(" 18233 ") == 18233


def test_begin_and_end_are_the_ends_of_the_log(log: MemoryLog, marks: Marks) -> None:
    assert (marks.offset("begin"), marks.offset("end")) == (log.first_offset(), log.end_offset())


def test_a_wall_time_finds_the_first_record_written_then(marks: Marks) -> None:
    for second in (0, 1, 2, 57, 150, SECONDS - 1):
        assert marks.offset(time_text(WALL + second * SECOND_US)) == (
            offset_of_second(second) if second else 0
        )
    half = time_text(WALL + 57 * SECOND_US + SECOND_US // 2)
    assert marks.offset(half) == offset_of_second(57) + PER_SECOND // 2


@pytest.mark.parametrize(
    "text",
    ["2026-09-21T14:13:50Z", "2026-09-21T14:13:50", "2026-09-21 14:13:50+00:00", "2026-09-21T16:13:50+02:00"],
)
def test_iso_times_with_or_without_zone_are_read(marks: Marks, text: str) -> None:
    assert wall_of_text(text) == WALL + 30 * SECOND_US
    assert marks.offset(text) == offset_of_second(30)


def test_log_time_begins_with_the_first_record_of_an_owner(marks: Marks) -> None:
    assert marks.beginning() == LOG
    assert Marks(MemoryLog()).beginning() is None
    assert Marks(MemoryLog(start=7)).beginning() == 0, "what came before is not kept"


def test_times_before_and_after_the_log_give_its_ends(log: MemoryLog, marks: Marks) -> None:
    assert marks.offset("1999-01-01") == 0
    assert marks.offset("2999-01-01") == log.end_offset()


@pytest.mark.parametrize(("text", "back_s"), [("-90s", 90), ("-1m30s", 90), ("-2m", 120), ("-500ms", 0.5)])
def test_relative_times_count_back_from_the_newest_record(marks: Marks, text: str, back_s: float) -> None:
    newest = SECONDS - 1 + (PER_SECOND - 1) / PER_SECOND
    expected = 1 + round((newest - back_s) * PER_SECOND)
    # pings carry no stamp of the owner: the next record that does is found
    assert marks.offset(text) in (expected, expected + 1)


def test_more_time_than_the_log_holds_gives_its_beginning(marks: Marks) -> None:
    assert marks.offset("-15d") == 0


@pytest.mark.parametrize(
    "text", ["", "x", "-", "-5", "5m", "1:7", "-5x", "0:", "2026-99-99", "9" * 20, "１２", "1" * 99]
)
def test_what_is_no_mark_is_refused_with_what_is_one(marks: Marks, text: str) -> None:
    with pytest.raises(MarkRefused):
        marks.offset(text)


def test_log_times_are_shown_as_the_wall_clock_stood(marks: Marks) -> None:
    assert marks.time_text(LOG + 30 * SECOND_US) == "2026-09-21T14:13:50.000000Z"


class CountingLog(MemoryLog):
    """How often it was read."""

    reads = 0

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        self.reads += 1
        return super().read(start, bytes_max)


@pytest.mark.parametrize("order", [1, -1, 7])
def test_a_table_of_log_times_reads_the_log_on(order: int) -> None:
    log = CountingLog()
    write_seconds(log, SECONDS)
    marks = Marks(log)
    seconds = range(SECONDS + 5)[::order]
    told = [marks.time_text(LOG + second * SECOND_US) for second in seconds]
    assert told == [time_text(WALL + second * SECOND_US) for second in seconds]
    if order > 0:
        assert log.reads < 100, "a few searches, and the log once"


def test_a_time_is_shown_alike_whatever_was_shown_before_and_behind_the_newest_tick_as_it_stood_there() -> (
    None
):
    log = MemoryLog()
    log.commit([encode_record(LOG, WRITER, 1, 1, LaneOpened(1, WALL, b"", "new"))])
    for second in range(1, 30):
        at, wall = LOG + second * SECOND_US + SECOND_US // 2, WALL + second * (SECOND_US + 13)
        log.commit([encode_record(at, WRITER, 1, 1 + second, ClockTicked(wall, -1, (), 0, 0))])
    asked = [LOG + tenth * SECOND_US // 10 for tenth in range(320)]
    forward = Marks(log)
    told = [forward.time_text(at) for at in asked]
    assert told == [Marks(log).time_text(at) for at in asked]
    assert told[-1] == time_text(asked[-1] + wall - at)
    assert forward.skew_at(30) == wall - at != WALL - LOG


def test_the_oldest_and_newest_stamps_are_found(marks: Marks) -> None:
    assert marks.oldest_stamp() == LOG
    assert marks.newest_stamp() == LOG + SECONDS * SECOND_US - SECOND_US // PER_SECOND + 1


def test_an_empty_log_has_marks_too() -> None:
    marks = Marks(MemoryLog())
    assert [marks.offset(text) for text in ("begin", "end", "-15m", "2026-01-01")] == [0, 0, 0, 0]
    assert marks.newest_stamp() is None
    assert marks.time_text(WALL) == time_text(WALL)


def test_times_far_out_are_shown_and_not_raised() -> None:
    assert time_text(2**63).startswith("9999-")


@given(st.text(max_size=70))
def test_any_text_is_a_mark_or_refused(text: str) -> None:
    try:
        assert Marks(MemoryLog()).offset(text) >= 0
    except MarkRefused:
        assert text.strip() not in ("begin", "end")
