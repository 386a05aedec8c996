"""The sink on SQLite: the whole suite, and what becomes of marks, gaps and databases that are away."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from sqlalchemy import text
from sqlalchemy.engine import URL
from structlog.testing import capture_logs

from app.audit_database import AuditAway, connected, writing_engine
from app.audit_figures import Failure
from app.audit_rows import AuditRows, RowStore
from app.audit_sink import AuditSink, MarkMismatch
from app.checkpoint_store import CheckpointFolder
from app.sql_rows import SqlRows
from projections.checkpoint import checkpoint_records
from projections.events.codec import encode_record
from projections.events.control import Pinged, RecordCondemned
from projections.events.ports import LogReader, MemoryLog
from projections.fold import Fold
from replay.engine import records_of
from tests.app.audit_site import eventful, rows, sink_settings, sqlite_url, write
from tests.audit_suite import CUTS, SEEDS, AuditSuite
from tests.replay.recorded_log import RecordedLog


class TestOnSqlite(AuditSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder = tmp_path_factory.mktemp("audit")
        self.numbers = itertools.count()

    def fresh_url(self) -> URL:
        return sqlite_url(self.folder, f"{next(self.numbers)}.sqlite")

    @settings(max_examples=12)
    @given(seed=SEEDS, cuts=CUTS)
    async def test_any_split_into_transactions_writes_the_same_rows(self, seed: int, cuts: set[int]) -> None:
        await self.expect_same_rows(seed, cuts)


class Reached:
    """Told of offsets that are written; waits for one."""

    def __init__(self) -> None:
        self.offset = -1
        self._told = asyncio.Event()

    def __call__(self, offset: int) -> None:
        self.offset = offset
        self._told.set()

    async def wait_for(self, offset: int) -> None:
        async with asyncio.timeout(60):
            while self.offset < offset:
                self._told.clear()
                await self._told.wait()


class Away(SqlRows):
    """A database that is away for the first attempts."""

    def __init__(self, url: URL, log_id: bytes, failures: int) -> None:
        super().__init__(sink_settings(url), log_id)
        self.failures = failures

    async def write(self, rows: AuditRows) -> int:
        if self.failures:
            self.failures -= 1
            raise AuditAway("database is locked")
        return await super().write(rows)


def patient_sink(reader: LogReader, url: URL, reached: Reached, store: RowStore | None = None) -> AuditSink:
    settings = sink_settings(url)
    return AuditSink(reader, None, settings, on_written=reached, pause_s_min=0.001, store=store)


async def followed(sink: AuditSink, until: int, reached: Reached) -> None:
    following = asyncio.create_task(sink.run())
    await reached.wait_for(until)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await sink.close()


async def failed(sink: AuditSink, times: int) -> None:
    """Return when so many attempts have failed."""
    async with asyncio.timeout(60):
        while sink.figures.failures[Failure.AWAY] < times:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.001)


@pytest.mark.req("EVS-09")
@pytest.mark.field("B-133", "B-135")
async def test_a_database_that_is_away_costs_no_row(tmp_path: Path) -> None:
    """B-133, B-135: rows wait in the log, one batch is tried again until it is written."""
    world, reached = eventful(), Reached()
    url = sqlite_url(tmp_path)
    sink = patient_sink(world.log, url, reached, Away(url, world.log.log_id, failures=4))
    with capture_logs() as lines:
        await followed(sink, world.log.end_offset() - 1, reached)
    assert sink.figures.failures == {Failure.AWAY: 4, Failure.REFUSED: 0, Failure.LOG: 0}
    told = [line["event"] for line in lines if line["event"].startswith("the audit database")]
    assert told == ["the audit database is away, rows wait in the log", "the audit database is back"]
    straight = sqlite_url(tmp_path, "straight.sqlite")
    await write(world.log, straight)
    assert await rows(url) == await rows(straight)


@pytest.mark.field("B-133")
async def test_while_the_database_is_away_what_is_in_memory_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audit_sink.ROWS_MAX", 4)
    monkeypatch.setattr("app.audit_sink.READ_BYTES", 200)
    world = eventful()
    url = sqlite_url(tmp_path)
    sink = patient_sink(world.log, url, Reached(), Away(url, world.log.log_id, failures=1_000_000))
    following = asyncio.create_task(sink.run())
    await failed(sink, 9)
    assert sink._position < world.log.end_offset() // 2, "the rest waits in the log"
    assert len(sink._ahead) <= 2
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await sink.close()


@pytest.mark.field("B-135")
async def test_a_database_that_comes_later_gets_everything(tmp_path: Path) -> None:
    world, reached = eventful(), Reached()
    folder = tmp_path / "not yet"
    url = sqlite_url(folder)
    sink = patient_sink(world.log, url, reached)
    following = asyncio.create_task(followed(sink, world.log.end_offset() - 1, reached))
    await failed(sink, 2)
    folder.mkdir()
    await following
    assert len((await rows(url))["picks"]) == 8


async def test_a_lock_that_another_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.audit_database.LOCKED_S_MAX", 0.01)
    world, reached = eventful(), Reached()
    url = sqlite_url(tmp_path)
    await write(world.log, url, 5)
    other = sqlite3.connect(str(url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    sink = patient_sink(world.log, url, reached)
    following = asyncio.create_task(followed(sink, world.log.end_offset() - 1, reached))
    await failed(sink, 2)
    other.execute("ROLLBACK")
    other.close()
    await following
    assert len((await rows(url))["picks"]) == 8


async def test_rows_come_within_a_second_of_their_records(tmp_path: Path) -> None:
    world, reached = eventful(), Reached()
    url = sqlite_url(tmp_path)
    sink = patient_sink(world.log, url, reached)
    following = asyncio.create_task(sink.run())
    for _ in range(2):
        replica = world.replica()
        replica.ask("one more")
        newest = world.log.end_offset() - 1
        began = time.monotonic()
        await reached.wait_for(newest)
        assert time.monotonic() - began < 10  # a second on a machine that has nothing else to do
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await sink.close()
    assert [row["request_id"] for row in (await rows(url))["picks"]].count("one more") == 2


@pytest.mark.parametrize("change", ["another log", "a shorter log", "another record"])
async def test_a_mark_that_is_no_place_of_this_log_is_refused(change: str, tmp_path: Path) -> None:
    world = eventful()
    url = sqlite_url(tmp_path)
    await write(world.log, url)
    end = world.log.end_offset()
    changed = MemoryLog(b"other log id 123" if change == "another log" else world.log.log_id)
    for batch in world.log.read(0, 1 << 30):
        changed.commit(batch.records)
    if change != "another log":
        changed = MemoryLog(world.log.log_id)
        kept = [data for batch in world.log.read(0, 1 << 30) for data in batch.records][: end - 1]
        changed.commit(kept)
    if change == "another record":
        changed.commit([encode_record(1, b"w" * 16, 0, 1, Pinged(bytes(16), 1, -1))])
    told = {
        "another log": "follows log",
        "a shorter log": f"is at offset {end - 1}, the log ends at {end - 2}",
        "another record": f"record at offset {end - 1} is not the one",
    }
    before = await rows(url)
    with pytest.raises(MarkMismatch, match=told[change]):
        await write(changed, url, end)
    assert await rows(url) == before


@pytest.mark.field("B-133")
async def test_records_that_were_gone_before_they_were_written_are_a_gap(tmp_path: Path) -> None:
    world = eventful()
    url = sqlite_url(tmp_path)
    await write(world.log, url, 9)
    store = CheckpointFolder(tmp_path / "checkpoints")
    fold = Fold()
    for offset, data in records_of(world.log, 0, 20):
        fold.apply(offset, data, [])
    mark = fold.mark
    store.write(
        world.log.log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, world.log.log_id)
    )
    world.log.forget(20)
    await write(world.log, url, checkpoints=store)
    found = await rows(url)
    assert [(row["from_offset"], row["to_offset"], row["cause"]) for row in found["sink_gaps"]] == [
        (9, 19, "retention")
    ]
    ended = {row["worker"] for row in found["workers"] if row["end_cause"] == "gap"}
    began = {row["worker"] for row in found["workers"] if row["from_offset"] == 19}
    assert ended == {"1", "2", "3"}
    assert began == {str(key.instance_id) for key in fold.state.registry.fleet.workers}
    assert all(row["log_offset"] >= 20 for row in found["picks"])


async def test_a_record_that_the_log_condemns_is_skipped(tmp_path: Path) -> None:
    """The fold says that it took a record which everybody skips; the audit folds anew without it."""
    world, reached = RecordedLog(), Reached()
    replica = world.replica()
    replica.ask("taken by nobody")
    offset = world.log.end_offset() - 1
    world.say(RecordCondemned(offset, "poison"))
    replica = world.replica(frozenset({offset}))
    replica.ask("after")
    url = sqlite_url(tmp_path)
    sink = patient_sink(world.log, url, reached)
    await followed(sink, world.log.end_offset() - 1, reached)
    assert [row["request_id"] for row in (await rows(url))["picks"]][-1] == "after"


async def test_a_rebuild_fills_what_is_missing_and_lets_the_follower_go_on(tmp_path: Path) -> None:
    world = eventful()
    url, straight = sqlite_url(tmp_path), sqlite_url(tmp_path, "straight.sqlite")
    await write(world.log, straight)
    await write(world.log, url, 30)
    engine = writing_engine(url)
    async with connected(engine) as connection:
        await connection.execute(text("DELETE FROM picks"))
        await connection.execute(text("DELETE FROM workers"))
    await engine.dispose()
    sink = AuditSink(world.log, None, sink_settings(url), sink="backfill", patient=False)
    await sink.rebuild(world.log.end_offset())
    await sink.close()
    assert await rows(url) == await rows(straight)
    assert (await write(world.log, url)).rows == 0
