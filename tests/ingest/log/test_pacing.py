"""When a batch goes out, by what waits for it."""

from __future__ import annotations

from ingest.log.pacing import PATIENCE_US, Pacing
from projections.events.control import Pinged
from tests.ingest.log.facts import REPLICA, end, pick

EVERY_US = 2_000
PING = Pinged(REPLICA, 1, -1)


def after_a_batch(picks: int) -> Pacing:
    pacing = Pacing(EVERY_US)
    pacing.on_batch(1_000_000, picks, is_rest=False)
    return pacing


def test_a_pick_goes_at_once_while_picks_are_few() -> None:
    pacing = after_a_batch(picks=1)
    pacing.on_fact(1_000_100, pick(1))
    assert pacing.due_at == 1_000_100


def test_picks_of_an_interval_go_together_while_they_are_many() -> None:
    pacing = after_a_batch(picks=2)
    pacing.on_fact(1_000_100, pick(1))
    assert pacing.due_at == 1_000_000 + EVERY_US


def test_other_facts_wait_for_the_interval() -> None:
    pacing = after_a_batch(picks=0)
    pacing.on_fact(1_000_100, PING)
    assert pacing.due_at == 1_000_000 + EVERY_US


def test_an_end_waits_for_others_and_goes_alone_at_last() -> None:
    pacing = after_a_batch(picks=1)
    pacing.on_fact(1_000_100, end(1))
    assert pacing.due_at == 1_000_100 + PATIENCE_US
    pacing.on_fact(1_000_200, end(2))
    assert pacing.due_at == 1_000_100 + PATIENCE_US
    pacing.on_fact(1_000_300, pick(3))
    assert pacing.due_at == 1_000_300


def test_what_a_batch_could_not_take_goes_next() -> None:
    pacing = Pacing(EVERY_US)
    pacing.on_batch(5_000, 9, is_rest=True)
    assert pacing.due_at == 5_000


def test_a_batch_that_came_to_nothing_is_due_again_with_its_interval() -> None:
    pacing = after_a_batch(picks=1)
    pacing.on_returned()
    assert pacing.due_at == pacing.interval_end == 1_000_000 + EVERY_US
