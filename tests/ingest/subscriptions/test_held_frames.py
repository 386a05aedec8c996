"""Ten seconds of what a standby has heard."""

from __future__ import annotations

import pytest

from ingest.subscriptions.held_frames import FACT_BYTES, RUNS_MAX, SETTLED_US, Fact, HeldFrames
from projections.events.signals import (
    Family,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.identity import PublisherKey
from tests.projections.fleet_script import NS, Script

S = 1_000_000
KEY = PublisherKey(NS, 77)


def sample(sequence: int, connection: int = 1, covers_from: int | None = None) -> SampleReceived:
    covers = sequence if covers_from is None else covers_from
    return SampleReceived(NS, 77, connection, covers, sequence, 2, 0, 3, None, None, 0)


def changed(state: SubscriptionState, connection: int, family: Family = Family.LOAD) -> SubscriptionChanged:
    place = (int(state), connection, int(Transport.DIRECT), "word")
    return SubscriptionChanged(int(family), NS, 77, "backend", *place)


def holding(*facts: Fact, **ceilings: int) -> HeldFrames:
    """One fact each 100 ms."""
    held = HeldFrames(**ceilings)
    for number, fact in enumerate(facts):
        held.hold(number * 100_000, fact)
    return held


def joins(held: HeldFrames, last: int) -> int | None:
    run = held.run_that_joins(KEY, last)
    return None if run is None else run.connection


@pytest.mark.req("EVS-16")
def test_what_was_heard_comes_out_in_order_with_its_times() -> None:
    held = holding(sample(1), sample(2))
    assert [(one.heard_at, one.fact.sequence) for one in held] == [(0, 1), (100_000, 2)]  # type: ignore[attr-defined]


def test_facts_older_than_ten_seconds_go_and_are_counted() -> None:
    held = holding(*(sample(number) for number in range(1, 6)))
    held.expire(10 * S + 250_000)
    assert (len(held), held.aged, held.crowded) == (2, 3, 0)
    assert held.held_bytes == 2 * FACT_BYTES


def test_beyond_their_number_or_bytes_the_oldest_go() -> None:
    few = holding(*(sample(number) for number in range(1, 6)), facts_max=2)
    assert (len(few), few.crowded) == (2, 3)
    batch = KvBatchReceived(NS, 77, 1, 1, 1, b"", bytes(800), 0)
    small = holding(batch, batch, batch, bytes_max=2 * (FACT_BYTES + 800))
    assert (len(small), small.crowded) == (2, 1)


def test_a_connection_joins_from_the_number_before_its_first_to_its_newest() -> None:
    held = holding(changed(SubscriptionState.CONNECTED, 1), sample(6, covers_from=5), sample(7))
    assert [joins(held, last) for last in (3, 4, 5, 7, 8)] == [None, 1, 1, 1, None]


def test_facts_that_went_shorten_what_a_connection_joins() -> None:
    held = holding(*(sample(number) for number in range(1, 6)))
    held.expire(10 * S + 250_000)
    assert [joins(held, last) for last in (2, 3, 5)] == [None, 1, 1]
    held.expire(60 * S)
    assert [joins(held, last) for last in (4, 5, 6)] == [None, 1, None], "idle, and nothing was missed"


def test_an_older_connection_joins_as_long_as_its_end_can_be_told() -> None:
    held = holding(sample(5), changed(SubscriptionState.BACKOFF, 1), changed(SubscriptionState.CONNECTED, 2))
    held.hold(300_000, sample(9, connection=2))
    assert [joins(held, last) for last in (5, 8)] == [1, 2]
    held.expire(10 * S + 150_000)
    assert [joins(held, last) for last in (5, 8)] == [None, 2]


def test_a_publisher_that_has_ended_joins_nothing() -> None:
    held = holding(sample(5), changed(SubscriptionState.ENDED, 1))
    assert joins(held, 5) is None


def test_connections_of_one_publisher_are_remembered_up_to_a_few() -> None:
    held = holding(*(sample(number * 10, connection=number) for number in range(1, RUNS_MAX + 3)))
    assert [joins(held, last) for last in (20, 30)] == [None, 3]


def owned(state: SubscriptionState = SubscriptionState.CONNECTED) -> Script:
    """The fold of a log whose owner has heard number 40."""
    script = Script()
    script.say(changed(SubscriptionState.CONNECTED, 6))
    script.say(sample(40, connection=6))
    if state is not SubscriptionState.CONNECTED:
        script.say(changed(state, 6))
    return script


@pytest.mark.req("EVS-16")
def test_a_connection_that_heard_nothing_stands_where_the_log_stands() -> None:
    held = holding(changed(SubscriptionState.CONNECTED, 1))
    held.settle(owned().fold.state, SETTLED_US - 1)
    assert joins(held, 40) is None, "the owner may not have logged all that came before"
    held.settle(owned().fold.state, SETTLED_US)
    assert [joins(held, last) for last in (39, 40, 41)] == [None, 1, None]
    held.hold(2 * S, sample(41))
    assert joins(held, 41) == 1


def test_where_the_owner_is_not_connected_nothing_is_taken_over() -> None:
    held = holding(changed(SubscriptionState.CONNECTED, 1))
    held.settle(owned(SubscriptionState.BACKOFF).fold.state, 5 * S)
    assert joins(held, 40) is None


def test_what_becomes_of_subscriptions_to_events_says_nothing_of_numbers() -> None:
    held = holding(changed(SubscriptionState.CONNECTED, 1, Family.KV))
    held.settle(owned().fold.state, 5 * S)
    assert joins(held, 40) is None
