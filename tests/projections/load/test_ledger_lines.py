"""Lines of a pick and the boundaries of their arithmetic."""

from __future__ import annotations

import pytest

from projections.bounds import DISPATCH_AGE_US_MAX, STALL_AGE_US, SUSPECT_US
from projections.events.held import LedgerLine
from projections.events.picks import Chosen, LostPick, Outcome, Phase, PhaseOutcome, PickReason
from projections.load.ledger_lines import (
    charged_blocks,
    is_stall,
    is_suspicion,
    lines_of,
    lines_of_lost,
    may_stall,
    unanswered_after,
)
from tests.router.picker.builders import NAMESPACE, NOW, REPLICA, a_question, made

PREFILL = Chosen(1, 0, False, 160, 10)
PAIR_DECODE = Chosen(2, 3, True, 0, 10)
ALONE = Chosen(2, 3, True, 160, 10)


def outcome(prefill: Chosen | None, decode: Chosen | None) -> Outcome:
    def phase(chosen: Chosen | None) -> PhaseOutcome:
        return PhaseOutcome(PickReason.LOAD, chosen, 1, None, b"")

    return Outcome(NAMESPACE if decode else None, phase(prefill), phase(decode), 0, 0, b"")


@pytest.mark.req("STORE-06", "STORE-10")
def test_pair_charges_tokens_to_prefill_and_blocks_to_decode() -> None:
    prefill, decode = lines_of(made(a_question(), outcome(PREFILL, PAIR_DECODE)))
    assert (prefill.instance_id, prefill.phase, prefill.tokens, charged_blocks(prefill)) == (1, 1, 160, 0)
    assert (decode.instance_id, decode.dp_rank, decode.phase) == (2, 3, 2)
    assert (decode.tokens, charged_blocks(decode)) == (0, 10)
    assert may_stall(prefill) and not may_stall(decode)


@pytest.mark.req("STORE-06")
def test_rank_without_a_partner_is_charged_with_both() -> None:
    (line,) = lines_of(made(a_question(), outcome(None, ALONE)))
    assert (line.tokens, charged_blocks(line), line.pair_decode) == (160, 10, False)
    assert may_stall(line)


def test_pick_without_a_choice_has_no_lines() -> None:
    assert lines_of(made(a_question(), outcome(None, None))) == ()


def test_lost_pick_has_the_lines_of_the_pick() -> None:
    fact = made(a_question(), outcome(PREFILL, PAIR_DECODE))
    lost = LostPick(fact.pick_id, 0, NOW, NOW, NAMESPACE, PAIR_DECODE, PREFILL, None, None)
    assert lines_of_lost(REPLICA, lost) == lines_of(fact)


@pytest.mark.req("STORE-09")
@pytest.mark.parametrize(("blocks", "may"), [(None, False), (0, False), (1, False), (2, True)])
def test_only_two_known_blocks_may_stall(blocks: int | None, may: bool) -> None:
    place = (1, 0, int(Phase.DECODE), 0)
    line = LedgerLine(b"p", REPLICA, NAMESPACE, *place, blocks, NOW, NOW, False, None)
    assert may_stall(line) is may


def test_unanswered_is_what_came_after_the_last_sample_within_thirty_seconds() -> None:
    assert unanswered_after(None, NOW) == NOW - DISPATCH_AGE_US_MAX
    assert unanswered_after(NOW - 5, NOW) == NOW - 5
    assert unanswered_after(1, NOW) == NOW - DISPATCH_AGE_US_MAX


@pytest.mark.req("STORE-08")
def test_stall_begins_at_five_seconds_and_ends_at_an_answer() -> None:
    stalls = [(NOW, b"a"), (NOW, b"b"), (NOW + 9, b"c")]
    at = NOW + STALL_AGE_US
    assert not is_stall(stalls, 0, at - 1)
    assert is_stall(stalls, NOW - 1, at)
    assert not is_stall(stalls, NOW, at), "answered by a sample of that very instant"
    assert is_stall(stalls, NOW, at + 9), "the later one is not"


@pytest.mark.req("STORE-11")
def test_ended_dispatch_is_no_stall() -> None:
    stalls = [(NOW, b"a"), (NOW, b"b")]
    assert is_stall(stalls, 0, NOW + STALL_AGE_US, {b"a": 1})
    assert not is_stall(stalls, 0, NOW + STALL_AGE_US, {b"a": 1, b"b": 1})


@pytest.mark.req("DYN-14")
@pytest.mark.parametrize(
    ("heard_at", "at", "holds"),
    [
        (None, NOW, True),
        (None, NOW + SUSPECT_US - 1, True),
        (None, NOW + SUSPECT_US, False),
        (NOW, NOW + 1, True),
        (NOW + 1, NOW + 1, False),
        (None, NOW - 5, True),
    ],
)
def test_suspicion_ends_by_itself_or_by_a_newer_sample(heard_at: int | None, at: int, holds: bool) -> None:
    assert is_suspicion(NOW, heard_at, at) is holds
    assert not is_suspicion(None, heard_at, at)
