"""Unanswered dispatches, stalls and suspicion, and what pruning may not change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import DISPATCH_AGE_US_MAX, STALL_AGE_US, SUSPECT_US
from projections.events.held import LedgerLine, WorkerHeld
from projections.events.picks import Chosen, Fault, LostPick, Phase, PicksLost
from projections.identity import RankKey, WorkerKey
from projections.load import ledger as ledger_module
from projections.load.ledger import Ledger
from tests.router.picker.builders import NAMESPACE, NOW, REPLICA, S, a_fleet, a_record, a_worker, an_end

FLEET = a_fleet(a_worker(1), a_worker(2, dp_size=2))
ONE, TWO = WorkerKey(NAMESPACE, 1), WorkerKey(NAMESPACE, 2)
RANK = RankKey(NAMESPACE, 1, 0)


def a_line(
    pick: int,
    worker: int = 1,
    rank: int = 0,
    *,
    phase: Phase = Phase.DECODE,
    tokens: int = 160,
    blocks: int | None = 10,
    at: int = NOW,
    pair_decode: bool = False,
) -> LedgerLine:
    place = (worker, rank, int(phase), tokens)
    return LedgerLine(pick.to_bytes(2, "big"), REPLICA, NAMESPACE, *place, blocks, at, at, pair_decode, None)


def holding(*lines: LedgerLine) -> Ledger:
    ledger = Ledger()
    for line in lines:
        ledger.add(line.pick_id, (line,))
    return ledger


@pytest.mark.req("STORE-06")
def test_charge_weighs_until_a_sample_stamped_at_the_dispatch_or_later() -> None:
    ledger = holding(a_line(1), a_line(2, at=NOW + S))
    assert ledger.unanswered(RANK, None, NOW + 2 * S) == (320, 20)
    assert ledger.unanswered(RANK, NOW - 1, NOW + 2 * S) == (320, 20)
    assert ledger.unanswered(RANK, NOW, NOW + 2 * S) == (160, 10)
    assert ledger.unanswered_tokens(RANK, NOW + S, NOW + 2 * S) == 0
    assert ledger.unanswered_blocks(RANK, NOW + S, NOW + 2 * S) == 0


@pytest.mark.req("STORE-06")
def test_charge_weighs_thirty_seconds_at_most() -> None:
    ledger = holding(a_line(1))
    assert ledger.unanswered_blocks(RANK, None, NOW + DISPATCH_AGE_US_MAX - 1) == 10
    assert ledger.unanswered_blocks(RANK, None, NOW + DISPATCH_AGE_US_MAX) == 0


@pytest.mark.req("STORE-06", "SHIM-27")
def test_end_does_not_take_the_charge_away() -> None:
    ledger = holding(a_line(1))
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW + S)))
    assert ledger.unanswered(RANK, None, NOW + 2 * S) == (160, 10)


@pytest.mark.req("STORE-08")
@pytest.mark.field("B-085")
def test_unanswered_request_of_two_blocks_stalls_from_five_to_thirty_seconds() -> None:
    ledger = holding(a_line(1))
    assert not ledger.is_stalled(ONE, None, NOW + STALL_AGE_US - 1)
    assert ledger.is_stalled(ONE, None, NOW + STALL_AGE_US)
    assert ledger.is_stalled(ONE, None, NOW + DISPATCH_AGE_US_MAX - 1)
    assert not ledger.is_stalled(ONE, None, NOW + DISPATCH_AGE_US_MAX)
    assert not ledger.is_stalled(ONE, NOW, NOW + STALL_AGE_US)
    assert not ledger.is_stalled(TWO, None, NOW + STALL_AGE_US)


@pytest.mark.req("STORE-09", "STORE-10")
@pytest.mark.parametrize("line", [a_line(1, blocks=1), a_line(1, blocks=None), a_line(1, pair_decode=True)])
def test_small_requests_and_decode_halves_of_pairs_never_stall(line: LedgerLine) -> None:
    assert not holding(line).is_stalled(ONE, None, NOW + 10 * S)


@pytest.mark.req("STORE-11")
@pytest.mark.parametrize("fault", list(Fault))
def test_end_lifts_the_stall(fault: Fault) -> None:
    ledger = holding(a_line(1), a_line(2, at=NOW + S))
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW + S, fault=fault)))
    assert not ledger.is_stalled(ONE, None, NOW + STALL_AGE_US)
    assert ledger.is_stalled(ONE, None, NOW + STALL_AGE_US + S), "the other one runs on"


@pytest.mark.req("DYN-15")
@pytest.mark.field("B-029")
def test_second_end_and_end_of_an_unknown_pick_change_nothing() -> None:
    ledger = holding(a_line(1))
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW + S)))
    before = ledger.digest, len(ledger), ledger.running()
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW + 2 * S, fault=Fault.FAULT)))
    ledger.apply_end(a_record(an_end(b"\x00\x09", NOW + 2 * S, fault=Fault.FAULT)))
    assert (ledger.digest, len(ledger), ledger.running()) == before
    assert not ledger.is_suspect(ONE, None, NOW + 2 * S)


@pytest.mark.req("DYN-15")
def test_running_counts_each_dispatch_once_until_its_end() -> None:
    ledger = holding(a_line(1), a_line(2), a_line(3, 2, 1))
    assert ledger.running() == {RANK: 2, RankKey(NAMESPACE, 2, 1): 1}
    assert ledger.running(gone={REPLICA}) == {}
    for pick in (1, 2, 3):
        ledger.end(pick.to_bytes(2, "big"), NOW, Fault.NONE)
    assert ledger.running() == {}


@pytest.mark.req("DYN-14")
@pytest.mark.field("B-005", "B-027")
def test_fault_makes_all_workers_of_the_pick_suspect_and_an_ok_end_does_not_lift_it() -> None:
    ledger = holding(a_line(2))
    ledger.add(b"\x00\x01", (a_line(1, 2, phase=Phase.PREFILL), a_line(1, 1, pair_decode=True)))
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW, fault=Fault.FAULT)))
    ledger.apply_end(a_record(an_end(b"\x00\x02", NOW + 1)))
    for worker in (ONE, TWO):
        assert ledger.is_suspect(worker, None, NOW + SUSPECT_US - 1)
        assert not ledger.is_suspect(worker, None, NOW + SUSPECT_US)
        assert not ledger.is_suspect(worker, NOW + 1, NOW + 2)


@pytest.mark.req("DYN-14")
@pytest.mark.field("B-027")
def test_backpressure_makes_nobody_suspect() -> None:
    ledger = holding(a_line(1))
    ledger.apply_end(a_record(an_end(b"\x00\x01", NOW, fault=Fault.BACKPRESSURE)))
    assert not ledger.is_suspect(ONE, None, NOW)


def test_pick_is_held_once() -> None:
    ledger = holding(a_line(1), a_line(1, blocks=99))
    assert ledger.unanswered_blocks(RANK, None, NOW) == 10


def test_pick_recorded_after_its_worker_left_has_no_line_there() -> None:
    ledger = Ledger()
    ledger.add(b"\x00\x01", (a_line(1, 9, phase=Phase.PREFILL), a_line(1, 1)), FLEET)
    assert [line.instance_id for line in ledger.lines(b"\x00\x01")] == [1]


def test_lost_picks_charge_like_others_and_end_as_they_say() -> None:
    ledger = Ledger()
    chosen = Chosen(1, 0, False, 160, 10)
    lost = [
        LostPick(bytes((0, pick)), pick, NOW, NOW, NAMESPACE, chosen, None, ended and 9, ended and NOW)
        for pick, ended in ((1, None), (2, 1))
    ]
    ledger.apply_lost(a_record(PicksLost(REPLICA, tuple(lost))), FLEET)
    assert ledger.unanswered(RANK, None, NOW) == (320, 20)
    assert ledger.running() == {RANK: 1}


@pytest.mark.req("STORE-15")
@pytest.mark.field("B-056")
def test_departed_worker_takes_its_lines_and_suspicion_along() -> None:
    ledger = holding(a_line(2))
    ledger.add(b"\x00\x01", (a_line(1, 2, phase=Phase.PREFILL), a_line(1, 1)))
    ledger.end(b"\x00\x01", NOW, Fault.FAULT)
    ledger.evict([ONE, WorkerKey(NAMESPACE, 9)])
    assert ledger.unanswered(RANK, None, NOW) == (0, 0)
    assert not ledger.is_suspect(ONE, None, NOW) and ledger.worker(*ONE) is None
    assert ledger.is_suspect(TWO, None, NOW)
    assert ledger.unanswered(RankKey(NAMESPACE, 2, 0), None, NOW) == (160, 0)
    ledger.evict([TWO])
    assert len(ledger) == 0 and ledger.digest == 0


def test_ceiling_drops_the_oldest_dispatch_first() -> None:
    ledger = Ledger(lines_max=2)
    for pick, at in ((1, NOW + 5), (2, NOW), (3, NOW + 9)):
        ledger.add(pick.to_bytes(2, "big"), (a_line(pick, at=at),))
    assert [line.pick_id[1] for line in ledger.held()] == [1, 3]
    assert ledger.unanswered_blocks(RANK, None, NOW + 9) == 20


@pytest.mark.field("B-030")
def test_line_that_still_runs_is_kept_so_that_a_late_fault_finds_its_worker() -> None:
    ledger = holding(a_line(1))
    late = NOW + 90 * S
    ledger.prune(late)
    ledger.end(b"\x00\x01", late, Fault.FAULT)
    assert ledger.is_suspect(ONE, None, late)
    ledger.prune(late + 1)
    assert len(ledger) == 0
    assert ledger.is_suspect(ONE, None, late + 1)
    ledger.prune(late + SUSPECT_US)
    assert ledger.worker(*ONE) is None and ledger.digest == 0


@pytest.mark.field("B-029", "B-030")
def test_line_whose_end_never_comes_goes_after_a_day() -> None:
    ledger = holding(a_line(1))
    ledger.prune(NOW + ledger_module.OPEN_AGE_US_MAX - 1)
    assert len(ledger) == 1 and ledger.running() == {RANK: 1}
    ledger.prune(NOW + ledger_module.OPEN_AGE_US_MAX)
    assert len(ledger) == 0 and ledger.running() == {}


def steps() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    moment = st.integers(0, 120)
    pick = st.tuples(
        st.just("pick"), moment, st.integers(1, 30), st.sampled_from([1, 2]), st.sampled_from([None, 1, 2, 7])
    )
    end = st.tuples(st.just("end"), moment, st.integers(1, 30), st.sampled_from(list(Fault)))
    evict = st.tuples(st.just("evict"), moment, st.sampled_from([1, 2]))
    return st.lists(st.one_of(pick, pick, end, evict), max_size=40).map(in_order)


def in_order(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """By time, and each pick id picked once: ids are never used again."""
    taken: set[int] = set()
    kept = []
    for step in sorted(found, key=lambda step: step[1]):
        if step[0] != "pick" or step[2] not in taken:
            kept.append(step)
            taken.update([step[2]] if step[0] == "pick" else [])
    return kept


def apply(ledger: Ledger, step: tuple[Any, ...]) -> None:
    at = NOW + step[1] * S
    if step[0] == "pick":
        line = a_line(step[2], step[3], blocks=step[4], at=at)
        ledger.add(line.pick_id, (line,), FLEET)
    elif step[0] == "end":
        ledger.end(step[2].to_bytes(2, "big"), at, step[3])
    else:
        ledger.evict([(NAMESPACE, step[2])])


def answers(ledger: Ledger, at: int, heard: int) -> list[Any]:
    found: list[Any] = []
    for worker in (ONE, TWO):
        for heard_at in (None, at - heard * S):
            found.append(ledger.unanswered(RankKey(*worker, 0), heard_at, at))
            found.append(ledger.is_stalled(worker, heard_at, at))
            found.append(ledger.is_suspect(worker, heard_at, at))
    return found


@given(steps(), st.integers(0, 40), st.integers(0, 10))
def test_pruning_cannot_be_seen_by_any_later_question(
    found: list[tuple[Any, ...]], later: int, heard: int
) -> None:
    pruned, whole = Ledger(), Ledger()
    for step in found:
        apply(whole, step)
        pruned.prune(NOW + step[1] * S)
        apply(pruned, step)
        pruned.prune(NOW + step[1] * S)
        at = NOW + (step[1] + later) * S
        assert answers(pruned, at, heard) == answers(whole, at, heard)


@given(steps(), steps(), st.integers(1, 5))
def test_restored_ledger_has_the_same_digest_and_goes_on_alike(
    before: list[tuple[Any, ...]], later: list[tuple[Any, ...]], often: int
) -> None:
    ledger, copy = Ledger(), Ledger()
    for place, step in enumerate(before):
        apply(ledger, step)
        if place % often == 0:
            ledger.prune(NOW + step[1] * S)
            assert ledger.digest >= 0
    for line in ledger.held():
        copy.restore(line)
    for worker in (ONE, TWO):
        copy.restore(WorkerHeld(*worker, 0, 0, None, ledger.suspect_from(*worker)))
    assert copy.digest == ledger.digest and len(copy) == len(ledger)
    for step in later:
        at = NOW + (120 + step[1]) * S
        for one in (ledger, copy):
            apply(one, (step[0], 120 + step[1], *step[2:]))
            one.prune(at)
        assert copy.digest == ledger.digest
        assert answers(copy, at, 1) == answers(ledger, at, 1)
    assert [*copy.held()] == [*ledger.held()]
