"""How a follower's audit stands, whoever takes its rows: the database, or the topic of audit messages.

The sink and the store add to it, `/metrics` of the follower reads it, all on one event loop. It needs
neither SQL nor Kafka, so whoever writes no audit loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Failure(StrEnum):
    """Why rows could not be written. away: not now. refused: somebody has to change something.

    log: the log itself could not be read.
    """

    AWAY = "away"
    REFUSED = "refused"
    LOG = "log"


class AuditFigures:
    """offset: newest record whose rows are written, -1 before the first. at: its log time, 0 if unknown.

    sent: messages with rows that the topic has acknowledged. failures: attempts that failed.
    """

    def __init__(self) -> None:
        self.offset = -1
        self.at = 0
        self.sent = 0
        self.failures = dict.fromkeys(Failure, 0)

    def wrote(self, offset: int, at: int) -> None:
        """Rows of all records up to `offset` are written. at: log time there, microseconds."""
        self.offset, self.at = offset, at

    def has_sent(self, messages: int) -> None:
        """So many more messages are acknowledged."""
        self.sent += messages

    def failed(self, failure: Failure) -> None:
        """One more attempt failed."""
        self.failures[failure] += 1


class AuditCounters(Collector):
    """The counters of the audit that `figures` gives at each scrape; all 0 where none is written."""

    def __init__(self, figures: Callable[[], AuditFigures | None]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See Collector."""
        figures = self._figures() or AuditFigures()
        sent = CounterMetricFamily(
            "picklog_audit_messages_sent_total", "Messages with rows that the audit's topic acknowledged."
        )
        sent.add_metric((), figures.sent)
        yield sent
        failed = CounterMetricFamily(
            "picklog_audit_failures_total", "Attempts to write rows that failed.", labels=("cause",)
        )
        for failure, times in figures.failures.items():
            failed.add_metric((failure.value,), times)
        yield failed
