"""What people are told of a spool: when it comes into use, since the log is away, and when it is empty."""

from __future__ import annotations

import structlog

from ingest.log.spool import Spool
from projections.bounds import SECOND_US

log = structlog.get_logger("picklog.log")


class SpoolNotes:
    """Of one writer, which may have none. Call `look` several times a second, `discard` at its end."""

    def __init__(self, spool: Spool | None) -> None:
        self._spool = spool
        self._began_at: int | None = None
        self._bytes_most = 0

    def look(self, now_us: int) -> None:
        """Tell of a spool that came into use, or went out of it."""
        spool = self._spool
        if spool is None:
            return
        self._bytes_most = max(self._bytes_most, spool.disk_bytes)
        if self._began_at is None and spool.records:
            self._began_at = now_us
            log.warning("the log takes less than there is to say: the rest is spooled")
        elif self._began_at is not None and not spool.is_in_use:
            seconds = round((now_us - self._began_at) / SECOND_US, 1)
            log.info("the spool is empty again", seconds=seconds, bytes_most=self._bytes_most)
            self._began_at = None
            self._bytes_most = 0

    def discard(self) -> None:
        """Throw away what is in it: nothing of it would count any more."""
        thrown = self._spool.discard() if self._spool is not None else 0
        if thrown:
            log.warning("what was spooled is thrown away", records=thrown)
