"""What the new owner says first: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ingest.subscriptions.held_frames import Fact, HeldFrames
from ingest.subscriptions.supervisor import SubscriptionRow
from ingest.subscriptions.takeover import Takeover, said_again, take_over
from projections.events.signals import (
    Family,
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
    Transport,
)
from projections.identity import PublisherKey
from tests.projections.fleet_script import NS
from tests.projections.kv.kv_script import KvScript, batch_of, stored

CONNECTED, BACKOFF = SubscriptionState.CONNECTED, SubscriptionState.BACKOFF
DIRECT = int(Transport.DIRECT)
SILENT_SINCE, NOW = 500_000, 3_000_000
LOAD, KV = PublisherKey(NS, 77), PublisherKey(NS, 70)


def sample(sequence: int, connection: int = 1, covers_from: int | None = None) -> SampleReceived:
    covers = sequence if covers_from is None else covers_from
    return SampleReceived(NS, 77, connection, covers, sequence, 2, 0, sequence, None, None, 0)


def changed(
    state: SubscriptionState, connection: int, family: Family = Family.LOAD, reason: str = "word"
) -> SubscriptionChanged:
    key = LOAD if family is Family.LOAD else KV
    return SubscriptionChanged(int(family), *key, "backend", int(state), connection, DIRECT, reason)


def row(
    family: Family = Family.LOAD,
    state: SubscriptionState = CONNECTED,
    connection: int = 1,
    has_own_ids: bool = False,
    finds_worker: bool = False,
) -> SubscriptionRow:
    key = LOAD if family is Family.LOAD else KV
    words = ("backend", "tcp://10.0.0.1:1", state, Transport.DIRECT, connection, "word", has_own_ids)
    return SubscriptionRow(family, key, *words, finds_worker)


def log_of(last: int | None = 40) -> KvScript:
    """A log whose owner heard samples up to `last` on connection 6 and events up to 3, and then died."""
    script = KvScript()
    script.worker(2)
    script.say(changed(CONNECTED, 6))
    if last is not None:
        script.say(sample(last, connection=6))
    script.say(changed(CONNECTED, 4, Family.KV))
    script.batch(stored(3, "a", "b", worker=2))
    script.open(b"another-owner-01")
    return script


def holding(facts: Iterable[Fact]) -> HeldFrames:
    held = HeldFrames()
    for number, fact in enumerate(facts):
        held.hold(number * 200_000, fact)
    return held


def said(script: KvScript, facts: list[Fact], *rows: SubscriptionRow) -> Takeover:
    return take_over(holding(facts), rows, script.fold.state, SILENT_SINCE, NOW)


def of_load(takeover: Takeover) -> list[Fact]:
    return [one.fact for one in takeover.facts if LOAD.publisher_id in one.fact]


def of_kv(takeover: Takeover) -> list[Fact]:
    return [one.fact for one in takeover.facts if KV.publisher_id in one.fact]


@pytest.mark.req("EVS-16")
def test_samples_above_the_newest_known_one_follow_and_those_held_stay() -> None:
    script = log_of()
    held = [changed(CONNECTED, 1), *(sample(number) for number in range(38, 43))]
    takeover = said(script, held, row())
    continued = SubscriptionContinued(int(Family.LOAD), *LOAD, "backend", 7, DIRECT)
    assert of_load(takeover) == [continued, sample(41, 7), sample(42, 7)]
    assert takeover.shifts == {(int(Family.LOAD), *LOAD): 6}
    for one in takeover.facts:
        script.say(one.fact)
    assert script.fold.state.load.last_sequence(*LOAD) == 42


@pytest.mark.req("EVS-16")
def test_what_was_heard_keeps_its_time_and_opens_when_the_owner_fell_silent() -> None:
    takeover = said(log_of(), [changed(CONNECTED, 1), sample(40), sample(41)], row())
    times = {type(one.fact): one.heard_at for one in takeover.facts if LOAD.publisher_id in one.fact}
    assert times == {SubscriptionContinued: SILENT_SINCE, SampleReceived: 400_000}


@pytest.mark.req("EVS-16")
def test_where_numbers_were_missed_the_connection_begins_anew() -> None:
    takeover = said(log_of(), [changed(CONNECTED, 1), sample(45), sample(46)], row())
    assert of_load(takeover) == [changed(CONNECTED, 7), sample(45, 7), sample(46, 7)]


def test_a_publisher_of_whom_the_log_knows_no_number_begins_anew() -> None:
    takeover = said(log_of(last=None), [changed(CONNECTED, 1), sample(45)], row())
    assert of_load(takeover) == [changed(CONNECTED, 7), sample(45, 7)]


def test_a_number_of_the_standby_that_is_higher_already_stays() -> None:
    takeover = said(log_of(), [changed(CONNECTED, 9), sample(40, 9), sample(41, 9)], row(connection=9))
    assert takeover.shifts[int(Family.LOAD), *LOAD] == 0
    assert of_load(takeover)[-1] == sample(41, 9)


@pytest.mark.req("EVS-16")
def test_a_connection_that_broke_meanwhile_is_told_to_its_end_and_the_next_one_too() -> None:
    story: list[Fact] = [
        changed(CONNECTED, 1),
        sample(40),
        sample(41),
        changed(BACKOFF, 1, reason="closed"),
        changed(CONNECTED, 2),
        sample(50, 2),
    ]
    takeover = said(log_of(), story, row(connection=2))
    assert of_load(takeover) == [
        SubscriptionContinued(int(Family.LOAD), *LOAD, "backend", 7, DIRECT),
        sample(41, 7),
        changed(BACKOFF, 7, reason="closed"),
        changed(CONNECTED, 8),
        sample(50, 8),
    ]
    assert takeover.shifts[int(Family.LOAD), *LOAD] == 6


def test_a_publisher_that_is_not_connected_is_said_to_be_so() -> None:
    takeover = said(log_of(), [], row(state=BACKOFF, connection=2))
    assert of_load(takeover) == [changed(BACKOFF, 6)]
    assert takeover.facts[0].heard_at == NOW


def test_what_the_log_holds_and_nobody_listens_to_any_more_has_ended() -> None:
    takeover = said(log_of(), [sample(41)])
    assert [fact.state for fact in of_load(takeover)] == [SubscriptionState.ENDED]  # type: ignore[attr-defined]
    assert [fact.state for fact in of_kv(takeover)] == [SubscriptionState.ENDED]  # type: ignore[attr-defined]


def test_refused_frames_are_told_since_the_owner_fell_silent() -> None:
    refused = [FrameRefused(int(Family.LOAD), *LOAD, 1, 3, number) for number in range(6)]
    takeover = said(log_of(), [sample(40), *refused], row())
    told = [fact for fact in of_load(takeover) if isinstance(fact, FrameRefused)]
    assert [fact.frames for fact in told] == [2, 3, 4, 5]
    assert {fact.connection for fact in told} == {7}


def batches(*numbers: int, connection: int = 1) -> list[Fact]:
    found = []
    for number in numbers:
        batch = batch_of(stored(number, f"x{number}", worker=2), publisher_id=70)
        found.append(batch._replace(connection=connection, sequence=number, covers_from=number))
    return [*found]


def kv_results(script: KvScript, takeover: Takeover) -> list[dict[str, int]]:
    results = []
    for one in takeover.facts:
        script.say(one.fact)
        if isinstance(one.fact, KvBatchReceived):
            results.append(script.results())
    return results


@pytest.mark.req("EVS-16")
def test_events_above_the_cursor_follow_and_no_block_is_lost_or_doubled() -> None:
    script = log_of()
    takeover = said(script, batches(1, 2, 3, 4, 5), row(Family.KV))
    assert of_kv(takeover)[0] == SubscriptionContinued(int(Family.KV), *KV, "backend", 5, DIRECT)
    assert [fact.sequence for fact in of_kv(takeover)[1:]] == [4, 5]  # type: ignore[attr-defined]
    assert kv_results(script, takeover) == [{"applied": 1}, {"applied": 1}]
    assert script.blocks(2) == 4


@pytest.mark.req("EVS-16")
def test_where_an_event_was_missed_the_rank_is_cleared_as_for_any_gap() -> None:
    script = log_of()
    assert script.blocks(2) == 2
    takeover = said(script, batches(5, 6), row(Family.KV))
    assert kv_results(script, takeover)[0].get("gap") == 1
    assert script.blocks(2) == 2, "those told since the gap"


def test_an_engine_without_a_relay_begins_anew() -> None:
    takeover = said(log_of(), batches(4, 5), row(Family.KV, has_own_ids=True))
    assert of_kv(takeover) == [changed(CONNECTED, 5, Family.KV)]


@pytest.mark.parametrize("state", [CONNECTED, BACKOFF])
def test_an_engine_that_found_its_worker_here_is_ended_first_as_the_owner_before_may_have_found_another(
    state: SubscriptionState,
) -> None:
    script = log_of()
    assert script.blocks(2) == 2
    takeover = said(script, batches(4, 5), row(Family.KV, state=state, has_own_ids=True, finds_worker=True))
    ended = SubscriptionState.ENDED
    assert [(fact.state, fact.reason) for fact in of_kv(takeover)] == [(ended, "rebound"), (state, "word")]  # type: ignore[attr-defined]
    for one in takeover.facts:
        script.say(one.fact)
    assert script.blocks(2) == 0
    assert script.fold.state.status.subscriptions[int(Family.KV), *KV].state == state


def test_events_from_before_a_break_are_told_too() -> None:
    takeover = said(log_of(), batches(4), row(Family.KV, state=BACKOFF, connection=2))
    first, last = of_kv(takeover)
    assert isinstance(first, KvBatchReceived)
    assert last == changed(BACKOFF, 4, Family.KV)


def test_an_owner_that_claimed_anew_says_where_its_subscriptions_stand_and_drops_nothing() -> None:
    script = log_of()
    for fact in said_again([row(connection=6), row(Family.KV, state=BACKOFF, connection=4)]):
        script.say(fact)
    held = script.fold.state.status.subscriptions
    assert held[int(Family.LOAD), *LOAD].state == CONNECTED
    assert held[int(Family.KV), *KV].state == BACKOFF
    assert script.fold.state.load.sample(NS, 2, 0) is not None
