"""A deadline that moves on at every byte and rings seldom.

Moving a timer costs more than a byte. So the timer stays where it is, and when it rings too
early it is set again for the time that holds by then. A deadline that comes nearer moves
it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """When something is due, and why. `ring(cause)` is called on the event loop once it is.

    cause, due_s: may be moved on by plain assignment; `set` is for any move.
    """

    __slots__ = ("_loop", "_ring", "_timer", "_timer_s", "cause", "due_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[str], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.cause = ""
        self.due_s = 0.0

    def set(self, cause: str, due_s: float) -> None:
        """Ring with `cause` at loop time `due_s`, unless set again before."""
        self.cause = cause
        self.due_s = due_s
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._start()

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer_s = self.due_s
        self._timer = self._loop.call_at(self.due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._loop.time() < self.due_s:
            self._start()
        else:
            self._ring(self.cause)
