"""Figures of the audit: counters stand at 0 from the start, also where no audit is written."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from app.audit_figures import AuditCounters, AuditFigures, Failure


def sent(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("picklog_audit_messages_sent_total")


def failures(registry: CollectorRegistry) -> list[float | None]:
    return [
        registry.get_sample_value("picklog_audit_failures_total", {"cause": failure.value})
        for failure in Failure
    ]


def test_without_an_audit_every_counter_stands_at_0() -> None:
    registry = CollectorRegistry()
    registry.register(AuditCounters(lambda: None))
    assert sent(registry) == 0
    assert failures(registry) == [0, 0, 0]


def test_what_was_sent_and_what_failed_adds_up() -> None:
    registry, figures = CollectorRegistry(), AuditFigures()
    registry.register(AuditCounters(lambda: figures))
    figures.has_sent(3)
    figures.has_sent(4)
    for failure in (Failure.AWAY, Failure.LOG, Failure.AWAY):
        figures.failed(failure)
    assert sent(registry) == 7
    assert failures(registry) == [2, 0, 1]


def test_the_newest_offset_and_its_time_belong_together() -> None:
    figures = AuditFigures()
    assert (figures.offset, figures.at) == (-1, 0)
    figures.wrote(8, 1_000)
    figures.wrote(9, 0)
    assert (figures.offset, figures.at) == (9, 0)
