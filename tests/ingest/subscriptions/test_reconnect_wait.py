"""Ceilings double, fall back after a healthy session alone, and the draw decides below them."""

from __future__ import annotations

import pytest

from ingest.subscriptions.reconnect_wait import ReconnectWait
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS


@pytest.mark.req("LOAD-22")
def test_the_ceiling_doubles_to_thirty_seconds() -> None:
    wait = ReconnectWait(KV_METRICS_LIMITS, lambda: 1.0)
    assert [wait.after_session(None) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.req("LOAD-22")
def test_the_draw_takes_any_part_of_the_ceiling() -> None:
    draws = iter([0.0, 0.5, 0.999])
    wait = ReconnectWait(KV_METRICS_LIMITS, lambda: next(draws))
    assert [wait.after_session(None) for _ in range(3)] == [0.0, 0.5, 1.998]


@pytest.mark.req("ZMTP-10")
def test_only_a_session_of_thirty_seconds_brings_the_floor_back() -> None:
    wait = ReconnectWait(KV_METRICS_LIMITS, lambda: 1.0)
    assert [wait.after_session(lasted_s) for lasted_s in (0, 29.9, 29.9, 30, 29.9)] == [0.5, 1, 2, 0.5, 1]
