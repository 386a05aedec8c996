"""Notices that this process itself stood still: paused, swapped out, or blocked by a callback.

What waits in the sockets after a pause is old, but would get the log time of now and look
fresh. So a pause of over a second is told before another byte is taken: the watch ticks by
itself, and every reader asks `check` first, since after a pause the event loop serves sockets
before timers.

Source: decision 46.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

TICK_S: Final = 0.25
LATE_S_MAX: Final = 1.0


def boot_clock_s() -> float:
    """Seconds since the machine was booted, sleep of the machine included where the system tells."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class LoopWatch:
    """Calls on_stall(late_s) once for every pause. `check` costs one reading of the clock."""

    def __init__(
        self, on_stall: Callable[[float], None], clock_s: Callable[[], float] = boot_clock_s
    ) -> None:
        self._on_stall = on_stall
        self._clock_s = clock_s
        self._late_at_s: float | None = None  # None while it does not run
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick on the running loop."""
        self._late_at_s = self._clock_s() + TICK_S + LATE_S_MAX
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """No further ticks and calls."""
        self._late_at_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> bool:
        """Whether a pause was just found; on_stall has been called then."""
        late_at_s = self._late_at_s
        if late_at_s is None:
            return False
        now_s = self._clock_s()
        if now_s <= late_at_s:
            return False
        self._late_at_s = now_s + TICK_S + LATE_S_MAX
        self._on_stall(now_s - late_at_s + LATE_S_MAX)
        return True

    def _tick(self) -> None:
        if not self.check():
            self._late_at_s = self._clock_s() + TICK_S + LATE_S_MAX
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
