"""Seeds and stories of two ingest processes must be able to fail: each of these breaks a takeover's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ingest.log.standby
from ingest.log.claim import Claim
from ingest.subscriptions.held_frames import HeldFrames
from tests.simulation.invariants import check_all
from tests.simulation.standbys import Standbys
from tests.simulation.test_standby_seeds import Story

SEEDS = 40  # at most so many are tried for one mutant; most die at once

FIRST = {  # where a rule is rarely met: try this seed first
    "_every_connection_begins_anew": 2,
    "_quiet_publishers_are_not_settled": 2,
    "_the_young_do_not_yield": 31,
}

Mutate = Callable[[pytest.MonkeyPatch], None]


def _nothing_that_was_held_is_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldFrames, "__iter__", lambda self: iter(()))


def _every_connection_begins_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldFrames, "run_that_joins", lambda self, key, last: None)


def _quiet_publishers_are_not_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldFrames, "settle", lambda self, state, owner_heard_at: None)


def _the_young_do_not_yield(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ingest.log.standby, "YIELD_US", 0)


def _owners_do_not_hear_of_other_claims(patch: pytest.MonkeyPatch) -> None:
    honest = Claim._on_claim

    def on_claim(self: Claim, record: Any, epoch: int, now_us: int) -> Any:
        if self.epoch and record.writer != self.writer:
            return []
        return honest(self, record, epoch, now_us)

    patch.setattr(Claim, "_on_claim", on_claim)


def tell_twice(seed: int) -> None:
    """A story, undisturbed and disturbed."""
    undisturbed, _ = Story(seed, is_disturbed=False).told()
    disturbed, _ = Story(seed, is_disturbed=True).told()
    assert disturbed == undisturbed


def live(seed: int) -> None:
    """A history."""
    sim = Standbys(seed)
    sim.run()
    check_all(sim)


@pytest.mark.parametrize(
    ("mutate", "run"),
    [
        (_nothing_that_was_held_is_told, tell_twice),
        (_every_connection_begins_anew, tell_twice),
        (_quiet_publishers_are_not_settled, tell_twice),
        (_the_young_do_not_yield, tell_twice),
        (_owners_do_not_hear_of_other_claims, live),
    ],
    ids=lambda one: one.__name__.strip("_"),
)
def test_a_broken_rule_of_a_takeover_is_noticed(
    mutate: Mutate, run: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in (FIRST.get(mutate.__name__, 0), *range(1, SEEDS)):
        try:
            run(seed)
        except AssertionError as noticed:
            print(f"seed {seed}: {noticed}"[:200])
            return
    pytest.fail(f"{mutate.__name__} survived {SEEDS} seeds")
