"""Figures of the follower in the metrics of the process that started it.

The follower answers no requests. Once a second it prints what was added since, as one line
of JSON on its standard output, which its parent reads through a pipe; the parent's counters
go on when the follower is started again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter as Counts
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

log = structlog.get_logger("picklog.follower")

EVERY_S = 1.0


class Verdict(StrEnum):
    """What became of a pick that was repeated."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNVERIFIABLE = "unverifiable"


class ShadowResult(StrEnum):
    """What a shadow made of a pick."""

    SAME = "same"
    MOVED = "moved"
    UNVERIFIABLE = "unverifiable"


class FollowerFigures:
    """In the follower: what there is to tell. Implements shadow.Figures."""

    def __init__(self) -> None:
        self._added: Counts[str] = Counts()

    def verified(self, verdict: Verdict) -> None:
        """See shadow.Figures."""
        self._added[f"verified_{verdict.value}"] += 1

    def shadowed(self, result: ShadowResult) -> None:
        """See shadow.Figures."""
        self._added[f"shadow_{result.value}"] += 1

    def line(self, is_shadowed: bool, lag_records: int, standing: Mapping[str, object]) -> bytes:
        """What was added since the line before, and how things stand. standing: see follower_standing."""
        added, self._added = self._added, Counts()
        document = {
            "added": dict(added),
            "is_shadowed": is_shadowed,
            "lag_records": max(0, lag_records),
            "standing": standing,
        }
        return orjson.dumps(document) + b"\n"


async def tell_parent(
    line: Callable[[], bytes], write: Callable[[bytes], object] | None = None, every_s: float | None = None
) -> None:
    """Print a line each second until cancelled, or until nobody reads any more."""
    out = sys.stdout.buffer
    while True:
        await asyncio.sleep(EVERY_S if every_s is None else every_s)
        try:
            if write is not None:
                write(line())
            else:
                out.write(line())
                out.flush()
        except (OSError, ValueError):
            return


class FollowerMetrics:
    """In the parent: series made of those lines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._unreproduced = Counter(
            "picks_unreproduced_total",
            "Sampled picks that were not equal when they were repeated. Must stay 0.",
            registry=registry,
        )
        verified = Counter(
            "picklog_picks_verified_total",
            "Sampled picks that were repeated, by verdict.",
            ("verdict",),
            registry=registry,
        )
        shadowed = Counter(
            "picklog_shadow_picks_total",
            "Picks that the shadow was asked, by result.",
            ("result",),
            registry=registry,
        )
        self._counters = {
            **{f"verified_{one.value}": verified.labels(one.value) for one in Verdict},
            **{f"shadow_{one.value}": shadowed.labels(one.value) for one in ShadowResult},
        }
        self._active = Gauge("picklog_shadow_active", "Whether a shadow is asked.", registry=registry)
        self._lag = Gauge(
            "picklog_follower_lag_records",
            "Records committed and not yet folded where picks are asked again.",
            registry=registry,
        )

    def take(self, line: bytes) -> None:
        """One line of the follower. Anything else on its output is passed by."""
        try:
            document: Any = orjson.loads(line)
            added = {str(name): int(number) for name, number in document["added"].items()}
            is_shadowed, lag = bool(document["is_shadowed"]), int(document["lag_records"])
        except (ValueError, KeyError, TypeError, AttributeError):
            log.debug("the follower printed something else", bytes=len(line))
            return
        for name, number in added.items():
            counter = self._counters.get(name)
            if counter is not None and number > 0:
                counter.inc(number)
        self._unreproduced.inc(max(0, added.get(f"verified_{Verdict.DIFFERENT.value}", 0)))
        self._active.set(int(is_shadowed))
        self._lag.set(lag)
