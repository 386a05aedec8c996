"""Samples held by rank: what replaces them, what drops them, what they leave behind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import projections.load.store as store_module
from projections.events.held import PublisherHeld, WorkerHeld
from projections.events.signals import Family, SubscriptionContinued, SubscriptionState, Transport
from projections.load.store import LoadStore
from projections.notices import FrameResult, StatusNotice
from tests.router.picker.builders import (
    NAMESPACE,
    NOW,
    S,
    a_connect,
    a_fleet,
    a_record,
    a_sample,
    a_worker,
)

FLEET = a_fleet(a_worker(1), a_worker(2, dp_size=2, dp_start_rank=4))


def results(notices: tuple[Any, ...]) -> list[FrameResult]:
    return [notice.result for notice in notices if hasattr(notice, "result")]


def put(store: LoadStore, sample: Any, time: int = NOW) -> list[FrameResult]:
    return results(store.apply_sample(a_record(sample, time), FLEET))


@pytest.mark.req("STORE-01")
def test_sample_is_held_with_the_log_time_of_its_record() -> None:
    store = LoadStore()
    assert put(store, a_sample(1, 7, blocks=3, tokens=4, used=5), NOW) == [FrameResult.APPLIED]
    assert store.sample(NAMESPACE, 1, 0) == (1_001, 7, NOW, 3, 4, 5)
    assert store.last_sample_at(NAMESPACE, 1) == NOW
    assert len(store) == 1


@pytest.mark.req("STORE-01")
def test_fresh_answers_only_within_the_age_asked_for() -> None:
    store = LoadStore()
    put(store, a_sample(1, 7, blocks=3))
    assert store.fresh(NAMESPACE, 1, 0, 3 * S, NOW + 3 * S) is not None
    assert store.fresh(NAMESPACE, 1, 0, 3 * S, NOW + 3 * S + 1) is None
    assert store.fresh(NAMESPACE, 2, 4, 3 * S, NOW) is None


@pytest.mark.req("LOAD-17")
@pytest.mark.field("B-021")
@pytest.mark.parametrize(("worker", "rank"), [(9, 0), (1, 1), (2, 0), (2, 6)])
def test_sample_of_a_rank_that_no_live_worker_declares_is_an_identity_mismatch(
    worker: int, rank: int
) -> None:
    store = LoadStore()
    assert put(store, a_sample(worker, 1, rank=rank, blocks=3)) == [FrameResult.IDENTITY_MISMATCH]
    assert store.sample(NAMESPACE, worker, rank) is None
    assert store.last_sample_at(NAMESPACE, worker) is None


@pytest.mark.req("LOAD-17")
def test_gate_follows_the_fleet_of_the_record() -> None:
    store = LoadStore()
    put(store, a_sample(1, 1, blocks=3))
    gone = a_fleet(a_worker(2))
    assert results(store.apply_sample(a_record(a_sample(1, 2, blocks=4)), gone)) == [
        FrameResult.IDENTITY_MISMATCH
    ]
    more = a_fleet(a_worker(1, dp_size=2))
    assert results(store.apply_sample(a_record(a_sample(1, 3, rank=1, blocks=4)), more)) == [
        FrameResult.APPLIED
    ]


def test_mismatched_sample_counts_for_continuity() -> None:
    store = LoadStore()
    put(store, a_sample(1, 1, blocks=3))
    put(store, a_sample(9, 2, publisher=1_001))
    assert put(store, a_sample(1, 3, blocks=4)) == [FrameResult.APPLIED]


@pytest.mark.req("LOAD-20")
@pytest.mark.parametrize("sequence", [4, 5])
def test_sequence_at_or_below_the_held_one_is_a_duplicate(sequence: int) -> None:
    store = LoadStore()
    put(store, a_sample(1, 5, blocks=3))
    assert put(store, a_sample(1, sequence, blocks=9), NOW + S) == [FrameResult.DUPLICATE]
    held = store.sample(NAMESPACE, 1, 0)
    assert held is not None and held.active_decode_blocks == 3
    assert store.last_sample_at(NAMESPACE, 1) == NOW


@pytest.mark.req("LOAD-20")
@pytest.mark.field("B-025")
def test_sample_of_another_publisher_replaces_whatever_its_sequence() -> None:
    store = LoadStore()
    put(store, a_sample(1, 500, blocks=3))
    assert put(store, a_sample(1, 1, blocks=9, publisher=77)) == [FrameResult.APPLIED]
    held = store.sample(NAMESPACE, 1, 0)
    assert held is not None and (held.publisher_id, held.active_decode_blocks) == (77, 9)
    store.apply_subscription(a_record(a_connect(1_001, 2)))
    assert store.sample(NAMESPACE, 1, 0) == held, "the old publisher holds nothing any more"


@pytest.mark.field("B-025")
def test_two_publishers_that_take_turns_on_one_worker_are_named_once() -> None:
    store = LoadStore()
    said: list[StatusNotice] = []
    for sequence in range(1, 6):
        for publisher in (77, 78):
            notices = store.apply_sample(
                a_record(a_sample(1, sequence, blocks=publisher, publisher=publisher)), FLEET
            )
            said += [notice for notice in notices if isinstance(notice, StatusNotice)]
    assert [notice.detail for notice in said] == [
        "worker dynamo/1, publishers 4d and 4e",
        "worker dynamo/1, publishers 4e and 4d",
    ]
    held = store.sample(NAMESPACE, 1, 0)
    assert held is not None and held.publisher_id == 78, "the newest record wins"


def test_restarted_publisher_is_no_conflict() -> None:
    store = LoadStore()
    put(store, a_sample(1, 5, blocks=3, publisher=77))
    notices = store.apply_sample(a_record(a_sample(1, 1, blocks=3, publisher=78)), FLEET)
    notices += store.apply_sample(a_record(a_sample(1, 2, blocks=3, publisher=78)), FLEET)
    assert not [notice for notice in notices if isinstance(notice, StatusNotice)]


@pytest.mark.req("STORE-14")
@pytest.mark.field("B-066")
def test_gap_drops_all_samples_of_that_publisher_and_then_applies() -> None:
    store = LoadStore()
    put(store, a_sample(2, 1, rank=4, blocks=3))
    put(store, a_sample(2, 2, rank=5, blocks=3))
    put(store, a_sample(1, 1, blocks=3))
    assert put(store, a_sample(2, 4, rank=4, blocks=8), NOW + S) == [FrameResult.GAP, FrameResult.APPLIED]
    assert store.sample(NAMESPACE, 2, 5) is None
    held = store.sample(NAMESPACE, 2, 4)
    assert held is not None and held.active_decode_blocks == 8
    assert store.sample(NAMESPACE, 1, 0) is not None
    assert store.last_sample_at(NAMESPACE, 2) == NOW + S
    assert len(store) == 2


@pytest.mark.req("STORE-14")
def test_sequences_that_a_sample_covers_are_no_gap() -> None:
    store = LoadStore()
    put(store, a_sample(2, 1, rank=4, blocks=3))
    put(store, a_sample(2, 2, rank=5, blocks=3))
    assert put(store, a_sample(2, 9, rank=4, blocks=8, covers_from=3)) == [FrameResult.APPLIED]
    assert store.sample(NAMESPACE, 2, 5) is not None


@pytest.mark.req("STORE-13")
@pytest.mark.field("B-072")
def test_connect_drops_the_publishers_samples_but_not_when_its_worker_was_heard() -> None:
    store = LoadStore()
    put(store, a_sample(2, 5, rank=4, blocks=3))
    put(store, a_sample(1, 5, blocks=3))
    store.apply_subscription(a_record(a_connect(1_002, 2)))
    assert store.sample(NAMESPACE, 2, 4) is None
    assert store.last_sample_at(NAMESPACE, 2) == NOW
    assert store.sample(NAMESPACE, 1, 0) is not None
    assert len(store) == 1
    assert put(store, a_sample(2, 1, rank=4, blocks=3, connection=2)) == [FrameResult.APPLIED], (
        "sequences of the new connection start anew"
    )


def test_sample_of_a_connection_that_was_not_announced_counts_as_its_connect() -> None:
    store = LoadStore()
    put(store, a_sample(2, 5, rank=4, blocks=3))
    assert put(store, a_sample(2, 1, rank=5, blocks=3, connection=2)) == [FrameResult.APPLIED]
    assert store.sample(NAMESPACE, 2, 4) is None


@pytest.mark.parametrize(
    ("state", "reason", "family", "stays"),
    [
        (SubscriptionState.ENDED, "departed", Family.LOAD, False),
        (SubscriptionState.ENDED, "transport", Family.LOAD, True),
        (SubscriptionState.BACKOFF, "closed", Family.LOAD, True),
        (SubscriptionState.CONNECTED, "connected", Family.KV, True),
    ],
)
@pytest.mark.req("STORE-17")
def test_only_connects_and_ends_of_load_subscriptions_drop_samples(
    state: SubscriptionState, reason: str, family: Family, stays: bool
) -> None:
    store = LoadStore()
    put(store, a_sample(1, 5, blocks=3))
    store.apply_subscription(a_record(a_connect(1_001, 2, state, reason=reason, family=family)))
    assert (store.sample(NAMESPACE, 1, 0) is not None) is stays
    assert store.last_sample_at(NAMESPACE, 1) == NOW


@pytest.mark.req("STORE-15")
@pytest.mark.req("EVS-16")
def test_samples_stay_where_another_owner_continues_and_a_gap_behind_it_still_drops_them() -> None:
    store = LoadStore()
    put(store, a_sample(1, 5, blocks=3, publisher=77, connection=4))
    continued = SubscriptionContinued(Family.LOAD, NAMESPACE, 77, "decode", 9, Transport.DIRECT)
    before = store.digest
    store.apply_subscription(a_record(continued))
    assert (store.digest, store.connection(NAMESPACE, 77)) == (before, 9)
    assert put(store, a_sample(1, 6, blocks=2, publisher=77, connection=9)) == [FrameResult.APPLIED]
    said = put(store, a_sample(2, 9, rank=4, blocks=1, publisher=77, connection=9, covers_from=8))
    assert said == [FrameResult.GAP, FrameResult.APPLIED]
    assert store.sample(NAMESPACE, 1, 0) is None


def test_departed_worker_loses_samples_and_the_time_it_was_heard() -> None:
    store = LoadStore()
    put(store, a_sample(2, 1, rank=4, blocks=3))
    put(store, a_sample(2, 2, rank=5, blocks=3))
    put(store, a_sample(1, 1, blocks=3))
    store.evict([(NAMESPACE, 2), (NAMESPACE, 9)])
    assert store.sample(NAMESPACE, 2, 4) is None and store.sample(NAMESPACE, 2, 5) is None
    assert store.last_sample_at(NAMESPACE, 2) is None
    assert len(store) == 1
    store.apply_subscription(a_record(a_connect(1_002, 2)))
    assert len(store) == 1, "nothing was left with its publisher"


@pytest.mark.req("LOAD-18", "STORE-16")
def test_full_store_refuses_new_ranks_and_still_hears_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SAMPLES_MAX", 1)
    store = LoadStore()
    put(store, a_sample(1, 1, blocks=3))
    assert put(store, a_sample(2, 1, rank=4, blocks=3), NOW + S) == [FrameResult.OVER_CAPACITY]
    assert store.sample(NAMESPACE, 2, 4) is None
    assert store.last_sample_at(NAMESPACE, 2) == NOW + S
    assert put(store, a_sample(1, 2, blocks=4)) == [FrameResult.APPLIED], "held ranks go on"


def test_remembered_publishers_have_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PUBLISHERS_KNOWN_MAX", 3)
    store = LoadStore()
    put(store, a_sample(1, 1, blocks=3))
    for publisher in range(20, 40):
        store.apply_subscription(a_record(a_connect(publisher, 1)))
        put(store, a_sample(2, 1, rank=4, blocks=3, publisher=publisher))
    assert sum(store.last_sequence(NAMESPACE, publisher) is not None for publisher in range(20, 40)) == 2
    assert store.sample(NAMESPACE, 1, 0) is not None, "a publisher that holds a rank is not forgotten first"


def operations() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    publishers = st.sampled_from([77, 78])
    ranks = st.sampled_from([(1, 0), (2, 4), (2, 5), (9, 0)])
    sample = st.tuples(
        st.just("sample"), publishers, ranks, st.integers(1, 12), st.integers(0, 3), st.integers(0, 50)
    )
    connect = st.tuples(st.just("connect"), publishers)
    evict = st.tuples(st.just("evict"), st.sampled_from([1, 2]))
    end = st.tuples(st.just("end"), publishers)
    return st.lists(st.one_of(sample, sample, sample, connect, evict, end), max_size=40)


def replayed(steps: list[tuple[Any, ...]], digests_at: int = 1_000) -> LoadStore:
    store = LoadStore()
    connections = {77: 1, 78: 1}
    for place, step in enumerate(steps):
        time = NOW + place
        if step[0] == "sample":
            _, publisher, (worker, rank), sequence, covers, blocks = step
            fact = a_sample(
                worker,
                sequence,
                rank=rank,
                blocks=blocks,
                publisher=publisher,
                connection=connections[publisher],
                covers_from=max(1, sequence - covers),
            )
            store.apply_sample(a_record(fact, time), FLEET)
        elif step[0] == "connect":
            connections[step[1]] += 1
            store.apply_subscription(a_record(a_connect(step[1], connections[step[1]]), time))
        elif step[0] == "end":
            store.apply_subscription(
                a_record(a_connect(step[1], connections[step[1]], SubscriptionState.ENDED), time)
            )
        else:
            store.evict([(NAMESPACE, step[1])])
        if place % digests_at == 0:
            assert store.digest >= 0
    return store


@given(operations(), st.integers(1, 5))
def test_digest_does_not_depend_on_when_it_was_asked(steps: list[tuple[Any, ...]], often: int) -> None:
    assert replayed(steps).digest == replayed(steps, often).digest


@given(operations(), operations())
def test_restored_store_has_the_same_digest_and_goes_on_alike(
    before: list[tuple[Any, ...]], later: list[tuple[Any, ...]]
) -> None:
    store, copy = replayed(before), LoadStore()
    for fact in store.held():
        copy.restore(fact)
    for worker in (1, 2):
        heard_at = store.last_sample_at(NAMESPACE, worker)
        copy.restore(WorkerHeld(NAMESPACE, worker, 0, 0, heard_at, None))
    for _, publisher in store.publishers():
        sequence, connection = (
            store.last_sequence(NAMESPACE, publisher),
            store.connection(NAMESPACE, publisher),
        )
        state = (int(SubscriptionState.CONNECTED), connection, int(Transport.DIRECT))
        copy.restore(
            PublisherHeld(Family.LOAD, NAMESPACE, publisher, "decode", *state, "connected", sequence, 0)
        )
    assert copy.digest == store.digest and len(copy) == len(store)
    assert [*copy.publishers()] == [*store.publishers()]
    for step in later:
        if step[0] == "sample":
            _, publisher, (worker, rank), sequence, covers, blocks = step
            report = a_sample(
                worker,
                sequence,
                rank=rank,
                blocks=blocks,
                publisher=publisher,
                connection=9,
                covers_from=max(1, sequence - covers),
            )
            said = [one.apply_sample(a_record(report, NOW + S), FLEET) for one in (store, copy)]
            assert results(said[0]) == results(said[1])
    assert copy.digest == store.digest
    assert [*copy.held()] == [*store.held()]


@given(operations())
def test_count_and_publishers_agree_with_the_samples_held(steps: list[tuple[Any, ...]]) -> None:
    store = replayed(steps)
    assert len(store) == len([*store.held()])
    for publisher in (77, 78):
        store.apply_subscription(a_record(a_connect(publisher, 99)))
    assert len(store) == 0


def test_record_without_a_fleet_change_keeps_the_gate() -> None:
    store = LoadStore()
    record = a_record(a_sample(2, 1, rank=4, blocks=3))
    store.apply_sample(record, FLEET)
    worker = store.worker(NAMESPACE, 2)
    assert worker is not None and [*worker.live] == [4]
    store.apply_sample(a_record(a_sample(2, 2, rank=5, blocks=3)), FLEET)
    assert [*worker.live] == [4, 5]
