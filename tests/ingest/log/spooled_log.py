"""An owner with a spool, its log, which takes batches or not, and the shell between the two."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ingest.log.appender import Appender, Effect, FindOwn, Importance, Receipt, Reclaim, Send, Settled, Status
from ingest.log.log_clock import OwnerClock
from ingest.log.spool import Spool
from projections.events.codec import decode_record
from projections.events.control import LaneOpened, Pinged, WriterContinued
from projections.events.envelope import Record
from projections.events.signals import SampleReceived
from tests.ingest.log.facts import sample
from tests.ingest.log.memory_spill import MemorySpill

FIRST_WRITER = b"writer-number-01"
URGENT = (LaneOpened, WriterContinued)
URGENT_PING = -2  # the as-of of a ping that goes first


class SpooledLog:
    """A log that takes batches, refuses them, or leaves it open; and the shell around one owner."""

    def __init__(self, spill: MemorySpill, memory_bytes: int = 400, chunk_bytes: int = 200) -> None:
        self.spill = spill
        self.spool = Spool(spill, memory_bytes=memory_bytes, chunk_bytes=chunk_bytes)
        self.machine = Appender(FIRST_WRITER, is_owner=True, spool=self.spool)
        self.now = 0
        self.records: list[bytes] = []
        self.receipts: dict[int, Receipt] = {}
        self.submitted: list[Any] = []
        self.under_way: Send | None = None
        self.claimed = 0
        self.writers = 1
        self.claim()

    def submit(self, fact: Any, importance: Importance = Importance.CONTROL, time: int | None = None) -> None:
        self.submitted.append(fact)
        tag = len(self.submitted) - 1
        self.do(self.machine.on_submitted(self.now, fact, importance, time, tag))

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    assert self.under_way is None
                    self.under_way = effect
                case Settled(tag, receipt):
                    assert tag not in self.receipts, "told twice"
                    self.receipts[tag] = receipt
                case Reclaim():
                    self.machine.on_urgent(self.now, LaneOpened(self.claimed + 1, 0, b"", "restart"), time=1)
                case FindOwn():
                    pass

    def claim(self) -> None:
        """The claim of the present writer is read back."""
        self.claimed += 1
        self.do(self.machine.on_claimed(self.now, self.claimed, OwnerClock(1_000_000 * self.claimed, 0)))

    def tick(self) -> None:
        due_at = self.machine.due_at()
        if due_at is not None:
            self.now = max(self.now, due_at)
            self.do(self.machine.on_tick(self.now))
        while self.under_way is not None and self.machine.due_at() is not None:
            self.do(self.machine.on_tick(self.now))  # it reads ahead

    def commit(self) -> None:
        self.tick()
        send, self.under_way = self.under_way, None
        if send is not None:
            self.records += send.records
            first = len(self.records) - len(send.records)
            self.do(self.machine.on_committed(self.now, send.number, first))

    def refuse(self, is_full: bool = False) -> None:
        self.tick()
        send, self.under_way = self.under_way, None
        if send is not None:
            self.do(self.machine.on_failed(self.now, send.number, is_full))

    def unclear(self, lands: int) -> None:
        """So many records of the batch are found; the writer goes on under another id and claims anew."""
        self.tick()
        send, self.under_way = self.under_way, None
        if send is None:
            return
        landed = send.records[:lands]
        found = {
            decode_record(0, data).sequence: offset for offset, data in enumerate(landed, len(self.records))
        }
        self.records += landed
        self.do(self.machine.on_unclear(self.now, send.number))
        self.writers += 1
        self.do(self.machine.on_found(self.now, b"writer-number-%02d" % (self.writers % 100), found))

    def drain(self) -> None:
        """Everything works again."""
        self.spill.is_open = True
        self.do(self.machine.on_room(is_full=False))
        self.machine.on_released()
        for _ in range(10_000):
            if self.machine.is_idle:
                return
            self.commit()
            if self.machine.epoch == 0:
                self.claim()
        raise AssertionError("it never ends")

    @property
    def batch_records(self) -> int:
        """Records under way."""
        return 0 if self.under_way is None else len(self.under_way.records)

    @property
    def decoded(self) -> list[Record]:
        return [decode_record(offset, data) for offset, data in enumerate(self.records)]

    def told(self) -> list[Any]:
        """What the log holds of what was submitted, in order; samples by their numbers."""
        return [
            named(one.fact)
            for one in self.decoded
            if type(one.fact) not in URGENT
            and not (type(one.fact) is Pinged and one.fact.as_of == URGENT_PING)
        ]

    def check(self) -> None:
        """What arrives is what was submitted but for what was told shed or lost: in order, once."""
        assert set(self.receipts) == set(range(len(self.submitted)))
        kept = [
            tag for tag, receipt in sorted(self.receipts.items()) if receipt.status is Status.ACKNOWLEDGED
        ]
        assert self.told() == [named(self.submitted[tag]) for tag in kept]
        for tag in kept:
            offset = self.receipts[tag].offset
            assert offset is not None
            assert named(self.decoded[offset].fact) == named(self.submitted[tag])
        by_writer: dict[bytes, list[int]] = {}
        for one in self.decoded:
            by_writer.setdefault(one.writer, []).append(one.sequence)
        assert all(later > earlier for run in by_writer.values() for earlier, later in pairwise(run))
        stamps = [one.time for one in self.decoded if one.epoch]
        assert all(later > earlier for earlier, later in pairwise(stamps))
        assert self.machine.pending_bytes == self.spool.spilled_bytes == self.spool.records == 0
        assert not self.spool.is_stale


def named(fact: Any) -> Any:
    return (fact.publisher_id, fact.sequence) if type(fact) is SampleReceived else fact


def an_outage(log: SpooledLog, facts: int = 60) -> None:
    """No broker takes anything while so many facts come."""
    for number in range(facts):
        log.submit(sample(number), Importance.SAMPLE)
        log.refuse()
