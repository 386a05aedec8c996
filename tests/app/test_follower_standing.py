"""A follower that is a child stands in its parent's metrics as one that runs alone does in its own."""

from __future__ import annotations

import json
from math import isnan
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.audit_figures import AuditFigures, Failure
from app.follower_door import FollowerRegistry
from app.follower_figures import FollowerFigures
from app.follower_standing import COUNT_MAX, FIGURES, SILENT_S, ChildMetrics, StandingLines
from app.processes import LINE_BYTES_MAX
from projections.bounds import SECOND_US
from tests.app.test_follower_door import folded, standing

COUNTERS: list[tuple[str, dict[str, str]]] = [
    ("picklog_audit_messages_sent_total", {}),
    *(("picklog_audit_failures_total", {"cause": one.value}) for one in Failure),
]


class Parent:
    """Series of a parent, whose clock stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.registry = CollectorRegistry()
        self.metrics = ChildMetrics(self.registry, lambda: self.now_s)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(name, labels)
        assert found is not None, name
        return found

    def counted(self) -> list[float]:
        return [self.value(name, **labels) for name, labels in COUNTERS]


def line(words: dict[str, object]) -> bytes:
    return FollowerFigures().line(False, 0, words)


def test_a_parent_says_of_its_child_what_the_child_would_say_by_itself() -> None:
    world, follower, state, _ = standing()
    for _ in range(5):
        world.sample(1, 2)
    follower.tail, follower.restarts = folded(world), 3
    last = world.log.end_offset() - 1
    state.audit = AuditFigures()
    state.audit.wrote(last - 2, follower.tail.fold.state.intake.stamp - 4 * SECOND_US)
    state.audit.has_sent(7)
    state.audit.failed(Failure.AWAY)
    alone, parent = FollowerRegistry(state).registry, Parent()
    parent.metrics.take(line(StandingLines(state).words()))
    for name in FIGURES:
        assert parent.value(name) == alone.get_sample_value(name), name
    assert parent.counted() == [alone.get_sample_value(name, labels) for name, labels in COUNTERS]
    assert parent.value("picklog_audit_offset") == last - 2
    assert parent.value("picklog_audit_lag_records") == 2
    assert parent.value("picklog_audit_lag_seconds") == 4
    assert parent.value("picklog_follower_restarts") == 3
    assert parent.counted() == [7, 1, 0, 0]


def test_counters_go_on_when_the_child_is_started_again() -> None:
    parent = Parent()
    for _ in range(2):
        _, _, state, _ = standing()
        state.audit = AuditFigures()
        lines = StandingLines(state)
        for _ in range(3):
            state.audit.has_sent(10)
            state.audit.failed(Failure.REFUSED)
            parent.metrics.take(line(lines.words()))
        parent.metrics.take(line(lines.words()))
    assert parent.counted() == [60, 0, 6, 0]


def test_what_is_unknown_is_no_figure_and_what_no_audit_writes_neither() -> None:
    parent = Parent()
    assert all(isnan(parent.value(name)) for name in FIGURES), "before the first line"
    assert parent.counted() == [0, 0, 0, 0]
    _, _, state, _ = standing()
    parent.metrics.take(line(StandingLines(state).words()))
    unknown = {name for name in FIGURES if isnan(parent.value(name))}
    assert unknown == set(FIGURES) - {"picklog_follower_restarts"}


def test_figures_of_a_child_that_fell_silent_are_none_until_it_tells_again() -> None:
    parent = Parent()
    _, _, state, _ = standing()
    state.audit = AuditFigures()
    state.audit.has_sent(4)
    lines = StandingLines(state)
    parent.metrics.take(line(lines.words()))
    parent.now_s += SILENT_S
    assert parent.value("picklog_audit_offset") == -1
    assert parent.value("picklog_follower_silent_seconds") == SILENT_S
    parent.now_s += 1
    assert all(isnan(parent.value(name)) for name in FIGURES)
    assert parent.value("picklog_follower_silent_seconds") == SILENT_S + 1
    assert parent.counted()[0] == 4, "what was counted stands"
    parent.metrics.take(line(lines.words()))
    assert parent.value("picklog_audit_offset") == -1
    assert parent.value("picklog_follower_silent_seconds") == 0


def good() -> dict[str, Any]:
    return {
        "figures": dict.fromkeys(FIGURES, 1),
        "sent": 1,
        "failed": {one.value: 1 for one in Failure},
    }


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {}},
        {"figures": dict.fromkeys(FIGURES, "9")},
        {"figures": dict.fromkeys(FIGURES, True)},
        {"sent": -1},
        {"sent": COUNT_MAX + 1},
        {"sent": 1.5},
        {"sent": True},
        {"failed": {"away": 1}},
        {"failed": [1, 2, 3]},
        {"figures": None},
    ],
)
def test_a_line_that_says_something_else_changes_nothing_of_how_the_follower_stands(
    change: dict[str, Any],
) -> None:
    parent = Parent()
    parent.metrics.take(line(good()))
    parent.now_s += 1
    parent.metrics.take(line({**good(), **change}))
    assert parent.counted() == [1, 1, 1, 1]
    assert [parent.value(name) for name in FIGURES] == [1] * len(FIGURES)
    assert parent.value("picklog_follower_silent_seconds") == 1, "it is as silent as before"


@pytest.mark.parametrize("text", [b"", b"hello\n", b"[]\n", b'{"standing": 5}\n', b"null\n"])
def test_other_output_of_a_child_is_passed_by(text: bytes) -> None:
    parent = Parent()
    parent.now_s += 3
    parent.metrics.take(text)
    assert parent.value("picklog_follower_silent_seconds") == 3
    assert parent.counted() == [0, 0, 0, 0]


def test_the_longest_line_is_shorter_than_what_a_parent_reads() -> None:
    words = {
        "figures": dict.fromkeys(FIGURES, 1.7976931348623157e308),
        "sent": COUNT_MAX,
        "failed": {one.value: COUNT_MAX for one in Failure},
    }
    told = line(words)
    assert len(told) < LINE_BYTES_MAX // 8
    assert json.loads(told)["standing"]["sent"] == COUNT_MAX
