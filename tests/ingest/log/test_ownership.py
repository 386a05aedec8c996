from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ingest.log import ownership
from ingest.log.appender import Appender, Effect, Importance, Reclaim, Send, State
from ingest.log.ownership import Ownership
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, LaneOpened
from projections.events.ports import (
    CommitFailed,
    LogCorrupt,
    LogError,
    MemoryLog,
    OffsetGone,
    RecordBatch,
)

A, B = b"writer-number-aa", b"writer-number-bb"
C, D = b"writer-number-cc", b"writer-number-dd"


class Shell:
    """Carries out what the machines want, at once and in one thread."""

    def __init__(
        self, log: MemoryLog, writer: bytes, *, reads_apart: bool = False, stands_by: bool = False
    ) -> None:
        self.log = log
        self.looked_for = asyncio.Event()
        self.looks: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
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
            apart=self.read_apart if reads_apart else None,
            stands_by=stands_by,
        )

    def read_apart(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.looks.append((work, done))
        self.looked_for.set()

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                first = self.log.commit(effect.records)
                self.ownership.on_committed(first, len(effect.records))
                self.do(self.appender.on_committed(self.now_us, effect.number, first))
            else:
                effect.tag(effect.receipt)  # type: ignore[union-attr]

    def renew(self, writer: bytes) -> None:
        """An append stayed unclear, and nothing of it is in the log."""
        self.appender.on_submitted(self.now_us, CheckpointDue("held"), Importance.CONTROL)
        self.now_us += 10_000
        (send,) = self.appender.on_tick(self.now_us)
        assert isinstance(send, Send)
        self.appender.on_unclear(self.now_us, send.number)
        found = self.appender.on_found(self.now_us, writer, {})
        assert any(isinstance(effect, Reclaim) for effect in found)
        self.ownership.begin("restart")

    def look(self) -> None:
        """What was to be read apart is read, and told."""
        work, done = self.looks.pop(0)
        try:
            result = work()
        except LogError as problem:
            result = problem
        done(result)

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


def owner_that_reads_apart(log: MemoryLog) -> Shell:
    shell = Shell(log, A, reads_apart=True)
    shell.ownership.begin("restart")
    shell.tick()
    assert shell.appender.epoch == 1
    return shell


def claim_of(writer: bytes, epoch: int) -> bytes:
    return encode_record(9_000_000, writer, 0, 1, LaneOpened(epoch, 9, A, "takeover"))


def test_one_that_claims_again_has_the_log_read_apart_and_sends_no_fact_meanwhile() -> None:
    log = MemoryLog()
    shell = owner_that_reads_apart(log)
    shell.renew(C)
    assert not shell.ownership.is_owned.is_set()
    assert shell.appender.state is State.HELD
    shell.tick()
    assert log.end_offset() == 2  # the claim, and who continues it
    shell.look()
    shell.tick()
    shell.tick()
    assert shell.ownership.is_owned.is_set()
    assert (shell.appender.epoch, log.end_offset()) == (2, 4)
    assert not shell.failed


def test_a_claim_that_was_read_while_the_log_was_looked_through_is_not_missed() -> None:
    log = MemoryLog()
    shell = owner_that_reads_apart(log)
    shell.renew(C)
    work, done = shell.looks.pop(0)
    early = work()
    log.commit([claim_of(B, 2)])
    shell.ownership.on_batches(log.read(0, 1 << 20))
    done(early)
    assert not shell.failed
    shell.look()
    assert "took the log over with epoch 2" in str(shell.failed[0])


def test_claims_of_before_are_no_news_to_one_that_looks_again() -> None:
    log = MemoryLog()
    shell = owner_that_reads_apart(log)
    shell.renew(C)
    shell.ownership.on_batches([RecordBatch(0, log.read(0, 1 << 20)[0].records)])
    shell.look()
    shell.tick()
    assert not shell.looks
    assert shell.appender.epoch == 2


def test_a_look_for_a_writer_that_is_over_counts_for_nothing() -> None:
    log = MemoryLog()
    shell = owner_that_reads_apart(log)
    shell.renew(C)
    shell.renew(D)
    shell.look()
    shell.tick()
    assert shell.appender.epoch == 0
    shell.look()
    shell.tick()
    assert shell.appender.epoch == 2


def test_a_log_that_cannot_be_read_just_now_is_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "READ_AGAIN_S", 0.0)
    shell = owner_that_reads_apart(MemoryLog())
    shell.renew(C)
    shell.looked_for.clear()

    async def fail_once() -> None:
        _, done = shell.looks.pop(0)
        done(CommitFailed("the broker is away"))
        await asyncio.wait_for(shell.looked_for.wait(), 10)

    asyncio.run(fail_once())
    shell.look()
    shell.tick()
    assert shell.appender.epoch == 2


@pytest.mark.parametrize("problem", [LogCorrupt("byte 7"), MemoryError()])
def test_a_log_that_can_never_be_read_ends_one_that_claims_again(problem: Exception) -> None:
    shell = owner_that_reads_apart(MemoryLog())
    shell.renew(C)
    _, done = shell.looks.pop(0)
    done(problem)
    assert len(shell.failed) == 1


class Retained(MemoryLog):
    """A log whose beginning goes."""

    begin = 0

    def first_offset(self) -> int:
        """See LogReader."""
        return self.begin


def resumed_owner(log: Retained, *, reads_apart: bool) -> Shell:
    """It stood still, has asked by a ping whether it still owns the log, and has a fact to say."""
    shell = Shell(log, A, reads_apart=reads_apart)
    shell.ownership.begin("restart")
    shell.tick()
    log.commit([encode_record(6_000_000, A, 1, 50 + n, CheckpointDue("time")) for n in range(3)])
    return shell


@pytest.mark.req("EVS-16")
@pytest.mark.parametrize("reads_apart", [True, False])
def test_an_owner_that_retention_overtook_ends_where_somebody_claimed_in_what_it_missed(
    reads_apart: bool,
) -> None:
    log = Retained()
    shell = resumed_owner(log, reads_apart=reads_apart)
    log.commit([claim_of(B, 2), encode_record(9_000_001, B, 2, 2, CheckpointDue("time"))])
    shell.now_us += 4_000_000
    log.begin = (end := log.end_offset()) - 1
    shell.ownership.on_batches([RecordBatch(end - 1, log.read(end - 1, 1 << 20)[-1].records[-1:])])
    if reads_apart:
        assert not shell.failed and shell.appender.state is State.HELD
        shell.look()
    assert "took the log over with epoch 2" in str(shell.failed[0])
    assert log.end_offset() == end


@pytest.mark.req("EVS-16")
def test_an_owner_that_retention_overtook_claims_anew_where_nobody_else_did() -> None:
    log = Retained()
    shell = resumed_owner(log, reads_apart=True)
    end = log.end_offset()
    last = RecordBatch(end - 1, log.read(end - 1, 1 << 20)[-1].records[-1:])
    shell.ownership.on_batches([last])
    assert shell.ownership.is_owned.is_set(), "offsets jumped"
    log.begin = end - 1
    shell.ownership.on_batches([last])
    assert shell.ownership.is_owned.is_set(), "it was read before"
    shell.ownership.on_batches([RecordBatch(end + 7, last.records)])
    assert shell.ownership.is_owned.is_set(), "they jumped once more"
    log.commit([encode_record(7_000_000, A, 1, 60 + n, CheckpointDue("time")) for n in range(40)])
    log.begin = log.end_offset() - 1
    shell.ownership.on_batches([RecordBatch(log.begin, last.records)])
    assert not shell.ownership.is_owned.is_set()
    shell.look()
    shell.tick()
    assert shell.ownership.is_owned.is_set() and shell.appender.epoch == 2
    assert not shell.failed


def test_a_standby_that_begins_behind_the_logs_beginning_goes_on_standing_by() -> None:
    log = MemoryLog()
    log.commit([claim_of(B, 1), encode_record(9_000_001, B, 1, 2, CheckpointDue("time"))])
    shell = Shell(log, A, stands_by=True)
    shell.ownership.begin("restart")
    shell.ownership.on_batches([RecordBatch(1, log.read(1, 1 << 20)[-1].records[-1:])])
    shell.tick()
    assert log.end_offset() == 2 and not (shell.failed or shell.looks)


@pytest.mark.req("EVS-16")
def test_an_owner_whose_log_was_removed_up_to_its_ping_claims_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Retained()
    shell = resumed_owner(log, reads_apart=False)
    read = log.read

    def read_what_is_left(start: int, bytes_max: int) -> list[RecordBatch]:
        if start < log.begin:
            raise OffsetGone(start, log.begin)
        return read(start, bytes_max)

    monkeypatch.setattr(log, "read", read_what_is_left)
    log.begin = log.end_offset() - 1
    shell.now_us += 4_000_000
    shell.ownership.on_tick()
    shell.tick()
    shell.tick()
    assert shell.ownership.is_owned.is_set() and shell.appender.epoch == 2
    assert not shell.failed
