"""The writer's machine by scenario: batches, receipts, shedding, outages, unclear appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.log import appender as module
from ingest.log.appender import (
    Appender,
    Effect,
    FindOwn,
    Importance,
    Receipt,
    Reclaim,
    Send,
    Settled,
    State,
    Status,
)
from ingest.log.log_clock import OwnerClock
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, PICKS_BUFFERED_MAX, SECOND_US
from projections.events.codec import decode_record
from projections.events.control import CheckpointDue, LaneOpened, Pinged, WriterContinued
from projections.events.envelope import Record
from projections.events.picks import DispatchEnded, Fault, PickMade, PicksLost
from tests.ingest.log.facts import REPLICA, end, pick, reconnected, sample

W1, W2 = b"writer-number-01", b"writer-number-02"
CONTROL, SAMPLE, KV, PICK = Importance.CONTROL, Importance.SAMPLE, Importance.KV, Importance.PICK


def ping(number: int) -> Pinged:
    return Pinged(REPLICA, number, -1)


def replica(*, every_us: int = 2_000, every_bytes: int = 1 << 20) -> Appender:
    return Appender(W1, is_owner=False, every_us=every_us, every_bytes=every_bytes)


def owner(now_us: int = 0, anchor: int = 1_000_000) -> Appender:
    machine = Appender(W1, is_owner=True)
    machine.on_claimed(now_us, 3, OwnerClock(anchor, now_us))
    return machine


def sent(effects: Iterable[Effect]) -> Send:
    found = [effect for effect in effects if isinstance(effect, Send)]
    assert len(found) == 1
    return found[0]


def decoded(send: Send) -> list[Record]:
    return [decode_record(offset, data) for offset, data in enumerate(send.records)]


def facts(send: Send) -> list[object]:
    return [record.fact for record in decoded(send)]


def receipts(effects: Iterable[Effect]) -> list[tuple[object, Status, int | None]]:
    return [
        (effect.tag, effect.receipt.status, effect.receipt.offset)
        for effect in effects
        if isinstance(effect, Settled)
    ]


# Batches ---------------------------------------------------------------------------------


def test_what_was_submitted_together_goes_out_in_one_batch_in_order() -> None:
    machine = replica()
    for number in range(5):
        machine.on_submitted(10, ping(number), CONTROL, time=number)
    send = sent(machine.on_tick(10))
    assert [(r.sequence, r.time, r.writer, r.epoch) for r in decoded(send)] == [
        (n + 1, n, W1, 0) for n in range(5)
    ]
    assert facts(send) == [ping(n) for n in range(5)]


def test_the_next_batch_waits_for_the_one_under_way() -> None:
    machine = replica()
    machine.on_submitted(0, ping(0), CONTROL)
    first = sent(machine.on_tick(0))
    machine.on_submitted(1, ping(1), CONTROL)
    assert machine.due_at() is None
    assert machine.on_tick(50_000) == []
    machine.on_committed(60_000, first.number, 100)
    assert facts(sent(machine.on_tick(60_000))) == [ping(1)]


def test_a_lone_fact_goes_at_once_and_the_next_ones_wait_for_the_interval() -> None:
    machine = replica(every_us=2_000)
    machine.on_submitted(1_000_000, ping(0), CONTROL)
    first = sent(machine.on_tick(1_000_000))
    machine.on_committed(1_000_500, first.number, 0)
    machine.on_submitted(1_000_600, ping(1), CONTROL)
    assert machine.due_at() == 1_002_000
    assert machine.on_tick(1_001_999) == []
    assert sent(machine.on_tick(1_002_000))


def test_enough_bytes_end_the_wait() -> None:
    machine = replica(every_us=1_000_000, every_bytes=4096)
    machine.on_submitted(0, ping(0), CONTROL)
    machine.on_committed(1, sent(machine.on_tick(0)).number, 0)
    machine.on_submitted(2, Pinged(bytes(5000), 1, -1), CONTROL)
    assert sent(machine.on_tick(2))


def test_receipts_tell_offsets_to_those_who_asked() -> None:
    machine = replica()
    for number in range(4):
        machine.on_submitted(0, ping(number), CONTROL, tag=f"t{number}" if number % 2 else None)
    effects = machine.on_committed(5, sent(machine.on_tick(0)).number, 1000)
    assert receipts(effects) == [("t1", Status.ACKNOWLEDGED, 1001), ("t3", Status.ACKNOWLEDGED, 1003)]
    assert machine.is_idle


def test_batches_stay_under_both_ceilings() -> None:
    machine = replica()
    large = Pinged(bytes(3 << 20), 0, -1)
    for _ in range(5):
        machine.on_submitted(0, large, CONTROL)
    sizes = drain(machine)
    assert [len(records) for records in sizes] == [2, 2, 1]
    for number in range(COMMIT_BATCH_RECORDS_MAX + 1):
        machine.on_submitted(0, ping(number), CONTROL)
    batches = drain(machine)
    assert [len(records) for records in batches] == [COMMIT_BATCH_RECORDS_MAX, 1]
    assert all(sum(map(len, records)) <= COMMIT_BATCH_BYTES_MAX for records in batches)


def drain(machine: Appender, now_us: int = 1 << 40) -> list[Sequence[bytes]]:
    batches: list[Sequence[bytes]] = []
    while (due_at := machine.due_at()) is not None:
        now_us = max(now_us, due_at)
        send = sent(machine.on_tick(now_us))
        batches.append(send.records)
        machine.on_committed(now_us, send.number, 0)
    return batches


def test_answers_to_a_batch_that_is_not_under_way_are_a_bug() -> None:
    machine = replica()
    with pytest.raises(ValueError, match="not under way"):
        machine.on_committed(0, 1, 0)


# Stamps ----------------------------------------------------------------------------------


def test_owner_kinds_are_stamped_and_the_others_carry_the_time_they_were_given() -> None:
    machine = owner(now_us=500, anchor=1_000_000)
    machine.on_submitted(700, CheckpointDue("x"), CONTROL)
    machine.on_submitted(700, CheckpointDue("y"), CONTROL)
    machine.on_submitted(900, pick(1), PICK, time=77)
    machine.on_submitted(900, ping(1), CONTROL)
    records = decoded(sent(machine.on_tick(900)))
    assert [(r.time, r.epoch) for r in records] == [(1_000_200, 3), (1_000_201, 3), (77, 0), (1_000_400, 0)]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_stamps_grow_whatever_the_clock_does(times: list[int]) -> None:
    machine = owner()
    for now in times:
        machine.on_submitted(now, CheckpointDue("x"), CONTROL)
    stamps = [record.time for record in decoded(sent(machine.on_tick(10_000)))]
    assert all(later > earlier for earlier, later in pairwise(stamps))


def test_an_owner_sends_no_fact_before_its_claim_won() -> None:
    machine = Appender(W1, is_owner=True)
    machine.on_submitted(0, CheckpointDue("early"), CONTROL, tag="early")
    assert machine.due_at() is None
    machine.on_urgent(0, LaneOpened(4, 5, b"", "new"), time=900, tag="claim")
    send = sent(machine.on_tick(0))
    assert facts(send) == [LaneOpened(4, 5, b"", "new")]
    assert decoded(send)[0].time == 900
    machine.on_committed(1, send.number, 0)
    machine.on_claimed(2, 4, OwnerClock(901, 2))
    record = decoded(sent(machine.on_tick(5_000)))[0]
    assert (record.fact, record.epoch) == (CheckpointDue("early"), 4)
    assert record.sequence > decoded(send)[0].sequence
    assert record.time >= 901


def test_while_held_only_what_is_urgent_goes_out_and_sequences_still_grow() -> None:
    machine = owner()
    machine.on_held()
    machine.on_submitted(0, CheckpointDue("later"), CONTROL)
    machine.on_urgent(0, ping(1))
    first = sent(machine.on_tick(0))
    assert facts(first) == [ping(1)]
    machine.on_committed(1, first.number, 0)
    assert machine.due_at() is None
    machine.on_released()
    second = sent(machine.on_tick(10_000))
    assert facts(second) == [CheckpointDue("later")]
    assert decoded(second)[0].sequence > decoded(first)[0].sequence


# Room ------------------------------------------------------------------------------------


def full(machine: Appender) -> list[Effect]:
    """The batch under way found the disk full."""
    return machine.on_failed(1, machine._flight_number, is_full=True)


@pytest.mark.req("EVS-17")
def test_on_a_full_disk_samples_and_blocks_are_shed_and_the_rest_goes_on_in_order() -> None:
    machine = owner()
    machine.on_submitted(0, CheckpointDue("a"), CONTROL, tag="a")
    machine.on_submitted(0, sample(1), SAMPLE, tag="s")
    machine.on_submitted(0, ping(1), KV, tag="kv")
    machine.on_submitted(0, pick(1), PICK, tag="p")
    machine.on_tick(0)
    shed = full(machine)
    assert receipts(shed) == [("s", Status.SHED, None), ("kv", Status.SHED, None)]
    send = sent(machine.on_tick(2))
    assert send.critical
    assert facts(send) == [CheckpointDue("a"), pick(1)]
    assert receipts(machine.on_committed(3, send.number, 50)) == [
        ("a", Status.ACKNOWLEDGED, 50),
        ("p", Status.ACKNOWLEDGED, 51),
    ]
    assert machine.shed[SAMPLE] == 1


def test_a_sample_after_shed_ones_covers_their_numbers() -> None:
    machine = owner()
    machine.on_room(is_full=True)
    for sequence in (4, 5, 6):
        assert receipts(machine.on_submitted(0, sample(sequence), SAMPLE, tag=sequence))[0][1] is Status.SHED
    machine.on_submitted(0, sample(40, publisher=8), SAMPLE)
    machine.on_room(is_full=False)
    machine.on_submitted(1, sample(7), SAMPLE)
    machine.on_submitted(1, sample(8), SAMPLE)
    machine.on_submitted(1, sample(41, publisher=8), SAMPLE)
    found = [(f.covers_from, f.sequence) for f in facts(sent(machine.on_tick(5)))]  # type: ignore[attr-defined]
    assert found == [(4, 7), (8, 8), (40, 41)]


def test_waiting_samples_that_are_shed_are_covered_from_the_oldest_one_on() -> None:
    machine = owner()
    for sequence in (4, 5):
        machine.on_submitted(0, sample(sequence), SAMPLE)
    machine.on_room(is_full=True)
    machine.on_submitted(0, sample(6), SAMPLE)
    machine.on_room(is_full=False)
    machine.on_submitted(0, sample(7), SAMPLE)
    assert facts(sent(machine.on_tick(5))) == [sample(7)._replace(covers_from=4)]


@pytest.mark.req("STORE-14")
def test_what_another_rank_said_or_what_was_never_heard_stays_a_visible_hole() -> None:
    machine = owner()
    machine.on_room(is_full=True)
    machine.on_submitted(0, sample(4)._replace(dp_rank=1), SAMPLE)  # rank 1 said something: lost
    machine.on_submitted(0, sample(40, publisher=8), SAMPLE)
    machine.on_submitted(0, sample(42, publisher=8), SAMPLE)  # 41 was never heard
    machine.on_room(is_full=False)
    machine.on_submitted(1, sample(5), SAMPLE)
    machine.on_submitted(1, sample(6), SAMPLE)
    machine.on_submitted(1, sample(43, publisher=8), SAMPLE)
    found = [(f.covers_from, f.sequence) for f in facts(sent(machine.on_tick(5)))]  # type: ignore[attr-defined]
    assert found == [(5, 5), (6, 6), (43, 43)]


def test_numbers_of_an_earlier_connection_are_not_covered() -> None:
    machine = owner()
    machine.on_room(is_full=True)
    machine.on_submitted(0, sample(4), SAMPLE)
    machine.on_submitted(0, reconnected(), CONTROL)
    machine.on_room(is_full=False)
    machine.on_submitted(0, sample(1, connection=2), SAMPLE)
    assert facts(sent(machine.on_tick(5))) == [reconnected(), sample(1, connection=2)]


def test_a_slow_disk_sheds_before_memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHED_AT_BYTES", 1000)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 3000)
    machine = owner()
    statuses = [receipts(machine.on_submitted(0, sample(n), SAMPLE, tag=n)) for n in range(50)]
    assert statuses[0] == []
    assert statuses[-1] == [(49, Status.SHED, None)]
    assert machine.pending_bytes < 1200
    told = [receipts(machine.on_submitted(0, ping(n), CONTROL, tag=n)) for n in range(100)]
    assert told[0] == []
    assert told[-1] == [(99, Status.LOST, None)]
    assert machine.pending_bytes < 3200
    assert receipts(machine.on_submitted(0, pick(1), PICK, tag="p")) == []


def test_a_refused_batch_is_sent_again_after_a_pause() -> None:
    machine = replica()
    machine.on_submitted(0, ping(0), CONTROL, tag="t")
    send = sent(machine.on_tick(0))
    assert machine.on_failed(10, send.number, is_full=False) == []
    assert machine.due_at() == 10 + module.RETRY_US
    again = sent(machine.on_tick(10 + module.RETRY_US))
    assert again.records == send.records


# Outage ----------------------------------------------------------------------------------


@pytest.mark.req("EVS-17")
def test_picks_that_wait_over_thirty_seconds_become_ledger_lines_and_nothing_else_is_lost() -> None:
    machine = replica()
    machine.on_submitted(0, pick(1), PICK, time=1, tag="p1")
    machine.on_submitted(0, end(1), PICK, time=1, tag="e1")
    machine.on_submitted(5 * SECOND_US, pick(2), PICK, time=1, tag="p2")
    machine.on_submitted(6 * SECOND_US, end(99), PICK, time=1, tag="e99")
    machine.on_failed(7 * SECOND_US, sent(machine.on_tick(7 * SECOND_US)).number, is_full=False)
    lost = machine._bound_picks(31 * SECOND_US)
    assert receipts(lost) == [("p1", Status.LOST, None)]
    assert machine.lost_picks == 1
    effects = machine.on_tick(31 * SECOND_US)
    assert receipts(effects) == [("e1", Status.LOST, None)]
    told, *records = facts(sent(effects))
    assert records == [pick(2), end(99)]
    assert isinstance(told, PicksLost)
    line = told.lines[0]
    assert (line.pick_id, line.ended_seq, line.ended_at) == (pick(1).pick_id, end(1).own_seq, end(1).ended_at)
    assert line.decode == pick(1).outcome.decode.chosen


def test_no_more_than_the_stated_number_of_picks_wait() -> None:
    machine = replica()
    for number in range(PICKS_BUFFERED_MAX + 5):
        machine.on_submitted(0, pick(number), PICK, time=1)
    assert machine.lost_picks == 5
    found = facts(sent(machine.on_tick(0)))
    assert len(found) == PICKS_BUFFERED_MAX + 1
    assert [line.own_seq for line in found[0].lines] == [0, 2, 4, 6, 8]  # type: ignore[attr-defined]


@pytest.mark.req("EVS-06", "EVS-17")
def test_lines_stand_where_their_picks_stood_so_that_own_numbers_reach_the_log_in_order() -> None:
    machine = replica()
    machine.on_submitted(0, end(7), PICK, time=1)
    machine.on_submitted(0, pick(8), PICK, time=1)
    machine.on_submitted(0, end(6), PICK, time=1)
    machine.on_submitted(20 * SECOND_US, pick(9), PICK, time=1)
    machine.on_submitted(20 * SECOND_US, end(8), PICK, time=1)
    told = facts(sent(machine.on_tick(31 * SECOND_US)))
    assert [type(fact) for fact in told] == [DispatchEnded, PicksLost, DispatchEnded, PickMade, DispatchEnded]
    assert told[1].lines[0].ended_seq is None, "its end is told in its own place"  # type: ignore[attr-defined]


@pytest.mark.req("EVS-17")
def test_an_end_that_accuses_its_workers_is_not_folded_into_a_line() -> None:
    machine = replica()
    machine.on_submitted(0, pick(1), PICK, time=1)
    machine.on_submitted(0, end(1)._replace(fault=int(Fault.FAULT)), PICK, time=1)
    told = facts(sent(machine.on_tick(31 * SECOND_US)))
    assert [type(fact) for fact in told] == [PicksLost, DispatchEnded]


def test_ledger_lines_that_could_not_be_written_are_written_later() -> None:
    machine = replica()
    machine.on_submitted(0, pick(1), PICK, time=1)
    first = sent(machine.on_tick(40 * SECOND_US))
    assert isinstance(facts(first)[0], PicksLost)
    machine.on_failed(40 * SECOND_US, first.number, is_full=False)
    assert facts(sent(machine.on_tick(90 * SECOND_US))) == facts(first)
    assert not machine.is_idle


# Unclear appends -------------------------------------------------------------------------


@pytest.mark.req("EVS-15")
def test_an_unclear_append_ends_the_writer_and_the_rest_is_sent_again() -> None:
    machine = replica()
    for number in range(4):
        machine.on_submitted(0, ping(number), CONTROL, tag=number)
    send = sent(machine.on_tick(0))
    machine.on_submitted(1, ping(4), CONTROL, tag=4)
    assert machine.on_unclear(2, send.number) == [FindOwn(W1, 1)]
    assert machine.due_at() is None
    effects = machine.on_found(3, W2, {1: 500, 2: 501})
    assert receipts(effects) == [(0, Status.ACKNOWLEDGED, 500), (1, Status.ACKNOWLEDGED, 501)]
    records = decoded(sent(machine.on_tick(10_000)))
    assert [r.fact for r in records] == [WriterContinued(W1, 2), ping(2), ping(3), ping(4)]
    assert [(r.writer, r.sequence) for r in records] == [(W2, n) for n in range(1, 5)]


def test_when_nothing_of_an_unclear_append_is_found_the_last_known_sequence_is_named() -> None:
    machine = replica()
    machine.on_submitted(0, ping(0), CONTROL)
    machine.on_committed(1, sent(machine.on_tick(0)).number, 0)
    machine.on_submitted(2, ping(1), CONTROL)
    send = sent(machine.on_tick(9_000))
    assert machine.on_unclear(9_001, send.number) == [FindOwn(W1, 2)]
    machine.on_found(9_002, W2, {})
    assert facts(sent(machine.on_tick(20_000))) == [WriterContinued(W1, 1), ping(1)]


def test_an_owner_with_an_unclear_append_claims_anew_before_its_facts_go_on() -> None:
    machine = owner()
    machine.on_submitted(0, CheckpointDue("x"), CONTROL)
    send = sent(machine.on_tick(0))
    old_stamp = decoded(send)[0].time
    machine.on_unclear(1, send.number)
    assert Reclaim(W1) in machine.on_found(2, W2, {})
    machine.on_urgent(3, LaneOpened(4, 0, W1, "restart"), time=old_stamp + 5)
    first = sent(machine.on_tick(10_000))
    assert facts(first) == [WriterContinued(W1, 0), LaneOpened(4, 0, W1, "restart")]
    machine.on_committed(10_001, first.number, 7)
    assert machine.state is State.HELD
    machine.on_claimed(10_002, 4, OwnerClock(old_stamp + 6, 10_002))
    record = decoded(sent(machine.on_tick(20_000)))[0]
    assert (record.fact, record.epoch, record.writer) == (CheckpointDue("x"), 4, W2)
    assert record.time > old_stamp + 5


def test_pings_of_a_writer_that_ended_are_told_lost() -> None:
    machine = owner()
    machine.on_submitted(0, CheckpointDue("x"), CONTROL)
    send = sent(machine.on_tick(0))
    machine.on_urgent(0, ping(9), tag="ping")
    machine.on_unclear(1, send.number)
    assert receipts(machine.on_found(2, W2, {})) == [("ping", Status.LOST, None)]


@given(
    st.lists(st.sampled_from(["submit", "tick", "commit", "fail", "full", "unclear", "room"]), max_size=60)
)
def test_every_critical_fact_is_in_the_log_once_in_order_whatever_happens(steps: list[str]) -> None:
    machine = replica()
    log: list[Record] = []
    receipts_of: dict[int, Receipt] = {}
    number, now, flight, writers = 0, 0, None, 1

    def keep(effects: list[Effect]) -> Send | None:
        found = None
        for effect in effects:
            if isinstance(effect, Settled):
                assert effect.tag not in receipts_of
                receipts_of[effect.tag] = effect.receipt
            elif isinstance(effect, Send):
                found = effect
        return found

    for step in [*steps, "room", *["tick", "commit"] * 3]:
        now += module.RETRY_US
        if step == "submit":
            keep(machine.on_submitted(now, ping(number), CONTROL, tag=number))
            number += 1
        elif step == "tick":
            flight = keep(machine.on_tick(now)) or flight
        elif step == "room":
            keep(machine.on_room(is_full=False))
        elif flight is not None:
            first = len(log)
            if step == "unclear":
                arrived = len(flight.records) // 2
                log += [decode_record(first + n, data) for n, data in enumerate(flight.records[:arrived])]
                (find,) = machine.on_unclear(now, flight.number)
                assert isinstance(find, FindOwn)
                found = {
                    r.sequence: r.offset
                    for r in log
                    if r.writer == find.writer and r.sequence >= find.sequence
                }
                writers += 1
                keep(machine.on_found(now, writers.to_bytes(16, "big"), found))
            elif step == "commit":
                log += [decode_record(first + n, data) for n, data in enumerate(flight.records)]
                keep(machine.on_committed(now, flight.number, first))
            else:
                keep(machine.on_failed(now, flight.number, is_full=step == "full"))
            flight = None
    taken, seen = [], dict[bytes, int]()
    for record in log:  # as the fold takes them
        if record.sequence > seen.get(record.writer, 0):
            seen[record.writer] = record.sequence
            if isinstance(record.fact, Pinged):
                taken.append(record.fact.number)
    assert taken == list(range(number))
    for tag, receipt in receipts_of.items():
        assert receipt.status is Status.ACKNOWLEDGED and receipt.offset is not None
        assert log[receipt.offset].fact == ping(tag)
    assert len(receipts_of) == number
