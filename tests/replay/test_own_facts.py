"""Overlays are made of own numbers: complete up to own_seq, or not at all."""

from projections.events.picks import PickMade
from replay.own_facts import OwnFacts
from tests.replay.recorded_log import RecordedLog


def some_facts() -> tuple[list[PickMade], OwnFacts, RecordedLog]:
    world = RecordedLog()
    replica = world.replica()
    picks = [replica.choose(f"r{number}") for number in range(4)]
    own = OwnFacts()
    for offset, fact in enumerate(picks, 100):
        own.hold(offset, fact)
    return picks, own, world


def test_an_overlay_holds_own_facts_behind_the_folded_ones() -> None:
    picks, own, _ = some_facts()
    overlay = own.overlay(picks[3], folded_seq=1)
    assert overlay is not None
    assert [len(overlay.ledger.lines(fact.pick_id)) for fact in picks] == [0, 1, 1, 0]


def test_a_missing_own_number_makes_no_overlay_until_it_is_folded() -> None:
    picks, _, world = some_facts()
    own = OwnFacts()
    for offset, fact in enumerate(picks[1:], 100):
        own.hold(offset, fact)
    assert own.overlay(picks[3], folded_seq=0) is None
    assert own.overlay(picks[3], folded_seq=1) is not None
    assert world.log.end_offset() > 0


def test_a_pick_that_goes_back_gets_an_overlay_of_its_own() -> None:
    picks, own, _ = some_facts()
    later = own.overlay(picks[3], folded_seq=0)
    earlier = own.overlay(picks[1], folded_seq=0)
    assert earlier is not later and earlier is not None
    assert [len(earlier.ledger.lines(fact.pick_id)) for fact in picks] == [1, 0, 0, 0]


def test_what_the_fold_holds_is_forgotten() -> None:
    _, own, _ = some_facts()
    assert len(own) == 4
    own.forget(101)
    assert len(own) == 2


def test_a_fact_that_was_sent_twice_counts_once() -> None:
    picks, own, _ = some_facts()
    own.hold(300, picks[0])
    assert len(own) == 4
