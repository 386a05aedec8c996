"""When a standby may claim the log: nobody speaks for it, and it is not the standby that is cut off.

The owner says something each second. A standby claims once it read no record of the owner for
SILENT_US of its own clock and, within that silence, sent ROUND_TRIPS pings one after the other
and read each of them back (decision 45). The next ping is sent only when the one before was
read, so pings that a stalled log gives back all at once count as one.

A ping that took longer than SLOW_US to come back says that the log stood still, or that we were
cut off: what others had to say meanwhile may still be on its way. The silence then begins anew.
So does it when this process itself stood still.

Of several standbys the one that has listened longest shall win, since it has heard most: one that
is younger than YOUNG_US may not have connected to all publishers yet, and waits YIELD_US longer.
"""

from __future__ import annotations

from projections.bounds import SECOND_US

SILENT_US = 2 * SECOND_US
PING_EVERY_US = 1 * SECOND_US
SLOW_US = 1 * SECOND_US
PING_LOST_US = 10 * SECOND_US  # not read back after this long: it never will, send another
ROUND_TRIPS = 2
YOUNG_US = 6 * SECOND_US
YIELD_US = 1 * SECOND_US  # longer than two standbys differ in when they heard the owner last


class Vigil:
    """See the module's text. Times are the process's own monotonic ones, microseconds.

    silent_since: when the newest record of the owner was read, or the silence began anew.
    """

    def __init__(self, now_us: int) -> None:
        self.begun_at = now_us
        self.silent_since = now_us
        self.is_in_touch = False  # a ping came back since the vigil began
        self._returned = 0
        self._number = 0
        self._sent_at: int | None = None
        self._due_at = now_us

    def begin_anew(self, now_us: int) -> None:
        """Whatever was quiet until now says nothing: the owner spoke, or nobody could be heard."""
        self.silent_since = now_us
        self._returned = 0

    def due_ping(self, now_us: int) -> int | None:
        """The number of a ping to send now, from 1; None while none is due."""
        if self._sent_at is not None and now_us - self._sent_at < PING_LOST_US:
            return None
        if now_us < self._due_at:
            return None
        self._number += 1
        self._sent_at = now_us
        self._due_at = max(self._due_at + PING_EVERY_US, now_us)
        return self._number

    def ping_read(self, number: int, now_us: int) -> None:
        """An own ping was read back."""
        if number != self._number or self._sent_at is None:
            return
        sent_at, self._sent_at = self._sent_at, None
        if now_us - sent_at > SLOW_US:
            self.is_in_touch = False
            self.begin_anew(now_us)
            return
        self.is_in_touch = True
        if sent_at >= self.silent_since:
            self._returned += 1

    def may_claim(self, now_us: int) -> bool:
        """Whether the log has no owner any more, as far as can be known from here."""
        silent_us = SILENT_US + (YIELD_US if now_us - self.begun_at < YOUNG_US else 0)
        return self._returned >= ROUND_TRIPS and now_us - self.silent_since >= silent_us
