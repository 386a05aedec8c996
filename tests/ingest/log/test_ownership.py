from __future__ import annotations

from ingest.log.appender import Appender, Effect, Send
from ingest.log.ownership import Ownership
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, LaneOpened
from projections.events.ports import LogError, MemoryLog

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
