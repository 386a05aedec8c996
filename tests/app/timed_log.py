"""A log with known log times and wall times, for tests of marks and of the log commands."""

from __future__ import annotations

from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, ClockTicked, LaneOpened, Pinged
from projections.events.ports import LogStore

WRITER = b"owner-of-16bytes"
WALL = 1_790_000_000 * SECOND_US  # 2026-09-21T14:13:20Z
LOG = WALL - 5 * SECOND_US  # the wall was set forward by 5 s after the log began
PER_SECOND = 10


def write_seconds(log: LogStore, seconds: int) -> None:
    """An owner's claim, then each second a tick, a ping of somebody and facts spread over it.

    Second s begins at offset 1 + s * PER_SECOND, log time LOG + s, wall time WALL + s.
    """
    log.commit([encode_record(LOG, WRITER, 0, 1, LaneOpened(1, WALL, b"", "new"))])
    sequence = 1
    for second in range(seconds):
        batch = []
        for part in range(PER_SECOND):
            sequence += 1
            at = LOG + second * SECOND_US + part * SECOND_US // PER_SECOND + 1
            if part == 0:
                fact: tuple[object, ...] = ClockTicked(at + WALL - LOG, -1, (), 0, 0)
            elif part == 1:
                fact = Pinged(WRITER, second, -1)
            else:
                fact = CheckpointDue(str(second))
            batch.append(encode_record(0 if part == 1 else at, WRITER, 0 if part == 1 else 1, sequence, fact))
        log.commit(batch)


def offset_of_second(second: int) -> int:
    """Offset of the tick that begins a second."""
    return 1 + second * PER_SECOND
