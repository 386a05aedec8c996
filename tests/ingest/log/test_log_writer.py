"""The shell of a writer: on the memory log, on files, and where the log fails it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from ingest.log.appender import Importance, Receipt, Status
from ingest.log.log_writer import CommitNote, LogWriter, WriterSettings
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_upkeep import keep_up
from ingest.log.spool import Spool, SpoolDamaged
from ingest.log.writer_settings import boot_us
from projections.events.codec import decode_record
from projections.events.control import CheckpointDue, LaneOpened, Pinged, WriterContinued
from projections.events.envelope import Record
from projections.events.kinds import Kind
from projections.events.ports import (
    CommitFailed,
    CommitUnclear,
    LogCorrupt,
    LogError,
    LogFailed,
    LogFull,
    MemoryLog,
    RecordBatch,
)
from projections.events.signals import SampleReceived
from projections.fold import Fold
from tests.ingest.log.facts import REPLICA, end, pick, sample
from tests.ingest.log.log_places import SMALL, BrokenSync
from tests.ingest.log.memory_spill import MemorySpill
from tests.log_suite import read_all

WALL = 1_790_000_000_000_000


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        self.us += 10
        return self.us


def records(log: MemoryLog | SegmentLog) -> list[Record]:
    return [decode_record(offset, data) for offset, data in read_all(log, log.first_offset())]


async def acknowledged(writer: LogWriter, fact: tuple[object, ...]) -> Receipt:
    done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    writer.append(fact, on_done=done.set_result)
    return await asyncio.wait_for(done, 30)


async def test_an_owner_opens_the_lane_before_it_writes() -> None:
    log = MemoryLog()
    writer = await LogWriter.open(log, wall_us=lambda: WALL)
    receipt = await acknowledged(writer, CheckpointDue("x"))
    await writer.close()
    first, second = records(log)
    assert first.fact == LaneOpened(1, WALL, b"", "new")
    assert first.time == WALL
    assert (second.fact, second.epoch, second.writer) == (CheckpointDue("x"), 1, first.writer)
    assert second.time > first.time
    assert receipt == Receipt(Status.ACKNOWLEDGED, 1, second.sequence)


async def test_the_next_owner_has_the_next_epoch_and_names_the_last() -> None:
    log = MemoryLog()
    for epoch in (1, 2, 3):
        writer = await LogWriter.open(log)
        assert writer.epoch == epoch
        await acknowledged(writer, CheckpointDue("x"))
        await writer.close()
    opened = [record for record in records(log) if record.kind == Kind.LANE_OPENED]
    claims = [cast(LaneOpened, record.fact) for record in opened]
    assert [claim.previous_writer for claim in claims][1:] == [r.writer for r in opened[:-1]]
    stamps = [record.time for record in records(log)]
    assert stamps == sorted(set(stamps))


@pytest.mark.req("EVS-16")
async def test_the_fold_takes_every_record_of_successive_owners() -> None:
    log = MemoryLog()
    for _ in range(3):
        writer = await LogWriter.open(log)
        for number in range(5):
            writer.append(sample(number + 1), importance=Importance.SAMPLE)
            writer.append(pick(number), importance=Importance.PICK, time=5)
            writer.append(end(number), importance=Importance.PICK, time=5)
        await writer.close()
    fold = Fold()
    notices: list[object] = []
    for offset, data in read_all(log, 0):
        fold.apply(offset, data, notices)  # type: ignore[arg-type]
    assert fold.state.intake.owner == (records(log)[-1].writer, 3)
    assert not [notice for notice in notices if type(notice).__name__ == "IntakeNotice"]


async def test_facts_of_one_turn_of_the_loop_share_a_batch() -> None:
    notes: list[CommitNote] = []
    log = MemoryLog()
    writer = await LogWriter.open(log, on_commit=notes.append)
    notes.clear()
    for number in range(100):
        writer.append(Pinged(REPLICA, number, -1))
    await writer.flush()
    assert [note.records for note in notes] == [100]
    assert notes[0].size_bytes > 100 * 40
    await writer.close()


async def test_a_replica_needs_no_claim() -> None:
    log = MemoryLog()
    writer = await LogWriter.open(log, is_owner=False)
    await acknowledged(writer, Pinged(REPLICA, 1, -1))
    await writer.close()
    assert [record.fact for record in records(log)] == [Pinged(REPLICA, 1, -1)]
    assert records(log)[0].epoch == writer.epoch == 0


async def test_log_time_runs_with_the_clock_and_not_before_the_last_stamp() -> None:
    clock = Clock()
    writer = await LogWriter.open(MemoryLog(), now_us=clock, wall_us=lambda: WALL)
    before = writer.log_time_now()
    clock.us += 5_000_000
    assert 5_000_000 <= writer.log_time_now() - before < 5_001_000
    await writer.close()


async def test_after_close_nothing_is_taken_and_everybody_is_told() -> None:
    log = MemoryLog()
    writer = await LogWriter.open(log)
    await writer.close()
    await writer.close()
    assert (await acknowledged(writer, CheckpointDue("x"))).status is Status.LOST
    assert len(records(log)) == 1


async def test_a_fact_that_cannot_be_encoded_is_told_lost() -> None:
    writer = await LogWriter.open(MemoryLog())
    receipt = await acknowledged(writer, Pinged(bytes(5 << 20), 1, -1))
    assert receipt.status is Status.LOST
    assert (await acknowledged(writer, Pinged(REPLICA, 2, -1))).status is Status.ACKNOWLEDGED
    await writer.close()


# A log that fails ------------------------------------------------------------------------


async def test_a_failed_sync_ends_the_writer(tmp_path: Path) -> None:
    disk = BrokenSync()
    log = SegmentLog.open_owner(tmp_path, replace(SMALL, durable=True), disk)
    writer = await LogWriter.open(log)
    disk.broken = True
    writer.append(CheckpointDue("x"))
    problem = await asyncio.wait_for(asyncio.shield(writer.failure), 30)
    assert isinstance(problem, LogFailed)
    with pytest.raises(LogFailed):
        await writer.flush()
    assert (await acknowledged(writer, CheckpointDue("y"))).status is Status.LOST
    await writer.close()
    log.close()


class UnclearLog(MemoryLog):
    """Takes only half of a batch, once, and says that it does not know."""

    unclear = False

    def commit(self, batch: Sequence[bytes], critical: bool = True) -> int:
        if self.unclear:
            self.unclear = False
            super().commit(batch[: len(batch) // 2])
            raise CommitUnclear("connection lost")
        return super().commit(batch)


@pytest.mark.req("EVS-15")
async def test_an_owner_goes_on_under_a_new_id_after_an_unclear_append() -> None:
    log = UnclearLog()
    writer = await LogWriter.open(log)
    before = writer.writer
    log.unclear = True
    done: list[Receipt] = []
    for number in range(10):
        writer.append(CheckpointDue(str(number)), on_done=done.append)
    await writer.flush()
    assert writer.writer != before
    assert writer.epoch == 2
    assert [receipt.status for receipt in done] == [Status.ACKNOWLEDGED] * 10
    await writer.close()
    causes = [record.fact.cause for record in records(log) if isinstance(record.fact, CheckpointDue)]
    assert causes == [str(number) for number in range(10)]
    assert WriterContinued(before, 6) in [record.fact for record in records(log)]
    fold = Fold()
    for offset, data in read_all(log, 0):
        assert fold.apply(offset, data, []) is not None


class FarLog(UnclearLog):
    """Cannot be read twice, some reads after an append that stayed unclear."""

    def __init__(self, away_at: int) -> None:
        super().__init__()
        self.reads: int | None = None
        self._away = (away_at, away_at + 1)

    def commit(self, batch: Sequence[bytes], critical: bool = True) -> int:
        if self.unclear:
            self.reads = 0
        return super().commit(batch)

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        if self.reads is not None:
            self.reads += 1
            if self.reads - 1 in self._away:
                raise LogError("nobody answers")
        return super().read(start, bytes_max)


@pytest.mark.parametrize("away_at", range(4))
async def test_a_log_that_cannot_be_read_after_an_unclear_append_is_asked_again(away_at: int) -> None:
    log = FarLog(away_at)
    writer = await LogWriter.open(log)
    log.unclear = True
    done: list[Receipt] = []
    for number in range(4):
        writer.append(CheckpointDue(str(number)), on_done=done.append)
    await asyncio.wait_for(writer.flush(), 30)
    await writer.close()
    assert log.reads is not None and log.reads > away_at + 1
    assert [receipt.status for receipt in done] == [Status.ACKNOWLEDGED] * 4
    causes = [record.fact.cause for record in records(log) if isinstance(record.fact, CheckpointDue)]
    assert causes == ["0", "1", "2", "3"]


async def test_a_log_that_lost_what_was_sent_ends_the_writer() -> None:
    class Corrupt(UnclearLog):
        def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
            if self.end_offset() > 1:
                raise LogCorrupt("another log stands there")
            return super().read(start, bytes_max)

    log = Corrupt()
    writer = await LogWriter.open(log)
    log.unclear = True
    writer.append(CheckpointDue("x"))
    writer.append(CheckpointDue("y"))
    assert isinstance(await asyncio.wait_for(writer.failure, 30), LogCorrupt)
    await writer.close()


class FullLog(MemoryLog):
    """Has room for critical records alone while `full`."""

    full = False

    def is_full(self) -> bool:
        return self.full

    def commit(self, batch: Sequence[bytes], critical: bool = True) -> int:
        if self.full and not critical:
            raise LogFull("full")
        return super().commit(batch)


async def test_on_a_full_disk_picks_go_on_and_samples_are_shed() -> None:
    log = FullLog()
    writer = await LogWriter.open(log)
    log.full = True
    done: list[Receipt] = []
    writer.append(sample(1), importance=Importance.SAMPLE, on_done=done.append)
    writer.append(pick(1), importance=Importance.PICK, time=1, on_done=done.append)
    await writer.flush()
    assert [receipt.status for receipt in done] == [Status.SHED, Status.ACKNOWLEDGED]
    assert writer.shed[Importance.SAMPLE] == 1
    await writer.close()
    assert Kind.SAMPLE_RECEIVED not in {record.kind for record in records(log)}


class AwayLog(MemoryLog):
    """Takes nothing while `away`."""

    away = False

    def commit(self, batch: Sequence[bytes], critical: bool = True) -> int:
        if self.away:
            raise CommitFailed("nobody answers")
        return super().commit(batch)


def small_spool(spill: MemorySpill) -> Spool:
    return Spool(spill, memory_bytes=2_000, chunk_bytes=500)


def until_spooled(writer: LogWriter) -> None:
    """Samples that no broker takes, until some are spooled."""
    assert writer.spool is not None
    for number in range(1, 201):
        writer.append(sample(number), importance=Importance.SAMPLE)
    assert writer.spool.records > 50


@pytest.mark.req("EVS-17")
async def test_what_a_log_that_is_away_does_not_take_is_spooled_and_shipped_when_it_is_back() -> None:
    log = AwayLog()
    writer = await LogWriter.open(log, spool=small_spool(MemorySpill()))
    log.away = True
    until_spooled(writer)
    assert (writer.is_shedding, writer.shed[Importance.SAMPLE]) == (False, 0)
    with capture_logs() as captured:
        writer._spool_notes.look(boot_us())
        log.away = False
        await asyncio.wait_for(writer.flush(), 30)
        writer._spool_notes.look(boot_us())
    told = [record.fact for record in records(log) if isinstance(record.fact, SampleReceived)]
    assert told == [sample(number) for number in range(1, 201)]
    assert [entry["log_level"] for entry in captured] == ["warning", "info"]
    await writer.close()


@pytest.mark.req("EVS-16")
async def test_a_superseded_owner_throws_its_spool_away() -> None:
    log = AwayLog()
    clock = Clock()
    writer = await LogWriter.open(log, now_us=clock, spool=small_spool(spill := MemorySpill()))
    log.away = True
    until_spooled(writer)
    log.away = False
    writer._appender.on_held()  # as a loop that stood still does
    other = await LogWriter.open(log, is_owner=True)
    clock.us += 3_000_000
    with capture_logs() as captured:
        assert isinstance(await asyncio.wait_for(asyncio.shield(writer.failure), 30), LogFailed)
    assert spill.size_bytes == 0
    assert "what was spooled is thrown away" in [entry["event"] for entry in captured]
    await writer.close()
    await other.close()
    assert not [record for record in records(log) if record.kind == Kind.SAMPLE_RECEIVED]


async def test_a_spool_that_comes_back_damaged_ends_the_writer() -> None:
    log = AwayLog()
    writer = await LogWriter.open(log, spool=small_spool(spill := MemorySpill()))
    log.away = True
    until_spooled(writer)
    spill.chunks[0] = spill.chunks[0][:-1]
    log.away = False
    assert isinstance(await asyncio.wait_for(asyncio.shield(writer.failure), 30), SpoolDamaged)
    await writer.close()


async def test_a_closed_writer_leaves_no_spool() -> None:
    log = AwayLog()
    writer = await LogWriter.open(log, spool=small_spool(spill := MemorySpill()))
    log.away = True
    until_spooled(writer)
    writer._fail(LogError("given up"))
    await writer.close()
    assert spill.size_bytes == 0


async def test_another_owner_ends_this_one() -> None:
    log = MemoryLog()
    clock = Clock()
    stills: list[int] = []
    writer = await LogWriter.open(log, now_us=clock, on_still=stills.append)
    other = await LogWriter.open(log, is_owner=True)
    clock.us += 3_000_000  # this process was stopped meanwhile
    assert isinstance(await asyncio.wait_for(asyncio.shield(writer.failure), 30), LogFailed)
    assert stills
    assert not other.failure.done()
    await writer.close()
    await other.close()


@pytest.mark.field("B-138")
async def test_an_owner_that_stood_still_goes_on_when_nobody_took_over() -> None:
    log = MemoryLog()
    clock = Clock()
    still: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    writer = await LogWriter.open(log, now_us=clock, on_still=still.set_result)
    clock.us += 3_000_000
    assert await asyncio.wait_for(still, 30) >= 3_000_000
    assert (await acknowledged(writer, CheckpointDue("x"))).status is Status.ACKNOWLEDGED
    await writer.close()


async def test_upkeep_runs_beside_the_writer(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def upkeep() -> None:
        if keep_up(log).compressed:
            loop.call_soon_threadsafe(done.set)

    writer = await LogWriter.open(log, WriterSettings(upkeep_s=0.01), upkeep=upkeep)
    for number in range(2000):
        writer.append(Pinged(REPLICA, number, -1))
        if number % 100 == 0:
            await writer.flush()
    await asyncio.wait_for(done.wait(), 30)
    await writer.close()
    assert len(records(log)) == 2001
    log.close()


@pytest.mark.req("EVS-16")
async def test_a_writer_that_stands_by_says_what_a_replica_says_and_owns_a_log_of_nobody() -> None:
    log = MemoryLog()
    loop = asyncio.get_running_loop()
    owned = asyncio.Event()

    def read() -> None:
        writer.on_batches(log.read(0, 1 << 30))  # as the process's own tail does
        if writer.is_owner:
            owned.set()

    def committed(_: CommitNote) -> None:
        loop.call_soon(read)

    writer = await LogWriter.open(log, stands_by=True, replica=REPLICA, on_commit=committed)
    assert (await acknowledged(writer, Pinged(REPLICA, 1, -1))).status is Status.ACKNOWLEDGED
    assert (writer.is_owner, writer.epoch, writer.owner_heard_at) == (False, 0, None)
    await asyncio.wait_for(owned.wait(), 30)
    heard_at = boot_us() - 5_000_000
    assert (await acknowledged(writer, CheckpointDue("mine"))).status is Status.ACKNOWLEDGED
    writer.append(CheckpointDue("heard before"), heard_at=heard_at)
    await writer.flush()
    said = [record for record in records(log) if type(record.fact) is not Pinged]
    assert [type(record.fact) for record in said] == [LaneOpened, CheckpointDue, CheckpointDue]
    assert [record.epoch for record in said[1:]] == [1, 1]
    assert said[2].time == said[1].time + 1, "stamps never go back"
    assert {record.fact.replica for record in records(log) if isinstance(record.fact, Pinged)} == {REPLICA}
    await writer.close()


@pytest.mark.req("EVS-16")
async def test_a_standby_looks_for_the_last_owner_without_holding_the_loop() -> None:
    """Reads of a log far away may wait for as long as its brokers like."""
    loop = asyncio.get_running_loop()
    answered, looked = threading.Event(), asyncio.Event()
    owned = asyncio.Event()

    class Far(MemoryLog):
        def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
            if threading.current_thread() is not threading.main_thread():
                loop.call_soon_threadsafe(looked.set)
                assert answered.wait(30)
            return super().read(start, bytes_max)

    log = Far()
    before = await LogWriter.open(log, is_owner=True)
    await acknowledged(before, CheckpointDue("of an owner that is gone"))
    await before.close()
    end = log.end_offset()

    def read() -> None:
        writer.on_batches(log.read(end, 1 << 30))  # its fold began at a checkpoint
        if writer.is_owner:
            owned.set()

    def committed(_: CommitNote) -> None:
        loop.call_soon(read)

    settings = WriterSettings(reads_apart=True)
    writer = await LogWriter.open(log, settings, stands_by=True, replica=REPLICA, on_commit=committed)
    await asyncio.wait_for(looked.wait(), 30)
    assert not owned.is_set()
    answered.set()
    await asyncio.wait_for(owned.wait(), 30)
    assert writer.epoch == 2, "behind the owner that the log named"
    await writer.close()
