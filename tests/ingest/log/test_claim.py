"""Ownership by scenario."""

from __future__ import annotations

import pytest

from ingest.log.claim import (
    CLAIM_PING_NUMBER,
    AppendUrgent,
    Claim,
    ClaimEffect,
    ClaimState,
    Fenced,
    Hold,
    Lost,
    MayClaim,
    Release,
    Won,
)
from ingest.log.log_clock import OwnerSeen
from ingest.log.standby import YOUNG_US
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


class Standby:
    """A standby whose own records come back after a while. claims: MayClaim effects are answered."""

    def __init__(self, last: OwnerSeen | None = None) -> None:
        self.claim = Claim(A, 0, stands_by=True, replica=b"replica-number-1")
        self.claim._vigil.begun_at = -YOUNG_US  # it has listened for long
        self.now = 0
        self.last = last
        self.told: list[object] = []
        self.urgent: list[AppendUrgent] = []

    def take(self, effects: list[ClaimEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AppendUrgent):
                self.urgent.append(effect)
            elif isinstance(effect, MayClaim):
                self.told.append(effect)
                self.take(self.claim.on_silence(effect.last or self.last, self.now, WALL + self.now))
            else:
                self.told.append(effect)

    def pass_time(self, us: int, reads_back: bool = True) -> None:
        for _ in range(us // 100_000):
            self.now += 100_000
            self.take(self.claim.on_tick(self.now))
            if reads_back:
                self.read_back()

    def read_back(self) -> None:
        urgent, self.urgent = self.urgent, []
        for effect in urgent:
            kind = Kind.LANE_OPENED if isinstance(effect.fact, LaneOpened) else Kind.PINGED
            record = Record(9, 0, kind, effect.time or 0, A, 0, 3, effect.fact)
            self.take(self.claim.on_record(record, self.now))


@pytest.mark.req("EVS-16")
def test_a_standby_of_a_silent_log_claims_it_with_the_next_epoch() -> None:
    standby = Standby(LAST)
    standby.pass_time(2_500_000)
    assert standby.told == [MayClaim(None), Won(5, LAST.stamp + 2_000_000 - 1_000_000)]
    assert standby.claim.state is ClaimState.OWNER


def test_a_standby_of_a_new_log_is_its_first_owner() -> None:
    standby = Standby()
    standby.pass_time(2_500_000)
    assert standby.claim.epoch == 1


@pytest.mark.req("EVS-16")
def test_a_standby_goes_on_with_the_log_time_from_when_it_heard_the_owner_last() -> None:
    standby = Standby()
    for second in range(5):
        standby.pass_time(1_000_000)
        standby.claim.on_owner_record(B, 7, 50_000_000 + second * 1_000_000, standby.now)
    standby.pass_time(1_900_000)
    assert standby.told == []
    standby.pass_time(500_000)
    heard_at, stamp = 5_000_000, 54_000_000
    assert standby.told == [MayClaim(OwnerSeen(B, 7, stamp, 0, 0)), Won(8, stamp, heard_at)]
    assert standby.claim.owner_heard_at == heard_at


def test_the_claim_of_a_takeover_tells_both_times_of_one_moment() -> None:
    standby = Standby()
    standby.pass_time(1_000_000)
    standby.claim.on_owner_record(B, 7, 50_000_000, standby.now)
    standby.pass_time(2_000_000)
    opened = standby.urgent[-1]
    assert opened == AppendUrgent(LaneOpened(8, WALL + 1_000_000, B, "takeover"), 50_000_000)


@pytest.mark.req("EVS-16")
def test_a_standby_that_loses_its_claim_stands_by_again() -> None:
    standby = Standby(LAST)
    standby.pass_time(1_900_000)
    standby.pass_time(300_000, reads_back=False)
    assert standby.claim.state is ClaimState.CLAIMING
    standby.take(standby.claim.on_record(claimed(B, 5), standby.now))
    standby.read_back()
    assert standby.told[-1] == Lost(B, 5)
    assert standby.claim.state is ClaimState.STANDBY
    standby.last = OwnerSeen(B, 5, LAST.stamp, LAST.stamp, WALL)
    standby.pass_time(2_400_000)
    assert standby.claim.epoch == 6, "the winner never spoke"


def test_records_of_a_superseded_owner_do_not_hold_a_standby_off() -> None:
    standby = Standby(OwnerSeen(B, 7, 50, 50, WALL))
    standby.claim.on_owner_record(B, 7, 50, 0)
    for _ in range(10):
        standby.pass_time(300_000)
        standby.claim.on_owner_record(b"writer-number-00", 6, 60, standby.now)
    assert standby.claim.epoch == 8


def test_a_standby_that_does_not_know_the_owner_judges_no_claim_of_others() -> None:
    standby = Standby(LAST)
    standby.pass_time(1_500_000)
    standby.take(standby.claim.on_record(claimed(B, 5), standby.now))
    standby.pass_time(1_500_000)
    assert standby.told == [], "but it waits"


@pytest.mark.field("B-138")
def test_a_standby_that_stood_still_listens_for_as_long_as_ever() -> None:
    standby = Standby(LAST)
    standby.pass_time(1_500_000)
    standby.now += 30_000_000
    standby.pass_time(1_800_000)
    assert standby.told == []


def test_a_standby_under_another_writer_id_still_knows_the_owner() -> None:
    standby = Standby()
    standby.pass_time(1_000_000)
    standby.claim.on_owner_record(B, 7, 50_000_000, standby.now)
    again = Claim(A, standby.now, stands_by=True)
    again.go_on_from(standby.claim)
    assert again.owner == (B, 7)
    assert again.owner_heard_at == standby.now


def test_an_owner_that_was_a_standby_is_fenced_like_any_other() -> None:
    standby = Standby(LAST)
    standby.pass_time(2_500_000)
    assert standby.claim.on_record(claimed(B, 6)) == [Fenced(B, 6)]
    assert standby.claim.state is ClaimState.FENCED
