"""Ageing, ends, departures, reclaiming, ceilings, fold modes, digests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from projections.bounds import KV_RANKS_MAX
from projections.events.control import FoldModeAdopted
from projections.events.discovery import KeysDropped, Keyspace
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionContinued,
    SubscriptionState,
    Transport,
)
from projections.fold_modes import KV_INDEX, LOWER_TIERS, SIDE_INDEX
from projections.kv import cursors
from projections.kv.index_limits import IndexLimits
from projections.kv.state import NEVER, KvState
from tests.projections.fleet_script import NS, REPLICA, instance_key
from tests.projections.kv.kv_script import (
    ALL_MODES,
    HOST,
    KvScript,
    S,
    pick_of,
    ranks_card,
    removed,
    stored,
)


def two_workers(*modes: int) -> KvScript:
    script = KvScript(*modes)
    for worker in (1, 2):
        script.worker(worker)
        script.batch(stored(1, "a", "b", worker=worker), publisher_id=70 + worker)
    return script


@pytest.mark.req("BRS-12", "KVX-14")
def test_a_publisher_that_is_down_counts_for_just_under_sixty_seconds() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.BACKOFF, "closed", publisher_id=71)
    down_at = script.time
    script.tick(30 * S)
    left = 60 * S - (script.time - down_at)
    assert script.device("a", after=left - 1) == {(1, 0): 1, (2, 0): 1}
    assert script.device("a", after=left) == {(2, 0): 1}, "by arithmetic"
    assert script.blocks(1) == 2
    script.tick(left - 1)
    assert script.blocks(1) == 2 and script.notices == []


@pytest.mark.req("BRS-11")
def test_what_aged_is_cleared_at_the_first_record_of_the_owner_past_it() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.PENDING, publisher_id=71)
    script.tick(59 * S)
    script.sample(2, 1)
    assert script.blocks(1) == 2
    script.tick(1 * S)
    assert script.clears() == [("aged", 1, 0, 2)] and script.results() == {"aged": 1}
    assert script.device("a") == {(2, 0): 1}
    assert not script.view().publishes(NS, 1, 0)
    script.kv_subscription(SubscriptionState.CONNECTED, publisher_id=71)
    script.batch(stored(2, "c"), publisher_id=71)
    assert script.results() == {"applied": 1}, "the cursor stayed"
    assert script.device("c") == {(1, 0): 1}


@pytest.mark.req("BRS-11")
def test_a_sample_may_be_the_record_that_clears_what_aged() -> None:
    script = two_workers()
    script.sample(2, 1)
    script.kv_subscription(SubscriptionState.BACKOFF, publisher_id=71)
    for second in range(60):
        script.say(SampleReceived(NS, 77, 1, second + 2, second + 2, 2, 0, None, None, 3, 0, None), step=S)
    assert script.blocks(1) == 0


@pytest.mark.req("BRS-12", "BRS-06")
def test_a_shorter_outage_keeps_blocks_and_cursors() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.BACKOFF, publisher_id=71)
    script.tick(59 * S)
    script.kv_subscription(SubscriptionState.CONNECTED, publisher_id=71)
    script.tick(59 * S)
    script.tick(59 * S)
    script.batch(stored(2, "a", "b", "c", below=2), publisher_id=71)
    assert script.results() == {"applied": 1} and script.device("a", "b", "c")[1, 0] == 3


@pytest.mark.req("EVS-16")
def test_a_publisher_that_another_owner_continues_is_heard_and_keeps_its_blocks() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.BACKOFF, publisher_id=71)
    script.say(SubscriptionContinued(int(Family.KV), NS, 71, "backend", 9, int(Transport.DIRECT)))
    script.tick(59 * S)
    script.tick(59 * S)
    script.batch(stored(2, "a", "b", "c", below=2), publisher_id=71)
    assert script.results() == {"applied": 1} and script.device("a", "b", "c")[1, 0] == 3


@pytest.mark.req("BRS-11")
def test_a_silent_log_ages_everything() -> None:
    script = two_workers()
    assert len(script.device("a", after=60 * S - 1)) == 2
    assert script.device("a", after=60 * S) == {}
    script.tick(60 * S)
    assert [clear[0] for clear in script.clears()] == ["aged", "aged"] and script.device("a") == {}


@pytest.mark.req("BRS-11")
def test_a_new_owner_hears_nobody_since_the_last_record_of_the_old() -> None:
    script = two_workers()
    last = script.time
    script.time += 20 * S
    script.open(b"another owner---")
    script.kv_subscription(SubscriptionState.CONNECTED, publisher_id=72)
    left = 60 * S - (script.time - last)
    assert len(script.device("a", after=left - 1)) == 2
    assert script.device("a", after=left) == {(2, 0): 1}
    script.tick(left)
    assert script.clears() == [("aged", 1, 0, 2)]


def test_a_new_owner_after_a_long_silence_begins_without_blocks() -> None:
    script = two_workers()
    script.time += 80 * S
    script.open(b"another owner---")
    assert script.blocks(1) == script.blocks(2) == 0


@pytest.mark.req("BRS-16")
def test_a_subscription_that_ends_for_good_takes_its_blocks_along() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.ENDED, "departed", publisher_id=71)
    assert script.clears() == [("ended", 1, 0, 2)]
    script.batch(stored(9, "a"), publisher_id=71)
    assert script.results() == {"applied": 1}, "its cursors are gone"


@pytest.mark.req("BRS-15", "STORE-17")
def test_a_transport_switch_keeps_blocks_and_cursors() -> None:
    script = two_workers()
    script.kv_subscription(SubscriptionState.ENDED, "transport", publisher_id=71)
    assert script.clears() == [] and script.device("a") == {(1, 0): 1, (2, 0): 1}
    script.kv_subscription(SubscriptionState.CONNECTED, publisher_id=71)
    script.batch(stored(4, "a"), publisher_id=71)
    assert script.results() == {"applied": 1, "gap": 1}


@pytest.mark.req("KVX-18", "KVX-13")
@pytest.mark.field("B-004", "B-056")
def test_a_worker_that_leaves_is_masked_at_once_and_reclaimed_with_the_next_record() -> None:
    script = two_workers()
    script.delete(Keyspace.INSTANCES, instance_key(1))
    assert script.clears() == [("departed", 1, 0, 2)]
    assert script.device("a") == {(2, 0): 1} and script.blocks(1) == 2
    assert script.kv.publishers.by_key[NS, 71].feeds == {}
    script.tick()
    assert script.kv.ranks.get((NS, 1, 0)) is None
    assert script.kv.indexes[0].ownerships == 2 and script.kv.due_at > script.time


@pytest.mark.req("KVX-18")
def test_many_ranks_are_reclaimed_one_a_record_in_order() -> None:
    script = KvScript()
    for worker in (1, 2, 3):
        script.worker(worker, **ranks_card(2))
        for rank in (0, 1):
            script.batch(stored(1, "a", worker=worker, rank=rank), publisher_id=worker * 10 + rank)
    script.say(KeysDropped((NS,), "disabled"))
    assert script.device("a") == {} and len(script.kv.ranks) == 6
    for left in (5, 4, 3, 2, 1, 0, 0):
        script.tick()
        assert len(script.kv.ranks) == left == script.kv.indexes[0].ownerships
    assert script.kv.indexes[0].nodes == 0


@pytest.mark.req("KVX-18")
def test_ranks_that_a_card_no_longer_declares_are_masked() -> None:
    script = KvScript()
    script.worker(1, **ranks_card(3))
    for rank in range(3):
        script.batch(stored(1, "a", rank=rank), publisher_id=70 + rank)
    script.worker(1, **ranks_card(2))
    assert script.clears() == [("departed", 1, 2, 1)]
    assert script.device("a") == {(1, 0): 1, (1, 1): 1}


@pytest.mark.req("KVX-18")
def test_a_rank_that_comes_back_before_its_turn_begins_with_nothing() -> None:
    script = two_workers()
    script.worker(3)
    script.batch(stored(1, "a", worker=3), publisher_id=73)
    script.say(KeysDropped((NS,), "x"))
    script.worker(3)
    script.batch(stored(2, "c", worker=3), publisher_id=73)
    assert script.results() == {"applied": 1}
    assert script.device("a") == {} and script.device("c") == {(3, 0): 1}
    for _ in range(4):
        script.tick()
    assert script.device("c") == {(3, 0): 1}


@pytest.mark.req("KVX-12")
def test_masked_ranks_count_against_the_ceilings() -> None:
    script = KvScript()
    limits = IndexLimits(nodes=4, blocks=3, ownerships=4, owners=2, run_blocks=2)
    script.fold.state.kv.__init__(limits, limits)  # type: ignore[misc]
    script.say(FoldModeAdopted((KV_INDEX,)))
    for worker in (1, 2):
        script.worker(worker)
    script.batch(stored(1, "a", "b", "c", "d"))
    assert script.results() == {"over_capacity": 1} and script.blocks() == 3
    script.batch(stored(1, "x", "y", worker=2), publisher_id=71)
    assert script.results() == {"over_capacity": 1} and script.blocks(2) == 1
    script.delete(Keyspace.INSTANCES, instance_key(1))
    script.say(pick_of(script.question("q"), 2), writer=REPLICA)
    script.batch(stored(2, "x", "y", worker=2, below=1), publisher_id=71)
    assert script.results() == {"applied": 1}, "reclaimed before this very record"


@pytest.mark.req("KVX-12")
@pytest.mark.field("B-055")
def test_cursors_publishers_and_ranks_have_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "KV_CURSORS_PER_SUBSCRIPTION_MAX", 2)
    monkeypatch.setattr(cursors, "KV_CURSORS_MAX", 3)
    monkeypatch.setattr(cursors, "KV_PUBLISHERS_MAX", 2)
    script = KvScript()
    script.worker(1, **ranks_card(8))
    script.batch(*(stored(1, "a", rank=rank) for rank in range(3)))
    assert script.results() == {"applied": 2, "over_capacity": 1}
    script.batch(*(stored(1, "a", rank=rank) for rank in (4, 5)), publisher_id=71)
    assert script.results() == {"applied": 1, "over_capacity": 1}
    script.batch(stored(1, "a", rank=6), stored(2, "b", rank=6), publisher_id=72)
    assert script.results() == {"over_capacity": 2}, "both publishers have cursors"
    script.kv_subscription(SubscriptionState.ENDED, "departed", publisher_id=71)
    script.batch(stored(1, "a", rank=6), publisher_id=72)
    assert script.results() == {"applied": 1}
    script.kv.ranks._ranks_max = 3
    script.kv_subscription(SubscriptionState.ENDED, "departed", publisher_id=70)
    script.batch(stored(1, "a", rank=7), publisher_id=72)
    assert script.results() == {"over_capacity": 1}
    assert KV_RANKS_MAX == 16_384


def test_a_publisher_without_cursors_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "KV_PUBLISHERS_MAX", 1)
    script = KvScript()
    script.worker(1)
    script.batch(stored(1, "a", worker=9))
    script.batch(stored(1, "a"), publisher_id=71)
    assert script.results() == {"applied": 1} and [*script.kv.publishers.by_key] == [(NS, 71)]


@pytest.mark.req("KVX-20")
def test_each_mode_that_is_dropped_takes_along_what_it_filled() -> None:
    script = KvScript(*ALL_MODES)
    script.worker(1)
    script.batch(stored(1, "a"), stored(2, "a", "b", tier=HOST))
    script.say(pick_of(script.question("a", "b", "c"), 1))
    assert len(script.kv.side) == 1
    script.say(FoldModeAdopted((KV_INDEX, LOWER_TIERS)))
    assert len(script.kv.side) == 0 and script.blocks(tier=1) == 2
    script.say(FoldModeAdopted((KV_INDEX,)))
    assert script.prefixes("a", "b") == {(1, 0): (1, 0, 0, 0)}
    script.say(FoldModeAdopted((KV_INDEX, LOWER_TIERS)))
    script.batch(stored(3, "a", "b", tier=HOST))
    assert script.prefixes("a", "b") == {(1, 0): (1, 1, 0, 0)}
    script.say(FoldModeAdopted((SIDE_INDEX,)))
    assert script.kv.digest == 0 and script.kv.due_at == NEVER and not script.kv.has_side


def test_what_readers_remember_of_slots_does_not_outlive_the_index() -> None:
    script = two_workers()
    before = script.kv.ranks.generation
    script.say(FoldModeAdopted(()))
    script.say(FoldModeAdopted((KV_INDEX,)))
    assert script.kv.ranks.generation > before and script.device("a") == {}
    script.batch(stored(7, "z", worker=2), publisher_id=72)
    assert script.device("z") == {(2, 0): 1}


@pytest.mark.req("KVX-20", "EVS-03")
def test_the_digest_does_not_depend_on_the_way() -> None:
    straight, roundabout = two_workers(), KvScript()
    for worker in (2, 1):
        roundabout.worker(worker)
        roundabout.batch(stored(1, "x", worker=worker), publisher_id=70 + worker)
        assert roundabout.kv.digest
    for worker in (1, 2):
        publisher = 70 + worker
        roundabout.batch(removed(2, "x", worker=worker), publisher_id=publisher)
        roundabout.batch(stored(3, "a", "b", worker=worker), publisher_id=publisher)
        straight.batch(stored(2, worker=worker), stored(3, worker=worker), publisher_id=publisher)
    assert straight.kv.digest == roundabout.kv.digest != 0


def test_the_digest_tells_states_apart() -> None:
    script = two_workers(*ALL_MODES)
    changes: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: script.batch(stored(2, "c"), publisher_id=71),
        lambda: script.batch(stored(3), publisher_id=71),
        lambda: script.batch(stored(4, "q", tier=HOST), publisher_id=71),
        lambda: script.kv_subscription(SubscriptionState.BACKOFF, publisher_id=71),
        lambda: script.say(pick_of(script.question("z"), 2)),
        lambda: script.batch(stored(1, "c", worker=2), publisher_id=75),
        lambda: script.delete(Keyspace.INSTANCES, instance_key(1)),
        lambda: script.tick(),
    )
    seen = []
    for change in changes:
        change()
        seen.append(script.kv.digest)
    assert len({*seen}) == len(changes)


@pytest.mark.req("KVX-20")
def test_an_empty_state_has_digest_zero() -> None:
    assert KvState().digest == 0
