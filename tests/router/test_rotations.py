"""Rotations per phase and model, bounded."""

from __future__ import annotations

import pytest

from projections.bounds import ROTATIONS_MAX
from projections.events.picks import Outcome, Phase, PhaseOutcome
from router.rotations import Rotations

PHASE = PhaseOutcome(1, None, 0, None, b"")


def outcome(prefill: int, decode: int) -> Outcome:
    return Outcome(None, PHASE, PHASE, prefill, decode, b"")


@pytest.mark.req("PICK-09")
def test_phases_and_models_rotate_apart() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(1, 2))
    rotations.advance("b", outcome(7, 8))
    assert [rotations.of(phase, model) for model in "ab" for phase in Phase] == [1, 2, 7, 8]
    assert rotations.of(Phase.DECODE, "c") == 0


@pytest.mark.req("PICK-09")
def test_rotation_that_was_used_longest_ago_goes_first() -> None:
    rotations = Rotations(limit=4)
    for model in ("a", "b"):
        rotations.advance(model, outcome(1, 1))
    rotations.advance("a", outcome(2, 2))
    rotations.advance("c", outcome(1, 1))
    assert rotations.of(Phase.DECODE, "b") == 0
    assert rotations.of(Phase.DECODE, "a") == 2
    assert len(rotations) == 4


@pytest.mark.req("PICK-09")
def test_random_model_names_do_not_grow_memory() -> None:
    rotations = Rotations()
    for number in range(ROTATIONS_MAX + 10):
        rotations.advance(f"m{number}", outcome(0, 1))
    assert len(rotations) == ROTATIONS_MAX


def test_rotation_of_zero_takes_no_room() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(0, 0))
    assert len(rotations) == 0
