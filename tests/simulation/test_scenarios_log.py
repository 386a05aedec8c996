"""Races of the log and its owner, one test for each that decisions A and D name.

| decision | scenario |
|---|---|
| 2 | `test_a_step_of_the_wall_moves_nothing_even_where_the_owner_claims_again` |
| 3 | `test_log_time_goes_on_while_the_owner_is_dead` |
| 5 | `test_a_torn_tail_is_cut_and_a_reader_that_saw_nothing_of_it_reads_on_beyond_the_jump` |
| 5 | `test_a_failed_sync_ends_the_owner_and_the_next_one_goes_on` |
| 5, 7 | `test_a_crash_between_append_and_acknowledgement_has_one_effect` |
| 7 | `test_an_unclear_append_that_lands_has_one_effect`, whenever it lands |
| 7 | `test_a_claim_found_after_its_unclear_append_does_not_open_its_epoch_for_facts` |
| 7 | `test_a_copy_far_behind_its_pick_is_not_counted_again_in_replay` |
| 7 | `test_a_batch_that_was_delivered_twice_has_one_effect` |
| 7 | `test_two_claimants_at_once_have_one_winner` |
| 7 | `test_picks_go_on_under_a_new_writer_with_the_numbers_of_the_old_one` |
| 9 | `test_a_checkpoint_in_the_middle_of_a_listing_is_the_full_fold` |
| 9 | `test_a_first_pick_behind_a_checkpoint_is_repeated_from_it` |
| 10 | `test_notes_speak_of_an_earlier_tick_and_agree` |
| 10 | `test_a_replica_that_disagrees_starts_anew_and_its_picks_since_the_last_agreed_state_are_suspect` |
| 15 | `test_a_full_disk_sheds_samples_first_and_coverage_stays_true` |
| 16 | `test_poison_is_condemned_and_everybody_skips_it` |
| 34 | `test_a_silent_replica_is_gone_until_it_speaks` |
| 46 | `test_a_resumed_owner_reads_to_its_own_ping_before_it_speaks` |
| 46 | `test_a_resumed_owner_that_was_superseded_says_nothing_that_counts` |
| 66 | `test_an_outage_leaves_ready_who_was_ready` |
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from app.tail import StopReason
from ingest.discovery.source import EndReason
from ingest.log.appends import Send
from projections.bounds import OFFSET_JUMP, SECOND_US
from projections.events.codec import decode_record, encode_record
from projections.events.control import (
    ClockTicked,
    LaneOpened,
    Pinged,
    RecordCondemned,
    ReplicaGone,
    WriterContinued,
)
from projections.events.discovery import KeyPut, PassBegan, PassSettled
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted
from projections.events.ports import MemoryLog
from projections.events.signals import FrameRefused, SampleReceived
from projections.fold import Fold
from replay.engine import Replay, Unverifiable
from replay.verify import Report, verify
from tests.simulation.scenario import MS, Quiet, quiet
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Replica, Writer
from tests.simulation.world_router import Request


@pytest.mark.req("EVS-04")
def test_a_step_of_the_wall_moves_nothing_even_where_the_owner_claims_again() -> None:
    with quiet() as sim:
        owner = sim.owner_process
        owner.wall_offset += 86_400 * SECOND_US
        sim.meets(owner, sim.unclear_commit("never"))
        sim.wait(2 * SECOND_US)
        assert len(sim.said(LaneOpened)) == 2
        stamps = [record.time for record in sim.said((ClockTicked, LaneOpened))]
        assert stamps[-1] - stamps[0] < 10 * SECOND_US


@pytest.mark.req("EVS-04")
def test_log_time_goes_on_while_the_owner_is_dead() -> None:
    with quiet() as sim:
        before = sim.pick_of(sim.replica).question.asked_at
        sim.owner_process.die()
        sim.wait(20 * SECOND_US)
        after = sim.pick_of(sim.replica).question.asked_at
        assert 19 * SECOND_US < after - before < 21 * SECOND_US


@pytest.mark.req("EVS-15")
@pytest.mark.field("B-137")
def test_a_torn_tail_is_cut_and_a_reader_that_saw_nothing_of_it_reads_on_beyond_the_jump() -> None:
    with quiet() as sim:
        sim.replica.pause(2 * SECOND_US)

        def torn(writer: Writer, send: Send) -> None:
            sim.torn(send, "cut")
            writer.process.die()

        sim.meets(sim.owner_process, torn)
        sim.wait(1_500 * MS)
        assert not sim.owner_process.is_alive
        sim.start(OwnerProcess, "owner2")
        sim.wait(3 * SECOND_US)
        assert sim.log.end > OFFSET_JUMP
        assert sim.replica.reading.tail.fold.mark.offset > OFFSET_JUMP


def test_a_failed_sync_ends_the_owner_and_the_next_one_goes_on() -> None:
    with quiet() as sim:

        def broken(writer: Writer, send: Send) -> None:
            sim.torn(send, "whole")
            writer.process.later(100, writer.broken)

        sim.meets(sim.owner_process, broken)
        sim.wait(2 * SECOND_US)
        assert not sim.owner_process.is_alive
        owner = sim.start(OwnerProcess, "owner2")
        sim.wait(2 * SECOND_US)
        assert owner.appender.epoch == 2


@pytest.mark.req("EVS-15")
def test_a_crash_between_append_and_acknowledgement_has_one_effect() -> None:
    with quiet() as sim:
        owner = sim.owner_process

        def landed(writer: Writer, send: Send) -> None:
            sim.torn(send, "whole")
            writer.process.die()

        sim.wait(50 * MS)
        sim.meets(owner, landed)
        request = sim.ask(owner)
        sim.wait(100 * MS)
        assert request.acknowledged is None
        assert [record.fact for record in sim.said(PickMade)] == [request.made]
        sim.start(OwnerProcess, "owner2")


@pytest.mark.req("EVS-15", "EVS-16")
@pytest.mark.parametrize("lands", ["never", "before", "after", "part"])
@pytest.mark.parametrize("who", ["owner", "replica"])
def test_an_unclear_append_that_lands_has_one_effect(lands: str, who: str) -> None:
    with quiet() as sim:
        process: Replica = sim.owner_process if who == "owner" else sim.replica
        first = process.appender.writer
        sim.meets(process, sim.unclear_commit(lands))
        sim.say(sim.workers[1], 3)
        requests = [sim.ask(process) for _ in range(3)]
        sim.wait(4 * SECOND_US)
        assert process.appender.writer != first
        assert [record.fact.previous_writer for record in sim.said(WriterContinued)] == [first]  # type: ignore[attr-defined]
        assert all(request.acknowledged for request in requests)


@pytest.mark.req("EVS-15", "EVS-16")
def test_a_claim_found_after_its_unclear_append_does_not_open_its_epoch_for_facts() -> None:
    with quiet() as sim:
        owner = sim.owner_process
        sim.settle_writer(owner)
        sim.meets(owner, sim.unclear_commit("never"), sim.unclear_commit("before"))
        sim.add_worker()
        sim.wait(3 * SECOND_US)
        opened = [(record.writer, record.fact.epoch) for record in sim.said(LaneOpened)]  # type: ignore[attr-defined]
        assert [epoch for _, epoch in opened] == [1, 2, 3]
        put = sim.said(KeyPut)[-1]
        assert (put.writer, put.epoch) == opened[-1]


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize("later_us", [100, 400 * MS, 8 * SECOND_US])
def test_a_batch_that_was_delivered_twice_has_one_effect(later_us: int) -> None:
    with quiet() as sim:

        def twice(writer: Writer, send: Send) -> None:
            sim.land(writer, send, 0)
            sim.later(later_us, partial(sim.log.commit, send.records))

        sim.meets(sim.replica, twice)
        request = sim.ask(sim.replica, last_us=100 * MS)
        sim.wait(200 * MS)
        for _ in range(20):
            sim.ask(sim.replica)
            sim.wait(500 * MS)
        copies = [record for record in sim.said(PickMade) if record.fact == request.made]
        assert len(copies) == 2


@pytest.mark.req("EVS-15")
def test_a_copy_far_behind_its_pick_is_not_counted_again_in_replay() -> None:
    with quiet() as sim:
        sim.settle_writer(sim.replica)
        sim.meets(sim.replica, sim.unclear_commit("after"))
        sim.pick_of(sim.replica, tokens=1_000)
        for _ in range(8):
            sim.wait(300 * MS)
            sim.pick_of(sim.replica)
        sim.wait(2 * SECOND_US)
        assert len(sim.said(PickMade)) == 10, "one of nine stands in the log twice"


@pytest.mark.req("EVS-16")
def test_two_claimants_at_once_have_one_winner() -> None:
    with quiet() as sim:
        sim.owner_process.die()
        claimants = [sim.start(OwnerProcess, "first"), sim.start(OwnerProcess, "second")]
        sim.wait(3 * SECOND_US)
        assert [one.is_alive for one in claimants].count(True) == 1
        assert [one.fenced for one in claimants].count(True) == 1
        (winner,) = [one for one in claimants if one.is_alive]
        assert sim.replica.reading.tail.fold.state.intake.owner == (winner.appender.writer, 2)


@pytest.mark.req("EVS-15")
def test_picks_go_on_under_a_new_writer_with_the_numbers_of_the_old_one() -> None:
    with quiet() as sim:
        sim.pick_of(sim.replica)
        sim.meets(sim.replica, sim.unclear_commit("never", 300 * MS))
        for _ in range(5):
            sim.pick_of(sim.replica, last_us=30 * MS)
            sim.wait(40 * MS)
        sim.wait(3 * SECOND_US)
        numbers = [
            record.fact.own_seq + isinstance(record.fact, PickMade)  # type: ignore[attr-defined]
            for record in sim.said((PickMade, DispatchEnded))
            if record.fact.replica == sim.replica.id  # type: ignore[attr-defined]
        ]
        assert numbers == list(range(1, 13))


@pytest.mark.req("EVS-13")
def test_a_checkpoint_in_the_middle_of_a_listing_is_the_full_fold() -> None:
    with quiet(workers=6) as sim:
        owner = sim.owner_process
        assert owner.discovery is not None
        for at_us in (500, 4_000, 9_000):
            sim.act(owner, lambda: owner.discovery.end(EndReason.STREAM))  # type: ignore[union-attr]
            sim.wait(SECOND_US)
            while not any(
                isinstance(r.fact, PassBegan) and r.offset > sim.log.end - 6 for r in sim.said(PassBegan)
            ):
                sim.wait(MS)
            sim.wait(at_us)
            sim.act(owner, lambda: owner.owner.checkpoint_now("start"))
            sim.wait(2 * SECOND_US)
        assert len(sim.checkpoints.list()) >= 3


@pytest.mark.req("EVS-06", "EVS-13")
def test_a_first_pick_behind_a_checkpoint_is_repeated_from_it() -> None:
    with quiet() as sim:
        sim.wait(12 * SECOND_US)
        sim.pick_of(sim.replica)
        sim.wait(SECOND_US)
        report = verify(sim.log.store, sim.checkpoints)
        assert (report.picks, report.equal) == (1, 1)


def test_notes_speak_of_an_earlier_tick_and_agree() -> None:
    with quiet() as sim:
        sim.wait(5 * SECOND_US)
        ticks = sim.said(ClockTicked)
        told = {record.offset: record.fact.noted_offset for record in ticks}  # type: ignore[attr-defined]
        assert all(noted < offset for offset, noted in told.items())
        assert set(list(told.values())[2:]) <= set(told)
        assert sim.replica.reading.tail._agreed_offset in told


def picks_of_a_replica_that_goes_wrong(sim: Quiet) -> list[Request]:
    """Thirty picks, of which about half are made on a state without the sample that changes them."""
    sim.may_disagree = True
    for blocks in (3, 4, 5):
        sim.say(sim.workers[1], blocks)
        sim.wait(100 * MS)
    requests = [sim.ask(sim.replica) for _ in range(3)]
    wrong = sim.replica.reading.tail
    sim.act(sim.replica, lambda: wrong.fold.state.load.evict([("alpha", 1)]))
    wrong_from = sim.now
    for _ in range(30):
        requests.append(sim.ask(sim.replica))
        sim.wait(100 * MS)
    assert [(name, restart.reason) for name, restart in sim.restarts] == [("replica", "disagreed")]
    assert sim.now - wrong_from < 4 * SECOND_US
    assert wrong.stopped is StopReason.DISAGREED
    sim.digests = [one for one in sim.digests if one[0] != "replica"]
    return requests


@pytest.mark.req("EVS-06")
def test_a_replica_that_disagrees_starts_anew_and_its_picks_since_the_last_agreed_state_are_suspect() -> None:
    with quiet() as sim:
        requests = picks_of_a_replica_that_goes_wrong(sim)
        made = [request.made for request in requests if request.made is not None]
        assert not any(pick.suspect for pick in made[:8]), "it has not noticed yet"
        assert not any(pick.suspect for pick in made[-5:]), "the new fold stands"
        [record] = sim.said(PicksDistrusted)
        named: Any = record.fact
        assert named.replica == sim.replica.id
        since = {pick.pick_id for pick in made if named.after < pick.as_of <= named.upto}
        marked = {pick.pick_id for pick in made if pick.suspect}
        assert {pick.pick_id for pick in made[3:8]} <= since and not since & {p.pick_id for p in made[-5:]}
        ticks = [tick.offset for tick in sim.said(ClockTicked)]
        assert named.after in ticks, "both agreed there"
        asked = list(Replay(sim.log.store, None).asked())
        suspect = {one.fact.pick_id for one in asked if one.unverifiable is Unverifiable.SUSPECT}
        assert suspect == since | marked
        report = verify(sim.log.store, sim.checkpoints)
        assert (report.different, report.unverifiable) == (0, len(suspect))
        assert trusting(sim).different > 5, "without the mark they would be differences"


def trusting(sim: Quiet) -> Report:
    """The report of the same log, had the replica named no picks."""
    plain = MemoryLog()
    for offset, data in sim.log.records():
        record = decode_record(offset, data)
        if isinstance(record.fact, PicksDistrusted):
            ping = Pinged(record.fact.replica, 0, -1)
            data = encode_record(record.time, record.writer, record.epoch, record.sequence, ping)
        assert plain.commit([data]) == offset
    return verify(plain, None)


@pytest.mark.req("STORE-14")
def test_a_full_disk_sheds_samples_first_and_coverage_stays_true() -> None:
    with quiet() as sim:
        sim.say(sim.workers[1], 3)
        sim.wait(200 * MS)
        sim.log.is_full = True
        requests = []
        for blocks in range(40):
            sim.say(sim.workers[1 + blocks % 2], blocks)
            requests.append(sim.ask(sim.replica))
            sim.wait(50 * MS)
        assert all(request.acknowledged for request in requests[:-1]), "picks go on"
        shed_from = len(sim.said(SampleReceived))
        sim.log.is_full = False
        sim.wait(SECOND_US)
        for worker in sim.workers.values():
            sim.say(worker, 1)
        sim.wait(SECOND_US)
        after = [record.fact for record in sim.said(SampleReceived)[shed_from:]]
        assert any(fact.covers_from < fact.sequence for fact in after)  # type: ignore[attr-defined]


def test_poison_is_condemned_and_everybody_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    innocent = Fold._frame_refused

    def poisonous(self: Fold, record: Any, notices: Any) -> None:
        if record.fact.frames == 666:
            raise RuntimeError("poison")
        innocent(self, record, notices)

    monkeypatch.setattr(Fold, "_frame_refused", poisonous)
    with quiet() as sim:
        sim.may_stop = range(sim.log.end, sim.log.end + 10_000)
        sim.wait(2 * SECOND_US)
        poison = FrameRefused(1, "alpha", 1001, 1, 3, 666)
        sim.act(sim.owner_process, lambda: sim.owner_process.say(poison))
        for _ in range(10):
            sim.pick_of(sim.replica)
            sim.wait(300 * MS)
        condemned = sim.said(RecordCondemned)
        assert {record.fact.offset for record in condemned} == {offset for _, offset in sim.stops}  # type: ignore[attr-defined]
        assert {name for name, _ in sim.restarts} == {"owner", "replica", "follower"}
        assert not sim.pick_of(sim.replica).suspect


@pytest.mark.req("EVS-05")
def test_a_silent_replica_is_gone_until_it_speaks() -> None:
    with quiet() as sim:
        sim.replica.pause(33 * SECOND_US)
        sim.wait(33 * SECOND_US)
        assert [record.fact.replica for record in sim.said(ReplicaGone)] == [sim.replica.id]  # type: ignore[attr-defined]
        sim.wait(2 * SECOND_US)
        held = sim.owner_process.reading.tail.fold.state.status.replica(sim.replica.id)
        assert held is not None and held.gone_at is None


def test_a_resumed_owner_reads_to_its_own_ping_before_it_speaks() -> None:
    with quiet() as sim:
        owner = sim.owner_process
        lines = len(sim.said(LaneOpened))
        owner.pause(4 * SECOND_US)
        sim.wait(6 * SECOND_US)
        assert owner.is_alive and owner.appender.epoch == 1
        assert len(sim.said(LaneOpened)) == lines
        assert owner.subscriptions is not None
        assert all(line.connection == 2 for line in owner.subscriptions.lines.values()), "they were cut"


@pytest.mark.req("EVS-16")
def test_a_resumed_owner_that_was_superseded_says_nothing_that_counts() -> None:
    with quiet() as sim:
        first = sim.owner_process
        sim.say(sim.workers[1], 9)
        sim.wait(200)
        first.pause(5 * SECOND_US)
        sim.wait(3 * SECOND_US)
        second = sim.start(OwnerProcess, "owner2")
        sim.wait(4 * SECOND_US)
        assert first.fenced and second.is_alive
        took_over = sim.said(LaneOpened)[-1].offset
        counted = sim.replica.reading.tail.fold
        assert counted.state.intake.owner == (second.appender.writer, 2)
        late = [r for r in sim.said((ClockTicked, SampleReceived, PassSettled)) if r.offset > took_over]
        assert {r.writer for r in late if r.epoch == 2} == {second.appender.writer}


@pytest.mark.req("EVS-17")
def test_an_outage_leaves_ready_who_was_ready() -> None:
    with quiet() as sim:
        replica = sim.replica
        sim.wait(2 * SECOND_US)
        assert replica.reading.tail.readiness(replica.clock()) == (True, (), ())
        for process in (replica, sim.owner_process):
            process.cut_until = sim.now + 20 * SECOND_US
        sim.wait(5 * SECOND_US)
        assert replica.reading.tail.readiness(replica.clock()) == (True, (), ("log",))
        late = sim.start(Replica, "late")
        late.cut_until = sim.now + 10 * SECOND_US
        sim.wait(3 * SECOND_US)
        assert late.reading.tail.readiness(late.clock()).missing == ("caught_up",)
