"""Leaving a failing backend alone for a while.

closed -> open after `failure_threshold` failures in a row; open -> half open after
`open_us`; half open lets `half_open_requests` through at one time: a success closes it, a
failure opens it again. Failures are those of the connection (refused, lost, silent): what
a frontend answers with a status speaks of workers, which have their own suspicion
(decision 20). No clock inside: times are microseconds of any monotonic clock.
"""

from __future__ import annotations

from enum import Enum

from router.settings import BreakerSettings


class BreakerState(Enum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """One backend's breaker."""

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        self._failures = 0
        self._opened_at_us: int | None = None
        self._trials = 0

    def state(self, now_us: int) -> BreakerState:
        """The state at a time."""
        if self._opened_at_us is None:
            return BreakerState.CLOSED
        if now_us - self._opened_at_us < self.settings.open_us:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    def lets_through(self, now_us: int) -> bool:
        """Whether a request may be sent. Half open: while fewer trials run than may."""
        if not self.settings.enabled:
            return True
        state = self.state(now_us)
        if state is BreakerState.HALF_OPEN:
            return self._trials < self.settings.half_open_requests
        return state is BreakerState.CLOSED

    def began(self, now_us: int) -> bool:
        """A request is sent. True where it is a trial: `ended(trial=True)` must follow."""
        if self.state(now_us) is not BreakerState.HALF_OPEN:
            return False
        self._trials += 1
        return True

    def ended(self, *, trial: bool) -> None:
        """A request is over, whatever came of it."""
        if trial and self._trials:
            self._trials -= 1

    def succeeded(self) -> None:
        """The backend answered."""
        self._failures = 0
        self._opened_at_us = None

    def failed(self, now_us: int) -> None:
        """The backend did not answer."""
        if not self.settings.enabled:
            return
        self._failures += 1
        if self._opened_at_us is not None:
            if self.state(now_us) is BreakerState.HALF_OPEN:
                self._opened_at_us = now_us
        elif self._failures >= self.settings.failure_threshold:
            self._opened_at_us = now_us
