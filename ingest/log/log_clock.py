"""Log time of the owner: a monotonic clock with an origin (decision 2).

A stamp is max(stamp before + 1, anchor + own time elapsed since the anchor). The anchor is
the wall clock in a new log; otherwise the last owner's stamp, moved on by what the wall
says has passed since the last record that told both times, if that is positive and such a record is
kept. From then on the wall clock moves nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class OwnerSeen(NamedTuple):
    """What the log says of its last owner.

    stamp:          log time of the newest owner's record.
    told_stamp, told_wall_us: of the newest LaneOpened or ClockTicked: both times at once. Where no such
    record is kept, told_wall_us is None.
    """

    writer: bytes
    epoch: int
    stamp: int
    told_stamp: int
    told_wall_us: int | None


def anchor_stamp(last: OwnerSeen | None, wall_us: int) -> int:
    """The log time at which a new owner starts, microseconds."""
    if last is None:
        return wall_us
    if last.told_wall_us is None:
        return last.stamp
    wall_at_last = last.told_wall_us + (last.stamp - last.told_stamp)
    return last.stamp + max(0, wall_us - wall_at_last)


class OwnerClock:
    """Stamps for the owner's records. now_us: this process's monotonic time."""

    def __init__(self, anchor: int, now_us: int) -> None:
        self._anchor = anchor
        self._anchored_at_us = now_us
        self._last = anchor - 1

    def stamp(self, now_us: int) -> int:
        """The next stamp: grows by at least one."""
        stamp = self._anchor + now_us - self._anchored_at_us
        if stamp <= self._last:
            stamp = self._last + 1
        self._last = stamp
        return stamp

    def now(self, now_us: int) -> int:
        """Log time without taking a stamp; never before the last one."""
        return max(self._last, self._anchor + now_us - self._anchored_at_us)
