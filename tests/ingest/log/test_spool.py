"""What waits for a log that is away: in order, once, as it was, or renewed where its writer ended."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.log import appender as module
from ingest.log.appender import Appender, Importance, Status
from ingest.log.appends import Entry
from ingest.log.spool import Spool, SpoolDamaged
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, Pinged
from projections.events.signals import SampleReceived
from tests.ingest.log.facts import REPLICA, pick, sample
from tests.ingest.log.memory_spill import MemorySpill
from tests.ingest.log.spooled_log import FIRST_WRITER, URGENT_PING, SpooledLog, an_outage

CONTROL, SAMPLE, KV, PICK = Importance.CONTROL, Importance.SAMPLE, Importance.KV, Importance.PICK


# Shipping ----------------------------------------------------------------------------------


def test_what_the_memory_does_not_hold_is_spooled_and_shipped_in_order_with_its_stamps() -> None:
    log = SpooledLog(MemorySpill())
    for number in range(60):
        log.now += 1_000
        log.submit(CheckpointDue(str(number)))
        log.refuse()
    assert log.spool.records > 40
    assert log.machine.pending_bytes - log.spool.spilled_bytes < 400 + 200 + 200
    log.drain()
    log.check()
    records = log.decoded
    assert [one.sequence for one in records] == list(range(1, 61))
    assert all(later.time - earlier.time >= 1_000 for earlier, later in pairwise(records))
    assert {receipt.status for receipt in log.receipts.values()} == {Status.ACKNOWLEDGED}


@pytest.mark.req("EVS-17")
def test_nothing_is_shed_while_the_spool_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHED_AT_BYTES", 2_000)
    without = Appender(FIRST_WRITER, is_owner=True)
    for number in range(200):
        without.on_submitted(0, sample(number), SAMPLE)
    assert without.shed[SAMPLE] > 100
    log = SpooledLog(MemorySpill())
    an_outage(log, 200)
    assert not log.machine.is_shedding
    assert log.machine.shed[SAMPLE] == 0
    log.drain()
    log.check()
    assert len(log.told()) == 200


@pytest.mark.req("EVS-17")
def test_beyond_the_ceiling_samples_are_shed_and_covered_and_control_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SHED_AT_BYTES", 1_500)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 4_000)
    log = SpooledLog(MemorySpill(bytes_max=3_000))
    an_outage(log, 100)
    assert log.spill.most <= 3_000
    assert log.machine.is_shedding
    for number in range(10):
        log.submit(CheckpointDue(str(number)))
    log.drain()
    shed = [tag for tag, receipt in log.receipts.items() if receipt.status is Status.SHED]
    assert shed and log.machine.shed[SAMPLE] == len(shed)
    log.submit(sample(100), SAMPLE)
    log.drain()
    log.check()
    newest = log.decoded[-1].fact
    assert isinstance(newest, SampleReceived)
    assert newest.covers_from == min(shed), "the next sample speaks for all that were shed"


def test_a_spool_that_has_room_again_takes_what_gathered_in_memory() -> None:
    log = SpooledLog(MemorySpill())
    log.spill.is_open = False
    an_outage(log, 30)
    assert log.spool.records == 0
    log.spill.is_open = True
    an_outage(log, 10)
    assert log.machine.pending_bytes - log.spool.spilled_bytes < 400 + 2 * 200 + 200
    log.drain()
    assert len(log.told()) == 40


def test_while_a_batch_is_under_way_the_next_one_is_read_ahead_as_far_as_memory_goes() -> None:
    log = SpooledLog(MemorySpill(), memory_bytes=2_000)
    for number in range(200):
        log.submit(sample(number), SAMPLE)
    batches = []
    while not log.machine.is_idle:
        log.tick()
        batches.append(log.batch_records)
        log.commit()
    assert max(batches[1:]) > 15, "of chunks that hold five"
    log.check()


# Renewal -------------------------------------------------------------------------------------


@pytest.mark.req("EVS-15")
def test_after_an_unclear_append_what_is_spooled_gets_new_sequences_stamps_and_the_new_writer() -> None:
    log = SpooledLog(MemorySpill())
    log.submit(CheckpointDue("first"))
    log.tick()
    for number in range(50):
        log.submit(CheckpointDue(str(number)))
    assert log.spool.records > 20
    log.unclear(lands=0)
    assert log.spool.is_stale
    for number in range(50, 60):
        log.submit(CheckpointDue(str(number)))
    log.drain()
    log.check()
    assert {one.writer for one in log.decoded} == {b"writer-number-02"}
    facts = [one for one in log.decoded if type(one.fact) is CheckpointDue]
    assert {one.epoch for one in facts} == {2}
    assert len(facts) == 61


@pytest.mark.parametrize("waits_in_memory", [True, False])
def test_a_ping_that_goes_first_moves_the_sequences_of_all_that_waits(waits_in_memory: bool) -> None:
    log = SpooledLog(MemorySpill())
    for number in range(40):
        log.submit(sample(number), SAMPLE)
    if not waits_in_memory:
        log.commit()
    log.machine.on_held()
    log.machine.on_urgent(log.now, Pinged(REPLICA, 1, URGENT_PING))
    log.commit()
    log.drain()
    log.check()
    sequences = [one.sequence for one in log.decoded]
    assert sequences == sorted(sequences)


def test_what_comes_while_the_last_stale_facts_wait_goes_behind_them() -> None:
    log = SpooledLog(MemorySpill())
    an_outage(log, 40)
    log.unclear(lands=0)
    log.commit()
    log.claim()
    number = 40
    while log.machine.pending_bytes:
        if number < 200:
            log.submit(sample(number), SAMPLE)
            number += 1
        log.commit()
    log.check()


@pytest.mark.req("EVS-17")
def test_on_a_full_log_what_is_spooled_and_may_be_shed_is_shed_in_its_turn() -> None:
    log = SpooledLog(MemorySpill())
    an_outage(log, 40)
    log.submit(CheckpointDue("x"))
    log.do(log.machine.on_room(is_full=True))
    for _ in range(40):
        log.commit()
    log.check()
    assert log.told() == [CheckpointDue("x")]
    assert log.machine.shed[SAMPLE] == 40
    log.do(log.machine.on_room(is_full=False))
    log.submit(sample(40), SAMPLE)
    log.drain()
    assert log.decoded[-1].fact == sample(40)._replace(covers_from=0)


def test_what_is_kept_of_a_fact_without_a_sequence_is_never_shorter_than_the_record_will_be() -> None:
    spool = Spool(MemorySpill())
    for fact in (sample(1 << 60), CheckpointDue("x"), pick(3)):
        entry = Entry(fact, KV, None, None, 0)
        assert spool.sketch(entry) == entry.size
        assert entry.size >= len(encode_record((1 << 62), FIRST_WRITER, 1 << 40, 1 << 50, fact))


def test_a_pick_that_an_owner_with_a_spool_is_handed_waits_whole_like_all_else() -> None:
    log = SpooledLog(MemorySpill())
    for number in range(40):
        log.submit(pick(number), PICK, time=5)
        log.now += 2_000_000
        log.refuse()
    assert log.machine.lost_picks == 0
    log.drain()
    log.check()
    assert [one.time for one in log.decoded] == [5] * 40


# Ends ------------------------------------------------------------------------------------------


def test_a_spool_that_is_thrown_away_says_how_much_it_was() -> None:
    log = SpooledLog(MemorySpill())
    an_outage(log, 40)
    thrown = log.spool.discard()
    assert 20 < thrown < 40
    assert (log.spool.disk_bytes, log.spool.is_in_use, log.spool.discard()) == (0, False, 0)


@pytest.mark.parametrize("harm", ["cut", "changed", "swapped"])
def test_a_chunk_that_is_not_what_was_spooled_is_told_and_nothing_of_it_is_sent(harm: str) -> None:
    log = SpooledLog(MemorySpill())
    an_outage(log, 40)
    chunks = log.spill.chunks
    if harm == "swapped":
        chunks[0] = chunks[0] + chunks[1]
    else:
        chunks[0] = chunks[0][:-3] if harm == "cut" else chunks[0][:60] + b"?" + chunks[0][61:]
    with pytest.raises(SpoolDamaged):
        log.drain()
    assert len(log.told()) < 20


# Any history -------------------------------------------------------------------------------------

FACTS = st.sampled_from(["control", "sample", "other sample", "kv", "ping", "pick", "large"])
STEPS = st.one_of(
    st.tuples(st.just("say"), st.lists(FACTS, min_size=6, max_size=24)),
    st.tuples(st.just("say"), st.lists(FACTS, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["tick", "commit", "refuse", "full", "claim", "urgent"]), st.none()),
    st.tuples(st.just("unclear"), st.integers(0, 8)),
    st.tuples(st.sampled_from(["room", "spill", "held"]), st.booleans()),
)


@pytest.mark.req("EVS-15", "EVS-17")
@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=8, max_size=60), st.sampled_from([600, 3_000, 1 << 30]))
def test_what_arrives_is_what_was_submitted_but_for_what_was_told_in_order_once(
    steps: list[tuple[str, Any]], bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHED_AT_BYTES", 1_500)
        patch.setattr(module, "PENDING_BYTES_MAX", 3_000)
        log = SpooledLog(MemorySpill(bytes_max))
        for word, value in steps:
            log.now += 500
            a_step(log, word, value)
            assert log.spill.size_bytes <= bytes_max
        log.drain()
        log.check()


def a_step(log: SpooledLog, word: str, value: Any) -> None:
    machine = log.machine
    match word:
        case "say":
            for kind in value:
                say(log, kind)
        case "tick":
            log.tick()
        case "commit":
            log.commit()
        case "refuse":
            log.refuse()
        case "full":
            log.refuse(is_full=True)
        case "unclear":
            log.unclear(value)
        case "claim" if machine.epoch == 0:
            log.claim()
        case "urgent":
            machine.on_urgent(log.now, Pinged(REPLICA, 1, URGENT_PING))
        case "room":
            log.do(machine.on_room(is_full=value))
        case "spill":
            log.spill.is_open = value
        case "held":
            machine.on_held() if value else machine.on_released()


def say(log: SpooledLog, kind: str) -> None:
    number = len(log.submitted)
    match kind:
        case "sample":
            log.submit(sample(number), SAMPLE)
        case "other sample":
            log.submit(sample(number, publisher=8), SAMPLE)
        case "kv":
            log.submit(Pinged(REPLICA, number, -1), KV)
        case "ping":
            log.submit(Pinged(REPLICA, number, -1), CONTROL, time=number)
        case "pick":
            log.submit(pick(number), PICK, time=number)
        case "large":
            log.submit(CheckpointDue("x" * 500 + str(number)))
        case _:
            log.submit(CheckpointDue(str(number)))
