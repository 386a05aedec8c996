from __future__ import annotations

import pytest

from ingest.log.appender import Appender, Effect, Reclaim, Send
from ingest.log.ownership import Ownership, own_records
from projections.events.codec import decode_record, encode_record
from projections.events.control import CheckpointDue, LaneOpened, Pinged
from projections.events.ports import LogError, MemoryLog
from replay.engine import records_of

A, B = b"writer-number-aa", b"writer-number-bb"


class Shell:
    """Carries out what the machines want, at once and in one thread."""

    def __init__(self, log: MemoryLog, writer: bytes) -> None:
        self.log = log
        self.now_us = 0
        self.failed: list[LogError] = []
        self.stills: list[int] = []
        self.appender = Appender(writer, is_owner=True)
        self.ownership = Ownership(
            log,
            self.appender,
            now_us=lambda: self.now_us,
            wall_us=lambda: 5_000_000,
            do=self.do,
            fail=self.failed.append,
            on_still=self.stills.append,
        )

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                first = self.log.commit(effect.records)
                self.ownership.on_committed(first, len(effect.records))
                self.do(self.appender.on_committed(self.now_us, effect.number, first))
            else:
                effect.tag(effect.receipt)  # type: ignore[union-attr]

    def tick(self, us: int = 10_000) -> None:
        self.now_us += us
        self.do(self.appender.on_tick(self.now_us))


def test_an_owner_owns_after_reading_itself_as_the_winner() -> None:
    shell = Shell(MemoryLog(), A)
    shell.ownership.begin("restart")
    assert not shell.ownership.is_owned.is_set()
    shell.tick()
    assert shell.ownership.is_owned.is_set()
    assert shell.appender.epoch == 1


def test_of_two_that_claim_at_once_the_second_ends() -> None:
    log = MemoryLog()
    one, two = Shell(log, A), Shell(log, B)
    one.ownership.begin("restart")
    two.ownership.begin("restart")
    two.tick()
    one.tick()
    assert two.ownership.is_owned.is_set()
    assert not one.ownership.is_owned.is_set()
    assert "took the log over with epoch 1" in str(one.failed[0])


def test_a_resumed_owner_reads_to_its_ping_before_it_goes_on() -> None:
    log = MemoryLog()
    shell = Shell(log, A)
    shell.ownership.begin("restart")
    shell.tick()
    shell.now_us += 4_000_000
    shell.ownership.on_tick()
    shell.appender.on_submitted(shell.now_us, CheckpointDue("held"), 4)  # type: ignore[arg-type]
    shell.tick()
    assert shell.stills == [4_010_000]
    shell.tick()
    assert log.end_offset() == 3  # the claim, the ping, the fact
    assert not shell.failed


def test_a_resumed_owner_that_was_superseded_appends_no_fact() -> None:
    log = MemoryLog()
    shell = Shell(log, A)
    shell.ownership.begin("restart")
    shell.tick()
    log.commit([encode_record(9_000_000, B, 0, 1, LaneOpened(2, 0, A, "takeover"))])
    shell.now_us += 4_000_000
    shell.ownership.on_tick()
    shell.appender.on_submitted(shell.now_us, CheckpointDue("never"), 4)  # type: ignore[arg-type]
    shell.tick()
    shell.tick()
    assert "took the log over with epoch 2" in str(shell.failed[0])
    assert log.end_offset() == 3  # two claims and a ping


def test_own_records_are_found_by_sequence() -> None:
    log = MemoryLog()
    rows = [(A, 1), (B, 1), (A, 2), (A, 3)]
    log.commit([encode_record(1, writer, 0, number, Pinged(writer, number, -1)) for writer, number in rows])
    log.commit([b"rubbish"])
    assert own_records(log, 0, A, 2) == {2: 2, 3: 3}
    assert own_records(log, 3, A, 0) == {3: 3}


class Waiting(Shell):
    """A standby whose process reads the log and hands it over."""

    def __init__(self, log: MemoryLog, writer: bytes) -> None:
        super().__init__(log, writer)
        self.appender = Appender(writer, is_owner=True, stands_by=True)
        self.ownership = Ownership(
            log,
            self.appender,
            now_us=lambda: self.now_us,
            wall_us=lambda: 5_000_000,
            do=self.do,
            fail=self.failed.append,
            on_still=None,
            stands_by=True,
            replica=b"replica-number-1",
        )
        self.read_at = 0

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                first = self.log.commit(effect.records)
                self.do(self.appender.on_committed(self.now_us, effect.number, first))

    def pass_time(self, us: int) -> None:
        for _ in range(us // 100_000):
            self.ownership.on_tick()
            self.tick(100_000)
            batches = self.log.read(self.read_at, 1 << 30)
            self.ownership.on_batches(batches)
            self.read_at = self.log.end_offset()

    @property
    def owns(self) -> bool:
        return self.ownership.is_owned.is_set()


@pytest.mark.req("EVS-16")
def test_a_standby_owns_once_the_owner_was_silent_and_not_before() -> None:
    log = MemoryLog()
    owner, standby = Shell(log, A), Waiting(log, B)
    owner.ownership.begin("restart")
    owner.tick()
    for second in range(5):
        owner.now_us = second * 1_000_000
        owner.appender.on_submitted(owner.now_us, CheckpointDue("a word each second"), 4)  # type: ignore[arg-type]
        owner.tick()
        standby.pass_time(1_000_000)
        assert not standby.owns
    standby.pass_time(2_000_000)
    assert standby.owns
    assert standby.appender.epoch == 2
    opened = [decode_record(o, data) for o, data in records_of(log, 0)]
    took = next(record for record in opened if record.writer == B and type(record.fact) is LaneOpened)
    assert (took.fact[0], *took.fact[2:]) == (2, A, "takeover")
    standby.appender.on_submitted(standby.now_us, CheckpointDue("mine"), 4)  # type: ignore[arg-type]
    assert standby.ownership.owner_heard_at is not None
    passed = standby.now_us - standby.ownership.owner_heard_at
    standby.tick()
    mine = decode_record(0, [data for _, data in records_of(log, 0)][-1])
    assert (mine.epoch, mine.fact) == (2, CheckpointDue("mine"))
    assert mine.time == took.time + 1 + passed, "log time goes on from when the owner was heard last"


@pytest.mark.req("EVS-16")
def test_of_two_standbys_one_owns_and_the_other_waits_on() -> None:
    log = MemoryLog()
    one, two = Waiting(log, A), Waiting(log, B)
    for _ in range(40):
        one.pass_time(100_000)
        two.pass_time(100_000)
        if one.owns:
            one.appender.on_submitted(one.now_us, CheckpointDue("it speaks"), 4)  # type: ignore[arg-type]
    assert (one.owns, two.owns) == (True, False)
    assert not one.failed and not two.failed


@pytest.mark.req("EVS-16")
def test_an_owner_that_was_a_standby_hears_of_the_claim_that_superseded_it() -> None:
    log = MemoryLog()
    one = Waiting(log, A)
    one.pass_time(3_500_000)
    assert one.owns
    log.commit([encode_record(9_000_000, B, 0, 1, LaneOpened(2, 0, A, "takeover"))])
    one.pass_time(100_000)
    assert "took the log over with epoch 2" in str(one.failed[0])


def test_a_standby_whose_ping_is_unclear_goes_on_standing_by() -> None:
    log = MemoryLog()
    standby = Waiting(log, A)
    standby.pass_time(300_000)
    standby.appender.on_urgent(standby.now_us, Pinged(A, 1, -1))
    (send,) = standby.appender.on_tick(standby.now_us + 50_000)
    assert isinstance(send, Send)
    standby.appender.on_unclear(standby.now_us, send.number)
    effects = standby.appender.on_found(standby.now_us, B, {})
    assert [type(effect) for effect in effects] == [Reclaim]
    standby.ownership.begin("restart")
    assert log.end_offset() == 1, "it claimed nothing"
    standby.pass_time(3_500_000)
    assert standby.owns
    assert standby.appender.writer == B


def test_what_is_read_a_second_time_is_passed_over() -> None:
    log = MemoryLog()
    standby = Waiting(log, A)
    standby.pass_time(3_500_000)
    assert standby.owns
    standby.ownership.on_batches(log.read(0, 1 << 30))
    assert not standby.failed
