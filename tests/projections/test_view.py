"""What a picker reads: the fold and the replica's own news together."""

from __future__ import annotations

import pytest

from projections.events.picks import (
    Chosen,
    Fault,
    LostPick,
    Outcome,
    PhaseOutcome,
    PickMade,
    PickReason,
)
from projections.identity import RankKey, WorkerKey
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.view import Overlay, View
from tests.router.picker.builders import (
    NAMESPACE,
    NOW,
    REPLICA,
    S,
    a_fleet,
    a_question,
    a_record,
    a_sample,
    a_view,
    a_worker,
    an_end,
    made,
)

ONE = WorkerKey(NAMESPACE, 1)
RANK = RankKey(NAMESPACE, 1, 0)
FLEET = a_fleet(a_worker(1), a_worker(2, dp_size=2))
ALONE = Outcome(
    NAMESPACE,
    PhaseOutcome(PickReason.NO_PREFILL_POOL, None, 0, None, b""),
    PhaseOutcome(PickReason.LOAD, Chosen(1, 0, False, 160, 10), 2, None, b""),
    0,
    1,
    b"",
)


def a_pick(number: int, at: int = NOW) -> PickMade:
    return made(a_question(asked_at=at), ALONE, number)


def folded(*picks: PickMade) -> Ledger:
    ledger = Ledger()
    for fact in picks:
        ledger.apply_pick(a_record(fact), FLEET)
    return ledger


@pytest.mark.req("STORE-06", "EVS-05")
def test_charges_of_fold_and_overlay_add_up() -> None:
    overlay = Overlay()
    overlay.add_pick(a_pick(2))
    view = a_view(FLEET, ledger=folded(a_pick(1)), overlay=overlay)
    assert view.unanswered(RANK, NOW) == (320, 20)
    assert (view.unanswered_tokens(RANK, NOW), view.unanswered_blocks(RANK, NOW)) == (320, 20)


def test_sample_in_the_fold_answers_a_pick_of_the_overlay() -> None:
    overlay, load = Overlay(), LoadStore()
    overlay.add_pick(a_pick(1))
    load.apply_sample(a_record(a_sample(1, 1, blocks=5), NOW), FLEET)
    view = a_view(FLEET, load, overlay=overlay)
    assert view.unanswered(RANK, NOW + S) == (0, 0)
    assert view.last_sample_at(ONE) == NOW
    sample = view.sample(RANK)
    assert sample is not None and sample.active_decode_blocks == 5


def test_overlay_forgets_what_the_as_of_holds() -> None:
    overlay = Overlay()
    overlay.add_pick(a_pick(1))
    overlay.add_end(an_end(a_pick(1).pick_id, NOW, number=2))
    overlay.add_pick(a_pick(3))
    assert len(overlay) == 3
    overlay.folded(1)
    assert a_view(FLEET, overlay=overlay).unanswered_blocks(RANK, NOW) == 10
    assert len(overlay) == 2
    overlay.folded(2)
    assert not overlay.ends and len(overlay) == 1
    overlay.folded(3)
    assert a_view(FLEET, overlay=overlay).unanswered_blocks(RANK, NOW) == 0


@pytest.mark.req("STORE-11")
def test_end_in_the_overlay_lifts_the_stall_of_a_pick_in_the_fold() -> None:
    at = NOW + 6 * S
    ledger = folded(a_pick(1))
    assert a_view(FLEET, ledger=ledger).is_stalled(ONE, at)
    overlay = Overlay()
    overlay.add_end(an_end(a_pick(1).pick_id, NOW))
    view = a_view(FLEET, ledger=ledger, overlay=overlay)
    assert not view.is_stalled(ONE, at)
    assert view.unanswered_blocks(RANK, at) == 10, "its charge stays"


@pytest.mark.req("STORE-11")
def test_pick_and_end_in_the_overlay_are_no_stall() -> None:
    at, overlay = NOW + 6 * S, Overlay()
    overlay.add_pick(a_pick(1))
    assert a_view(FLEET, overlay=overlay).is_stalled(ONE, at)
    overlay.add_end(an_end(a_pick(1).pick_id, NOW))
    assert not a_view(FLEET, overlay=overlay).is_stalled(ONE, at)


@pytest.mark.req("DYN-14")
@pytest.mark.parametrize("where", ["fold", "overlay"])
def test_fault_in_the_overlay_makes_the_workers_of_its_pick_suspect(where: str) -> None:
    overlay = Overlay()
    if where == "overlay":
        overlay.add_pick(a_pick(1))
    overlay.add_end(an_end(a_pick(1).pick_id, NOW, fault=Fault.FAULT))
    view = a_view(FLEET, ledger=folded(a_pick(1)) if where == "fold" else None, overlay=overlay)
    assert view.is_suspect(ONE, NOW + 9 * S)
    assert not view.is_suspect(ONE, NOW + 10 * S)
    assert not view.is_suspect(WorkerKey(NAMESPACE, 2), NOW)
    load = LoadStore()
    load.apply_sample(a_record(a_sample(1, 1, blocks=5), NOW + 1), FLEET)
    assert not View(0, FLEET, load, view.ledger, overlay).is_suspect(ONE, NOW + S)


def test_second_end_of_a_pick_is_ignored() -> None:
    overlay = Overlay()
    overlay.add_pick(a_pick(1))
    overlay.add_end(an_end(a_pick(1).pick_id, NOW))
    overlay.add_end(an_end(a_pick(1).pick_id, NOW, fault=Fault.FAULT, number=3))
    assert not a_view(FLEET, overlay=overlay).is_suspect(ONE, NOW)


def test_lost_pick_is_over_only_for_those_who_asked_after_its_end() -> None:
    lost = LostPick(b"p", 0, NOW, NOW, NAMESPACE, Chosen(1, 0, False, 160, 10), None, 2, NOW)
    for own_seq, stalled in ((1, True), (2, False)):
        overlay = Overlay()
        overlay.add_lost(REPLICA, lost, own_seq)
        view = a_view(FLEET, overlay=overlay)
        assert view.is_stalled(ONE, NOW + 6 * S) is stalled
        assert view.unanswered_blocks(RANK, NOW) == 10


def test_reading_many_workers_says_the_same_as_asking_each() -> None:
    load, overlay = LoadStore(), Overlay()
    load.apply_sample(a_record(a_sample(2, 1, rank=1, blocks=5), NOW - S), FLEET)
    ledger = folded(a_pick(1), a_pick(2, NOW + 3 * S))
    overlay.add_pick(a_pick(3))
    overlay.add_end(an_end(a_pick(2).pick_id, NOW + 4 * S, fault=Fault.FAULT, number=4))
    view = a_view(FLEET, load, ledger, overlay)
    for at in (NOW, NOW + 6 * S, NOW + 20 * S, NOW + 40 * S):
        for reading in view.read(FLEET.workers.values(), at):
            key = reading.worker.key
            assert reading.suspect == view.is_suspect(key, at)
            assert reading.stalled == view.is_stalled(key, at)
            for rank in reading.worker.ranks():
                assert reading.unanswered.get(rank, (0, 0)) == view.unanswered(RankKey(*key, rank), at)
                assert reading.samples.get(rank) == view.sample(RankKey(*key, rank))


@pytest.mark.parametrize("where", ["fold", "overlay"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_reading_agrees_at_every_boundary(where: str, order: tuple[int, int]) -> None:
    """Dispatches one microsecond apart, heard and asked at each instant around them."""
    picks = {1: a_pick(1, NOW), 2: a_pick(2, NOW + 1)}
    overlay = Overlay()
    if where == "overlay":
        for number in order:
            overlay.add_pick(picks[number])
    ledger = folded(*(picks[number] for number in order)) if where == "fold" else Ledger()
    seen = set()
    for heard_at in (None, NOW - 2, NOW - 1, NOW, NOW + 1):
        load = LoadStore()
        if heard_at is not None:
            load.apply_sample(a_record(a_sample(1, 1, blocks=5), heard_at), FLEET)
        view = a_view(FLEET, load, ledger, overlay)
        for at in (NOW + 5 * S - 1, NOW + 5 * S, NOW + 5 * S + 1, NOW + 30 * S, NOW + 30 * S + 1):
            reading = view.read([FLEET.workers[ONE]], at)[0]
            assert reading.unanswered.get(0, (0, 0)) == view.unanswered(RANK, at)
            assert reading.stalled == view.is_stalled(ONE, at)
            seen.add((reading.stalled, reading.unanswered.get(0, (0, 0))[1]))
    assert seen == {(False, 20), (True, 20), (False, 10), (True, 10), (False, 0)}


def test_reading_without_the_ledger_sees_samples_alone() -> None:
    overlay = Overlay()
    overlay.add_pick(a_pick(1))
    overlay.add_end(an_end(a_pick(1).pick_id, NOW, fault=Fault.FAULT))
    view = a_view(FLEET, ledger=folded(a_pick(1)), overlay=overlay)
    (one, _) = view.read(FLEET.workers.values(), NOW + 6 * S, weigh=False)
    assert (one.suspect, one.stalled, dict(one.unanswered)) == (False, False, {})
