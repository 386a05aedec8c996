"""Records as lines: a wall time where the log tells one, none before its first owner."""

from __future__ import annotations

import json
from typing import Any

from app.marks import Marks
from app.record_lines import RecordLines
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened, Pinged
from projections.events.kinds import Kind
from projections.events.ports import MemoryLog
from replay.log_walk import records_of
from tests.app.timed_log import WRITER

BEGAN_US = 1_790_000_000_000_000
SKEW_US = 3_000_000
REPLICA = bytes([5]) * 16


def ping(number: int, time: int) -> bytes:
    return encode_record(time, REPLICA, 0, number, Pinged(REPLICA, number, -1))


def opened(number: int, time: int) -> bytes:
    return encode_record(time, WRITER, 1, number, LaneOpened(1, time + SKEW_US, b"", "new"))


def shown(log: MemoryLog, start: int = 0, wanted: int | None = None) -> list[dict[str, Any]]:
    lines = RecordLines(Marks(log), start, wanted)
    texts = [lines.line(offset, data) for offset, data in records_of(log, start)]
    return [json.loads(text) for text in texts if text]


def test_what_was_written_before_the_first_owner_has_no_time() -> None:
    log = MemoryLog()
    log.commit([ping(1, 0), ping(2, 750_000), opened(1, BEGAN_US), ping(3, BEGAN_US + 1)])
    assert [row["at"] for row in shown(log)] == [
        None,
        None,
        "2026-09-21T14:13:23.000000Z",
        "2026-09-21T14:13:23.000001Z",
    ]


def test_an_owner_that_comes_while_the_log_is_followed_brings_the_time() -> None:
    log = MemoryLog()
    log.commit([ping(1, 500_000)])
    lines = RecordLines(Marks(log), 1, None)
    assert json.loads(lines.line(1, ping(2, 600_000)))["at"] is None
    assert json.loads(lines.line(2, opened(1, BEGAN_US)))["at"] == "2026-09-21T14:13:23.000000Z"
    assert json.loads(lines.line(3, ping(3, BEGAN_US + 5)))["at"] == "2026-09-21T14:13:23.000005Z"


def test_a_log_whose_beginning_is_gone_has_times_throughout() -> None:
    log = MemoryLog(start=100)
    tick = encode_record(BEGAN_US, WRITER, 1, 9, ClockTicked(BEGAN_US + SKEW_US, -1, (), 0, 0))
    log.commit([ping(1, BEGAN_US - 7), tick])
    assert [row["at"] for row in shown(log, 100)] == [
        "2026-09-21T14:13:22.999993Z",
        "2026-09-21T14:13:23.000000Z",
    ]


def test_only_the_kind_that_is_wanted_is_shown() -> None:
    log = MemoryLog()
    log.commit([opened(1, BEGAN_US), ping(1, BEGAN_US), b"not a record"])
    assert [row["offset"] for row in shown(log, wanted=int(Kind.PINGED))] == [1]
    assert [row["offset"] for row in shown(log)] == [0, 1, 2]
