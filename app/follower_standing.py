"""How a follower stands, told to the process that started it, under the names of one that runs alone.

A follower that is a child answers no requests, so its parent answers for it: how far its rows are, and
what failed, comes with the line of each second (`follower_figures`). One that has fallen silent for
SILENT_S has no figures, they are NaN; how long it has said nothing is a figure of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import orjson
from prometheus_client import CollectorRegistry, Gauge

from app.audit_figures import AuditCounters, AuditFigures, Failure
from app.follower_figures import EVERY_S, FollowerMetrics

UNKNOWN = float("nan")  # as Prometheus says that there is no figure: compared with anything it is false
SILENT_S = 10.0  # ten lines that did not come
COUNT_MAX = 1 << 53  # of one line: what a double holds exactly

FIGURES = {
    "picklog_audit_lag_records": (
        "Records committed whose rows are not written yet; NaN where no audit is written."
    ),
    "picklog_audit_offset": "Newest record whose rows are written.",
    "picklog_audit_lag_seconds": (
        "Log time between the newest record folded and the newest one whose rows are written."
    ),
    "picklog_follower_restarts": "Folds of the follower that were begun anew.",
}
"""Gauges of a follower by name, wherever they are answered."""

assert SILENT_S > 2 * EVERY_S


class Standing(Protocol):
    """What is told of a follower; `FollowerState` is one."""

    audit: AuditFigures | None

    def figures(self) -> dict[str, float]:
        """The gauges of FIGURES, NaN where there is none."""


class StandingLines:
    """In the follower: what its lines say of how it stands."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._told = AuditFigures()

    def words(self) -> dict[str, object]:
        """Figures as they are now, and what was added to the counters since the last call."""
        now, told = self._standing.audit or AuditFigures(), self._told
        failed = {one.value: now.failures[one] - told.failures[one] for one in Failure}
        words = {"figures": self._standing.figures(), "sent": now.sent - told.sent, "failed": failed}
        told.sent, told.failures = now.sent, dict(now.failures)
        return words


class ChildMetrics(FollowerMetrics):
    """In the parent: all series that are made of the lines. now_s: a clock that never goes back, seconds."""

    def __init__(self, registry: CollectorRegistry, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(registry)
        self._now_s = now_s
        self._heard_at = now_s()
        self._figures = dict.fromkeys(FIGURES, UNKNOWN)
        self._counted = AuditFigures()
        for name, text in FIGURES.items():
            Gauge(name, text, registry=registry).set_function(partial(self._figure, name))
        registry.register(AuditCounters(lambda: self._counted))
        Gauge(
            "picklog_follower_silent_seconds",
            "Since the follower, a child of this process, last told its figures.",
            registry=registry,
        ).set_function(self._silent_s)

    def take(self, line: bytes) -> None:
        """One line of the follower. Anything else on its output is passed by."""
        super().take(line)
        try:
            words: Any = orjson.loads(line)["standing"]
            figures = {name: _figure(words["figures"][name]) for name in FIGURES}
            sent = _count(words["sent"])
            failed = {one: _count(words["failed"][one.value]) for one in Failure}
        except (ValueError, KeyError, TypeError):
            return  # FollowerMetrics has said so
        self._heard_at = self._now_s()
        self._figures = figures
        self._counted.has_sent(sent)
        for failure, times in failed.items():
            self._counted.failures[failure] += times

    def _silent_s(self) -> float:
        return max(0.0, self._now_s() - self._heard_at)

    def _figure(self, name: str) -> float:
        return self._figures[name] if self._silent_s() <= SILENT_S else UNKNOWN


def _figure(value: object) -> float:
    """A number of a line; NaN is written as null. Raises TypeError for anything else."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _count(value: object) -> int:
    """What a counter grew by. Raises TypeError, ValueError: a counter never falls."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    if not 0 <= value <= COUNT_MAX:
        raise ValueError
    return value
