"""Rows go by age and by size, from the old end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from app.audit_database import connected, upgrade, writing_engine
from app.audit_retention import STRETCH_PICKS, Retention
from app.audit_rows import AuditRows
from app.audit_writer import AuditWriter, Insert
from app.sql_tables import dispatch_ends, pick_candidates, picks, rollups, stream_changes, workers
from projections.audit.rollups import roll_up
from projections.audit.rows import WorkerBegan, WorkerEnded, WorkerVersion
from projections.audit.translation import end_row, pick_row
from projections.events.picks import DispatchEnded
from tests.app.audit_site import sqlite_url
from tests.projections.log_story import pick


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    yield engine
    await engine.dispose()


async def fill(engine: AsyncEngine, count: int) -> None:
    """Picks at offsets 0, 10, ..., a second apart, with candidates and ends; two workers, one ended."""
    rows = AuditRows()
    for number in range(count):
        offset = number * 10
        fact = pick(number, 1, number * 1_000_000)
        rows.picks.append(pick_row(offset, fact, None, None))
        plain = (fact.pick_id.hex(), 0, offset)
        for place in range(2):
            of_rank = ("ns", "1", 0, False, None, 0, None, None, 0, 0, None, "quiet", None, *(None,) * 4)
            rows.candidates.append((*plain, "decode", place, *of_rank))
        end = DispatchEnded(fact.pick_id, b"r" * 16, 1, 9, 1, 0, 200, "b", None, 5)
        rows.ends.append(end_row(offset + 1, end))
        rows.last = (offset + 1, 0)
    for name in ("1", "2"):
        version = WorkerVersion("ns", name, "decode", None, "c", "e", 0, 1, *(None,) * 5, 0)
        rows.changes.append((0, WorkerBegan(version, 0, 0)))
    rows.changes.append((15, WorkerEnded("ns", "1", 15, 15, "deleted")))
    await AuditWriter(engine, bytes(16)).write(rows)


async def count(engine: AsyncEngine, table: object) -> int:
    async with connected(engine) as connection:
        found = await connection.execute(select(func.count()).select_from(table))  # type: ignore[arg-type]
        return int(found.scalar_one())


async def test_rows_older_than_the_age_go_with_all_that_belongs_to_them(engine: AsyncEngine) -> None:
    await fill(engine, 10)
    retention = Retention(engine, 4_500_000, None)
    assert await retention.take_away()
    assert not await retention.take_away()
    assert await count(engine, picks) == 5
    assert await count(engine, pick_candidates) == 10
    assert await count(engine, dispatch_ends) == 6  # the end of the newest pick that went came after it
    assert await count(engine, workers) == 1


async def test_a_file_beyond_its_ceiling_loses_its_oldest_rows(engine: AsyncEngine) -> None:
    await fill(engine, STRETCH_PICKS + 100)
    retention = Retention(engine, None, 100_000)
    assert await retention.take_away()
    assert await count(engine, picks) == 100
    assert await Retention(engine, None, 1).take_away()
    assert await count(engine, picks) == 0
    assert not await Retention(engine, None, 1).take_away()


async def test_without_a_limit_nothing_goes(engine: AsyncEngine) -> None:
    await fill(engine, 3)
    assert not await Retention(engine, None, None).take_away()
    assert await count(engine, picks) == 3


async def test_it_is_done_in_time_and_by_itself(engine: AsyncEngine) -> None:
    retention = Retention(engine, 1_000_000, None)
    await fill(engine, 5)
    await retention.due(41)
    assert await count(engine, picks) == 2
    await fill(engine, 9)
    await retention.due(81)
    assert await count(engine, picks) > 2  # not due again for a minute


async def test_roll_ups_outlive_their_picks_and_changes_of_rows_do_not(engine: AsyncEngine) -> None:
    await fill(engine, 10)
    async with connected(engine) as connection:
        for offset in (4, 100_000):
            change = ("gap", "", "", 1, "gap", offset, 0, offset)
            await Insert(stream_changes, engine.dialect)(connection, [change])
        await Insert(rollups, engine.dialect)(connection, [tuple(roll_up(0, "tiny", []))])
    assert await Retention(engine, 4_500_000, None).take_away()
    assert (await count(engine, stream_changes), await count(engine, rollups)) == (1, 1)
