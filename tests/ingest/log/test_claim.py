"""Ownership by scenario."""

from __future__ import annotations

import pytest

from ingest.log.claim import (
    CLAIM_PING_NUMBER,
    AppendUrgent,
    Claim,
    ClaimState,
    Fenced,
    Hold,
    Release,
    Won,
)
from ingest.log.log_clock import OwnerSeen
from projections.events.control import LaneOpened, Pinged
from projections.events.envelope import Record
from projections.events.kinds import Kind

A, B = b"writer-number-aa", b"writer-number-bb"
WALL = 1_790_000_000_000_000
LAST = OwnerSeen(b"writer-number-00", 4, 5_000_000, 4_000_000, WALL)


def claimed(writer: bytes, epoch: int, offset: int = 10) -> Record:
    fact = LaneOpened(epoch, WALL, b"", "restart")
    return Record(offset, 0, Kind.LANE_OPENED, 0, writer, 0, 1, fact)


def pinged(writer: bytes, number: int) -> Record:
    return Record(11, 0, Kind.PINGED, 0, writer, 0, 2, Pinged(writer, number, -1))


def owner() -> Claim:
    claim = Claim(A, 0)
    claim.on_log_read(LAST, WALL)
    assert claim.on_record(claimed(A, 5))
    return claim


def test_the_first_owner_of_a_new_log_has_epoch_one_and_starts_at_the_wall_clock() -> None:
    claim = Claim(A, 0)
    assert claim.on_log_read(None, WALL) == [AppendUrgent(LaneOpened(1, WALL, b"", "new"), WALL)]
    assert claim.on_record(claimed(A, 1)) == [Won(1, WALL)]
    assert claim.state is ClaimState.OWNER


def test_a_later_owner_has_the_next_epoch_and_goes_on_from_the_last_stamp() -> None:
    claim = Claim(A, 0)
    passed_us = 9_000_000
    effects = claim.on_log_read(LAST, WALL + 1_000_000 + passed_us)
    stamp = LAST.stamp + passed_us
    assert effects == [AppendUrgent(LaneOpened(5, WALL + 10_000_000, LAST.writer, "restart"), stamp)]


def test_a_wall_clock_that_was_set_back_moves_nothing() -> None:
    claim = Claim(A, 0)
    (effect,) = claim.on_log_read(LAST, WALL - 3_600_000_000)
    assert isinstance(effect, AppendUrgent)
    assert effect.time == LAST.stamp


@pytest.mark.req("EVS-16")
def test_of_two_claims_of_one_epoch_the_first_offset_wins_and_the_other_is_fenced() -> None:
    claim = Claim(A, 0)
    claim.on_log_read(LAST, WALL)
    assert claim.on_record(claimed(B, 5, offset=9)) == [Fenced(B, 5)]
    assert claim.on_record(claimed(A, 5, offset=10)) == []
    assert claim.state is ClaimState.FENCED


def test_claims_of_an_old_epoch_change_nothing() -> None:
    claim = owner()
    for epoch in (1, 4, 5, 7):
        assert claim.on_record(claimed(B, epoch)) == []
    assert claim.state is ClaimState.OWNER


def test_an_owner_that_reads_a_later_claim_is_fenced_for_good() -> None:
    claim = owner()
    assert claim.on_record(claimed(B, 6)) == [Fenced(B, 6)]
    assert claim.on_record(claimed(A, 7)) == []
    assert claim.on_tick(99_000_000) == []


@pytest.mark.field("B-138")
def test_an_owner_that_stood_still_asks_whether_it_still_is_the_owner() -> None:
    claim = owner()
    assert claim.on_tick(900_000) == []
    effects = claim.on_tick(3_000_000)
    number = CLAIM_PING_NUMBER + 1
    assert effects == [Hold(2_100_000), AppendUrgent(Pinged(A, number, -1), None)]
    assert claim.on_record(pinged(B, number)) == []
    assert claim.on_record(pinged(A, number - 1)) == []
    assert claim.on_record(pinged(A, number)) == [Release()]
    assert claim.state is ClaimState.OWNER


def test_a_resumed_owner_that_was_superseded_finds_out_before_its_ping() -> None:
    claim = owner()
    claim.on_tick(5_000_000)
    assert claim.on_record(claimed(B, 6)) == [Fenced(B, 6)]
    assert claim.on_record(pinged(A, CLAIM_PING_NUMBER + 1)) == []


def test_standing_still_twice_needs_the_newer_ping() -> None:
    claim = owner()
    claim.on_tick(5_000_000)
    claim.on_tick(10_000_000)
    assert claim.on_record(pinged(A, CLAIM_PING_NUMBER + 1)) == []
    assert claim.on_record(pinged(A, CLAIM_PING_NUMBER + 2)) == [Release()]


def test_a_claimant_that_stands_still_just_goes_on() -> None:
    claim = Claim(A, 0)
    claim.on_log_read(None, WALL)
    assert claim.on_tick(60_000_000) == []
