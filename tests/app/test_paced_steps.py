"""Steps are written far apart, and cost little of the time."""

from __future__ import annotations

from pathlib import Path

from app.paced_steps import COST_SHARE, PacedSteps
from app.replay_steps import STEP_RECORDS, Steps
from projections.events.envelope import Mark
from projections.fold import Fold
from projections.fold_state import State


class Clock:
    """Seconds; every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def at(offset: int) -> Fold:
    return Fold(frozenset(), Mark(offset, offset, 1), State())


def test_one_is_due_when_the_newest_is_far_behind(tmp_path: Path) -> None:
    paced = PacedSteps(Steps(tmp_path), lambda: 0.0)
    assert not paced.is_due(at(STEP_RECORDS - 2)) and paced.is_due(at(STEP_RECORDS - 1))
    assert paced.write(at(STEP_RECORDS), bytes(16))
    assert not paced.is_due(at(2 * STEP_RECORDS - 1)) and paced.is_due(at(2 * STEP_RECORDS))
    anew = PacedSteps(Steps(tmp_path), lambda: 0.0)
    assert not anew.is_due(at(2 * STEP_RECORDS - 1))


def test_what_took_long_is_not_done_again_for_a_long_while(tmp_path: Path) -> None:
    clock = Clock()
    paced = PacedSteps(Steps(tmp_path), clock)
    paced.write(at(STEP_RECORDS), bytes(16))
    next_one = at(3 * STEP_RECORDS)
    assert not paced.is_due(next_one)
    clock.now += 1 / COST_SHARE
    assert paced.is_due(next_one)
