"""A process writes nothing before it has a writer, and tells what became of each pick."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from app.observe import Observer
from app.own_records import NAME_AGAIN_US, OwnRecords
from app.version import VERSION
from ingest.log.log_writer import LogWriter
from projections.bounds import SECOND_US
from projections.events.codec import decode_record
from projections.events.control import CheckpointDue, Pinged, ReplicaStarted
from projections.events.ports import MemoryLog
from router.picker.pick_flags import PICK_FLAGS

ME = bytes([42]) * 16


def facts(log: MemoryLog, kind: type) -> list[Any]:
    found = []
    for batch in log.read(0, 1 << 30):
        for offset, data in enumerate(batch.records, batch.first_offset):
            record = decode_record(offset, data)
            if isinstance(record.fact, kind):
                found.append(record)
    return found


async def test_before_the_claim_nothing_is_written_and_a_pick_is_told_lost() -> None:
    own = OwnRecords(ME, Observer(), "serve")
    own.of_owner(CheckpointDue("time"))
    own.ping(1, 0, 5)
    done: list[bool] = []
    own.of_replica(Pinged(ME, 2, 0), 5, done.append)
    assert done == [], "not within the call"
    await asyncio.sleep(0)
    assert done == [False]


async def test_a_name_that_the_log_lost_is_said_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 10**9
    monkeypatch.setattr("app.own_records.monotonic_us", lambda: now)
    log = MemoryLog()
    own = OwnRecords(ME, Observer(), "router")
    own.writer = await LogWriter.open(log)

    async def named() -> int:
        own.ping(1, 17, 1_000, is_nameless=True)
        assert own.writer is not None
        await own.writer.flush()
        return len(facts(log, ReplicaStarted))

    now += 60 * SECOND_US
    assert await named() == 0, "a process that has not started says no name"
    own.started(3_000)
    assert await named() == 1, "it may be on its way"
    now += NAME_AGAIN_US
    assert await named() == 2
    now += NAME_AGAIN_US - 1
    assert await named() == 2
    own.ping(2, 17, 1_000)
    await own.writer.flush()
    assert len(facts(log, ReplicaStarted)) == 2
    assert len(facts(log, Pinged)) == 5
    await own.writer.close()


async def test_records_carry_their_times_and_receipts_come_back() -> None:
    log = MemoryLog()
    own = OwnRecords(ME, Observer(), "serve")
    own.writer = await LogWriter.open(log)
    done: list[bool] = []
    own.of_owner(CheckpointDue("time"))
    own.ping(1, 17, 1_000)
    own.of_replica(Pinged(ME, 2, 17), 2_000, done.append)
    own.started(3_000)
    await own.writer.flush()
    assert done == [True]
    assert [record.time for record in facts(log, Pinged)][-2:] == [1_000, 2_000]
    (due,) = facts(log, CheckpointDue)
    assert due.epoch == 1
    (started,) = facts(log, ReplicaStarted)
    assert (started.time, started.fact.replica, started.fact.version) == (3_000, ME, VERSION)
    assert started.fact.flags == PICK_FLAGS
    assert started.fact.label.endswith(f":{os.getpid()}")
    await own.writer.close()
    own.of_replica(Pinged(ME, 3, 17), 4_000, done.append)
    await asyncio.sleep(0)
    assert done == [True, False], "a writer that is closed loses what comes"
