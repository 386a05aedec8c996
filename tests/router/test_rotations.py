"""Rotations per phase and model, bounded."""

from __future__ import annotations

import pytest

from projections.bounds import ROTATIONS_MAX
from projections.events.picks import Outcome, PhaseOutcome
from router.rotations import Rotations

PHASE = PhaseOutcome(1, None, 0, None, b"")


def outcome(prefill: int, decode: int, namespace: str | None = "ns") -> Outcome:
    return Outcome(namespace, PHASE, PHASE, prefill, decode, b"")


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-078")
def test_phases_and_models_rotate_apart() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(1, 2))
    rotations.advance("b", outcome(7, 8))
    found = [(rotations.prefill(model, "ns"), rotations.decode(model)) for model in "abc"]
    assert found == [(1, 2), (7, 8), (0, 0)]


@pytest.mark.req("PICK-09", "MNS-04")
def test_prefill_turns_inside_each_namespace_by_itself() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(1, 1, "one"))
    rotations.advance("a", outcome(5, 2, "two"))
    rotations.advance("a", outcome(9, 3, None))
    assert (rotations.prefill("a", "one"), rotations.prefill("a", "two")) == (1, 5)
    assert rotations.decode("a") == 3


@pytest.mark.req("KVP-04", "MNS-05")
def test_prefix_aware_picks_turn_over_all_namespaces_and_then_inside_one() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(3, 1, "one"), by_prefix=True)
    rotations.advance("a", outcome(4, 7, "two"), by_prefix=True)
    rotations.advance("a", outcome(9, 8, "two"))
    assert rotations.prefill_of_all("a") == 4
    assert (rotations.decode_inside("a", "one"), rotations.decode_inside("a", "two")) == (1, 7)
    assert rotations.decode("a") == 8


@pytest.mark.req("PICK-09")
def test_rotation_that_was_used_longest_ago_goes_first() -> None:
    rotations = Rotations(limit=4)
    for model in ("a", "b"):
        rotations.advance(model, outcome(1, 1))
    rotations.advance("a", outcome(2, 2))
    rotations.advance("c", outcome(1, 1))
    assert rotations.decode("b") == 0
    assert rotations.decode("a") == 2
    assert len(rotations) == 4


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-145")
def test_random_model_names_do_not_grow_memory() -> None:
    rotations = Rotations()
    for number in range(ROTATIONS_MAX + 10):
        rotations.advance(f"m{number}", outcome(0, 1))
    assert len(rotations) == ROTATIONS_MAX


def test_rotation_of_zero_takes_no_room() -> None:
    rotations = Rotations()
    rotations.advance("a", outcome(0, 0))
    assert len(rotations) == 0
