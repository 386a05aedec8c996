"""Frames that were not taken, told at most once a second and result however many there are.

The first one of a result is told at once, those that follow within a second when it is over.
So a flood of garbage from one publisher is a handful of records, and their counts add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from projections.notices import FrameResult

EVERY_S: Final = 1.0


class RefusalCounts:
    """Counts of one publisher. tell(result, frames) writes them down."""

    __slots__ = ("_counts", "_tell", "_timer", "_told_at_s")

    def __init__(self, tell: Callable[[FrameResult, int], None]) -> None:
        self._tell = tell
        self._counts: dict[FrameResult, int] = {}
        self._told_at_s: dict[FrameResult, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def count(self, result: FrameResult, times: int = 1) -> None:
        """More frames, or events of one, with this result."""
        if result in self._counts:
            self._counts[result] += times
            return
        loop = asyncio.get_running_loop()
        told_at_s = self._told_at_s.get(result)
        if told_at_s is None or loop.time() >= told_at_s + EVERY_S:
            self._told_at_s[result] = loop.time()
            self._tell(result, times)
            return
        self._counts[result] = times
        if self._timer is None:
            self._timer = loop.call_at(told_at_s + EVERY_S, self._tell_due)

    def close(self) -> None:
        """Tell what is left; nothing is counted after."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for result, frames in counts.items():
            self._tell(result, frames)

    def _tell_due(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time() + 0.001  # timers may fire a little early
        self._timer = None
        later: list[float] = []
        for result in list(self._counts):
            due_at_s = self._told_at_s[result] + EVERY_S
            if due_at_s <= now_s:
                self._told_at_s[result] = loop.time()
                self._tell(result, self._counts.pop(result))
            else:
                later.append(due_at_s)
        if later:
            self._timer = loop.call_at(min(later), self._tell_due)
