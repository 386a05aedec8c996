"""Wall times of a log that is followed, from the records that were read: nothing is read twice for them.

As `Marks` does, a log time is shown as the wall clock stood in its second: at the first record from
there on that tells both, one a second, or else at the newest one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from app.marks import time_text, told_by
from projections.bounds import SECOND_US
from projections.events.kinds import Kind

TOLD_MAX = 65_536  # some 18 hours at one a second
_BOTH_TOLD = (int(Kind.LANE_OPENED), int(Kind.CLOCK_TICKED))


class ReadTimes:
    """See the module's text. skew_us: wall time minus log time before the first record that tells both.

    Holds TOLD_MAX of them. Beyond that every other one of the older half goes, so old times are a
    little less exact where the wall clock drifts.
    """

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self._times: list[int] = []
        self._skews: list[int] = []

    def __len__(self) -> int:
        return len(self._times)

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """Records of the log, in order."""
        for offset, data in enumerate(records, first_offset):
            if (data[3] or data[5]) in _BOTH_TOLD:  # as kind_byte, without its call
                told = told_by(offset, data)
                if told is not None and (not self._times or told.time > self._times[-1]):
                    self._times.append(told.time)
                    self._skews.append(told.wall_us - told.time)
        if len(self._times) > TOLD_MAX:
            older = slice(1, TOLD_MAX // 2, 2)
            del self._times[older], self._skews[older]

    def text(self, at_us: int) -> str:
        """A log time as people read it, RFC 3339 in UTC."""
        second = at_us // SECOND_US * SECOND_US
        place = min(bisect_left(self._times, second), len(self._times) - 1)
        return time_text(at_us + (self._skews[place] if place >= 0 else self._skew_us))
