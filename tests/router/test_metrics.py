"""Label values that the router reports are closed and spelled as documented."""

from __future__ import annotations

import inspect

import pytest

from router.metrics import ErrorPhase, NoMetrics, Route, RouterMetrics, RoutingPath


@pytest.mark.req("MET-11", "MET-12")
def test_labels_are_closed_sets() -> None:
    assert [path.value for path in RoutingPath] == ["prefill_then_decode", "unified", "fallback"]
    assert [phase.value for phase in ErrorPhase] == ["orchestration", "prefill", "decode"]
    assert "other" in [route.value for route in Route]


def test_nothing_is_counted_by_every_call_of_the_protocol() -> None:
    wanted = [
        name for name, _ in inspect.getmembers(RouterMetrics, inspect.isfunction) if not name.startswith("_")
    ]
    for name in wanted:
        expected = inspect.signature(getattr(RouterMetrics, name))
        assert inspect.signature(getattr(NoMetrics, name)) == expected
    assert len(wanted) == 10
