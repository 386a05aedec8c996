"""Races of fleet, load, picks and dispatches, one test for each that decisions B and C name.

| decision | scenario |
|---|---|
| 11 | `test_a_pass_that_settles_with_another_set_is_repeated` |
| 17 | `test_a_missed_number_drops_samples_and_a_merged_one_does_not` |
| 18 | `test_a_lagging_replica_counts_its_dispatch_from_asked_at_plus_lag` |
| 18 | `test_what_was_heard_before_a_reconnect_still_answers` |
| 19 | `test_a_burst_between_two_samples_spreads_over_replicas` |
| 20 | `test_a_late_fault_makes_its_worker_suspect_until_a_newer_sample` |
| 20 | `test_a_worker_that_left_and_came_back_is_not_accused_by_an_older_dispatch` |
| 22, 23 | `test_a_restored_store_with_smaller_revisions_is_taken_as_it_is` |
| 28 | `test_a_request_keeps_the_settings_of_its_acceptance` |
| 28 | `test_a_pick_in_the_step_of_a_reload_is_whole` |
| 28 | `test_an_end_in_the_overlay_lifts_the_stall_of_its_folded_pick` |
| 28 | `test_a_departure_between_question_and_end_is_survived` |
| 31, 34 | `test_a_dispatch_ends_once_whatever_comes_together` |
| 32 | `test_the_first_byte_waits_for_the_log_or_the_outage_rule` |
| 33 | `test_an_outage_beyond_the_buffer_leaves_ledger_lines_with_their_ends` |
| 33 | `test_a_pick_in_the_middle_of_written_lines_counts_each_dispatch_once` |
"""

from __future__ import annotations

from functools import partial

import pytest

from ingest.discovery.source import EndReason
from projections.bounds import SECOND_US
from projections.events.control import ConfigAdopted
from projections.events.discovery import KeyDeleted, PassBegan, PassSettled
from projections.events.picks import DispatchEnded, PickMade, PicksLost, Verdict
from projections.events.signals import SampleReceived
from router.picker.rows import CandidateRow, unpack_rows
from tests.simulation.scenario import MS, SETTINGS, quiet


def rows(pick: PickMade) -> dict[int, CandidateRow]:
    """Decode candidates by worker."""
    return {row.instance_id: row for row in unpack_rows(pick.outcome.decode.rows)}


def winner(pick: PickMade | None) -> int:
    """The worker that decodes."""
    assert pick is not None and pick.outcome.decode.chosen is not None
    return pick.outcome.decode.chosen.instance_id


def test_a_pass_that_settles_with_another_set_is_repeated() -> None:
    with quiet() as sim:
        owner = sim.owner_process
        discovery = owner.discovery
        assert discovery is not None
        passes = len(sim.said(PassBegan))
        sim.act(owner, lambda: discovery.end(EndReason.STREAM))
        while len(sim.said(PassBegan)) == passes:
            sim.wait(MS)
        sim.act(owner, lambda: owner.say(KeyDeleted(1, "alpha", "backend/generate/1", 0)))
        sim.wait(5 * SECOND_US)
        assert len(sim.said(PassBegan)) == passes + 2, "it was told, and read everything again"
        assert len(sim.said(PassSettled)) == passes + 2


@pytest.mark.req("STORE-14", "LOAD-19")
def test_a_missed_number_drops_samples_and_a_merged_one_does_not() -> None:
    with quiet() as sim:
        first, second = sim.workers[1], sim.workers[2]
        for blocks in (1, 2, 3):
            sim.say(first, blocks)
            sim.say(second, blocks)
        sim.wait(300 * MS)
        merged = sim.said(SampleReceived)
        assert any(r.fact.covers_from < r.fact.sequence for r in merged)  # type: ignore[attr-defined]
        held = rows(sim.pick_of(sim.replica))
        assert {row.active_decode_blocks for row in held.values()} == {3}
        first.sequence += 1  # a message that never came
        sim.say(first, 0)
        first.sequence += 1
        sim.wait(300 * MS)
        assert rows(sim.pick_of(sim.replica))[1].active_decode_blocks == 0


@pytest.mark.req("STORE-06", "EVS-04")
def test_a_lagging_replica_counts_its_dispatch_from_asked_at_plus_lag() -> None:
    with quiet() as sim:
        sim.chances = sim.chances._replace(slow=1.0)
        sim.wait(6 * SECOND_US)
        pick = sim.pick_of(sim.replica)
        lag = pick.question.dispatched_at - pick.question.asked_at
        assert lag > 50 * MS
        assert lag == sim.replica.reading.tail.lag_us


@pytest.mark.req("STORE-13")
def test_what_was_heard_before_a_reconnect_still_answers() -> None:
    with quiet(workers=1) as sim:
        sim.pick_of(sim.replica, tokens=160)
        sim.wait(100 * MS)
        assert rows(sim.pick_of(sim.replica, tokens=1))[1].unanswered_blocks == 10
        sim.wait(100 * MS)
        sim.say(sim.workers[1], 5)
        sim.wait(200 * MS)
        owner = sim.owner_process
        assert owner.subscriptions is not None
        line = owner.subscriptions.lines[("alpha", 1001)]
        sim.act(owner, lambda: line.cut("closed"))
        sim.wait(3 * SECOND_US)
        row = rows(sim.pick_of(sim.replica))[1]
        assert (row.verdict, row.unanswered_blocks) == (Verdict.QUIET, 0)


@pytest.mark.req("EVS-05", "STORE-06")
@pytest.mark.field("B-074", "B-083")
def test_a_burst_between_two_samples_spreads_over_replicas() -> None:
    with quiet(workers=3) as sim:
        for worker in sim.workers.values():
            sim.say(worker, 4)
        sim.wait(300 * MS)
        chosen = []
        for number in range(12):
            chosen.append(winner(sim.pick_of(sim.replica if number % 2 else sim.owner_process)))
            sim.wait(20 * MS)
        assert sorted(chosen) == [1] * 4 + [2] * 4 + [3] * 4


def test_a_late_fault_makes_its_worker_suspect_until_a_newer_sample() -> None:
    with quiet() as sim:
        request = sim.ask(sim.replica, answer="fault", first_us=9 * SECOND_US)
        sim.wait(9 * SECOND_US + 100 * MS)
        accused = winner(request.made)
        for process in (sim.replica, sim.owner_process):
            assert rows(sim.pick_of(process))[accused].verdict == Verdict.EXCLUDED
        sim.say(sim.workers[accused], 0)
        sim.wait(300 * MS)
        assert rows(sim.pick_of(sim.owner_process))[accused].verdict == Verdict.FRESH


def test_a_worker_that_left_and_came_back_is_not_accused_by_an_older_dispatch() -> None:
    with quiet() as sim:
        request = sim.ask(sim.replica, answer="fault", first_us=3 * SECOND_US)
        sim.wait(200 * MS)
        worker = sim.workers[winner(request.made)]
        for key, _ in worker.records():
            sim.store.delete(key)
        sim.wait(SECOND_US)
        for key, value in worker.records():
            sim.store.put(key, value)
        sim.wait(2 * SECOND_US)
        assert request.end is not None
        for process in (sim.replica, sim.owner_process):
            assert rows(sim.pick_of(process))[worker.number].verdict == Verdict.QUIET


def test_a_restored_store_with_smaller_revisions_is_taken_as_it_is() -> None:
    with quiet() as sim:
        backup = sim.store.backup()
        for _ in range(3):
            sim.add_worker()
            sim.wait(300 * MS)
        sim.wait(SECOND_US)
        assert len(rows(sim.pick_of(sim.replica))) == 5
        sim.restore_store(backup)
        sim.wait(5 * SECOND_US)
        assert len(rows(sim.pick_of(sim.replica))) == 2
        worker = sim.workers[2]
        key, _ = worker.records()[0]
        sim.store.delete(key)
        sim.wait(SECOND_US)
        assert set(rows(sim.pick_of(sim.replica))) == {1}, "a revision below earlier ones counts"


@pytest.mark.req("PICK-13", "STORE-02")
def test_a_request_keeps_the_settings_of_its_acceptance() -> None:
    with quiet() as sim:
        sim.say(sim.workers[1], 7)
        sim.wait(300 * MS)
        request = sim.ask(sim.replica, body_us=500 * MS)
        patient = SETTINGS._replace(namespaces=("beta",), max_staleness_us=1)
        sim.act(sim.owner_process, lambda: sim.owner_process.adopt(patient))
        sim.wait(400 * MS)
        assert sim.replica.log.settings().version == 2
        sim.wait(200 * MS)
        assert request.made is not None
        assert request.made.config_version == 1
        assert rows(request.made)[1].verdict == Verdict.FRESH
        assert rows(sim.pick_of(sim.replica)) == {}


@pytest.mark.req("PICK-13")
def test_a_pick_in_the_step_of_a_reload_is_whole() -> None:
    with quiet() as sim:
        for number in range(6):
            other = SETTINGS._replace(max_staleness_us=(number + 1) * SECOND_US)
            sim.act(sim.owner_process, partial(sim.owner_process.adopt, other))
            for _ in range(8):
                sim.ask(sim.owner_process)
                sim.ask(sim.replica)
                sim.wait(MS)
        sim.wait(SECOND_US)
        versions = {r.fact.version: r.offset for r in sim.said(ConfigAdopted)}  # type: ignore[attr-defined]
        assert len(versions) == 7
        for request in sim.requests:
            assert request.made is not None
            assert versions[request.made.config_version] <= request.made.as_of


@pytest.mark.req("STORE-11", "STORE-08")
def test_an_end_in_the_overlay_lifts_the_stall_of_its_folded_pick() -> None:
    with quiet() as sim:
        request = sim.ask(sim.replica, tokens=160, last_us=7 * SECOND_US)
        stalled = winner(request.made)
        sim.wait(6 * SECOND_US)
        assert rows(sim.pick_of(sim.replica, tokens=1))[stalled].verdict == Verdict.STALLED
        sim.replica.cut_until = sim.now + 3 * SECOND_US  # its end stays in its overlay
        sim.wait(1_200 * MS)
        assert request.end is not None
        assert rows(sim.pick_of(sim.replica, tokens=1))[stalled].verdict == Verdict.QUIET
        assert rows(sim.pick_of(sim.owner_process, tokens=1))[stalled].verdict == Verdict.STALLED


def test_a_departure_between_question_and_end_is_survived() -> None:
    with quiet() as sim:
        request = sim.ask(sim.replica, last_us=3 * SECOND_US)
        for key, _ in sim.workers[winner(request.made)].records():
            sim.store.delete(key)
        sim.wait(4 * SECOND_US)
        assert request.end is not None
        assert winner(request.made) not in rows(sim.pick_of(sim.replica))


@pytest.mark.req("EVS-05")
@pytest.mark.parametrize("answer", ["ok", "refused", "fault", "broken", "expired"])
def test_a_dispatch_ends_once_whatever_comes_together(answer: str) -> None:
    with quiet() as sim:
        for leaves in (0, 20 * MS, 20 * MS + 1, 500 * MS, 700 * MS):
            sim.ask(sim.replica, answer=answer, leaves_us=leaves, times=3)
            sim.wait(300 * MS)
        sim.wait(15 * SECOND_US)
        assert len(sim.said(DispatchEnded)) == 5


@pytest.mark.req("EVS-17")
def test_the_first_byte_waits_for_the_log_or_the_outage_rule() -> None:
    with quiet() as sim:
        sim.meets(sim.replica, lambda writer, send: sim.later(300 * MS, lambda: sim.land(writer, send, 0)))
        slow = sim.ask(sim.replica, first_us=50 * MS)
        sim.wait(250 * MS)
        assert slow.opened is None
        sim.wait(100 * MS)
        assert slow.opened is True
        sim.meets(sim.replica, lambda writer, send: sim.later(900 * MS, lambda: sim.land(writer, send, 0)))
        slower = sim.ask(sim.replica, first_us=50 * MS)
        sim.wait(450 * MS)
        assert slower.opened is None
        sim.wait(100 * MS)
        assert slower.opened is False, "the configured wait is over"
        sim.replica.cut_until = sim.now + 10 * SECOND_US
        sim.wait(4 * SECOND_US)
        away = sim.ask(sim.replica, first_us=50 * MS)
        sim.wait(51 * MS)
        assert away.opened is False, "the log is known to be away"


@pytest.mark.req("EVS-17")
def test_an_outage_beyond_the_buffer_leaves_ledger_lines_with_their_ends() -> None:
    with quiet() as sim:
        before = len(sim.said(PickMade))
        sim.replica.cut_until = sim.now + 10 * SECOND_US
        sim.meets(
            sim.replica,
            *[lambda writer, send: sim.replica.later(MS, lambda: writer.failed(send.number, False))] * 90,
        )
        requests = [sim.ask(sim.replica, last_us=30 * MS) for _ in range(30)]
        sim.wait(15 * SECOND_US)
        lines = [line for record in sim.said(PicksLost) for line in record.fact.lines]  # type: ignore[attr-defined]
        lost = [request.made.pick_id for request in requests[:18] if request.made is not None]
        told = list(dict.fromkeys(line.pick_id for line in lines))  # a record may have been sent twice
        assert told == lost, "the buffer of this world holds 12"
        kept = {record.fact.pick_id for record in sim.said(PickMade)[before:]}  # type: ignore[attr-defined]
        assert len(kept) == 12


@pytest.mark.req("EVS-06", "EVS-17")
def test_a_pick_in_the_middle_of_written_lines_counts_each_dispatch_once() -> None:
    with quiet(workers=3) as sim:
        replica = sim.replica
        replica.cut_until = sim.now + 4 * SECOND_US
        sim.meets(
            replica, *[lambda writer, send: replica.later(MS, lambda: writer.failed(send.number, False))] * 38
        )
        for number in range(30):
            sim.ask(replica, tokens=160, last_us=10 * MS if number % 3 else 8 * SECOND_US)
            sim.wait(10 * MS)
        for _ in range(100):
            sim.ask(replica, tokens=16, last_us=5 * MS)
            sim.wait(50 * MS)
        assert len(sim.said(PicksLost)) >= 1
