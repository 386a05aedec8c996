"""The wait before the next connection: full jitter under a ceiling that doubles from 500 ms to 30 s.

Full jitter means any time from nothing to the ceiling: a thousand subscriptions that were cut at
once come back spread out. The ceiling falls to its floor after a session of 30 s only, so a peer
that accepts and then drops or breaks every connection is not dialled twice a second for ever.

Sources: requirement rows LOAD-22, ZMTP-10.
"""

from __future__ import annotations

from collections.abc import Callable

from ingest.wire.zmtp_limits import ZmtpLimits


class ReconnectWait:
    """Waits of one subscription, seconds. random_unit gives numbers from 0 up to 1."""

    __slots__ = ("_ceiling_us", "_limits", "_random_unit")

    def __init__(self, limits: ZmtpLimits, random_unit: Callable[[], float]) -> None:
        self._limits = limits
        self._random_unit = random_unit
        self._ceiling_us = limits.reconnect_us_min

    def after_session(self, lasted_s: float | None) -> float:
        """The wait after a session of `lasted_s`; None where the peer was not even reached."""
        limits = self._limits
        if lasted_s is not None and lasted_s * 1e6 >= limits.healthy_session_us:
            self._ceiling_us = limits.reconnect_us_min
        ceiling_us = self._ceiling_us
        self._ceiling_us = min(2 * ceiling_us, limits.reconnect_us_max)
        return self._random_unit() * ceiling_us / 1e6
