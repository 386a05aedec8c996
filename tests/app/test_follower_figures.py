"""Figures of the follower reach its parent's metrics, and go on when it is started again."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from app.follower_figures import (
    FollowerFigures,
    FollowerMetrics,
    ShadowResult,
    Verdict,
    tell_parent,
)


def text(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_series_stand_at_0_from_the_start() -> None:
    registry = CollectorRegistry()
    FollowerMetrics(registry)
    found = text(registry)
    assert "picks_unreproduced_total 0.0" in found
    assert 'picklog_picks_verified_total{verdict="different"} 0.0' in found
    assert 'picklog_shadow_picks_total{result="moved"} 0.0' in found


def test_what_followers_tell_adds_up_over_restarts() -> None:
    registry = CollectorRegistry()
    metrics = FollowerMetrics(registry)
    for _ in range(2):
        figures = FollowerFigures()
        for verdict in (Verdict.EQUAL, Verdict.EQUAL, Verdict.DIFFERENT):
            figures.verified(verdict)
        figures.shadowed(ShadowResult.MOVED)
        metrics.take(figures.line(True, 7, {}))
        metrics.take(figures.line(True, 3, {}))
    found = text(registry)
    assert "picks_unreproduced_total 2.0" in found
    assert 'picklog_picks_verified_total{verdict="equal"} 4.0' in found
    assert 'picklog_shadow_picks_total{result="moved"} 2.0' in found
    assert "picklog_shadow_active 1.0" in found
    assert "picklog_follower_lag_records 3.0" in found


def test_lines_of_anything_else_change_nothing() -> None:
    registry = CollectorRegistry()
    metrics = FollowerMetrics(registry)
    before = text(registry)
    for line in (
        b"",
        b"hello\n",
        b"[]",
        b'{"added": []}',
        b'{"added": {"x": 1}, "is_shadowed": 0, "lag_records": 0}',
    ):
        metrics.take(line)
    assert text(registry) == before


async def test_a_line_is_told_again_and_again_until_nobody_reads() -> None:
    lines: list[bytes] = []

    def write(line: bytes) -> None:
        if len(lines) == 3:
            raise BrokenPipeError
        lines.append(line)

    await asyncio.wait_for(tell_parent(lambda: b"x\n", write, every_s=0.0), 10)
    assert lines == [b"x\n"] * 3
