"""Rows and mark are one transaction: two writers write everything once, a failure writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from app.audit_database import AuditAway, AuditRefused, connected, upgrade, writing_engine
from app.audit_rows import AuditRows, SinkMark
from app.audit_writer import AuditWriter
from projections.audit.rows import PicksSuspected
from projections.audit.translation import candidate_rows, pick_row
from tests.app.audit_site import sqlite_url
from tests.projections.log_story import pick

LOG = b"L" * 16


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    yield engine
    await engine.dispose()


def rows_of(*offsets: int) -> AuditRows:
    rows = AuditRows()
    for offset in offsets:
        fact = pick(offset, 1, offset)
        rows.picks.append(pick_row(offset, fact, None, None))
        rows.candidates += candidate_rows(offset, fact, "decode", fact.outcome.decode, [], None)
        rows.last = (offset, 1000 + offset)
    return rows


async def offsets(engine: AsyncEngine) -> list[int]:
    async with connected(engine) as connection:
        return [row[0] for row in await connection.execute(text("SELECT log_offset FROM picks ORDER BY 1"))]


async def test_the_mark_moves_with_the_rows(engine: AsyncEngine) -> None:
    writer = AuditWriter(engine, LOG)
    assert await writer.mark() is None
    assert await writer.write(AuditRows()) == 0
    assert await writer.write(rows_of(3, 4)) == 2
    assert await writer.mark() == SinkMark(4, 1004, LOG)


async def test_of_two_writers_each_writes_what_the_other_has_not(engine: AsyncEngine) -> None:
    one, other = AuditWriter(engine, LOG), AuditWriter(engine, LOG)
    await one.write(rows_of(3, 4))
    assert await other.write(rows_of(3)) == 0
    assert await other.write(rows_of(3, 4, 5)) == 1
    assert await offsets(engine) == [3, 4, 5]


async def test_sinks_have_marks_of_their_own(engine: AsyncEngine) -> None:
    audit, backfill = AuditWriter(engine, LOG), AuditWriter(engine, LOG, "backfill")
    await audit.write(rows_of(9))
    await backfill.write(rows_of(3, 9))
    assert await offsets(engine) == [3, 9]
    await backfill.forget()
    assert await backfill.mark() is None
    assert await audit.mark() == SinkMark(9, 1009, LOG)


async def test_a_mark_is_only_ever_advanced(engine: AsyncEngine) -> None:
    writer = AuditWriter(engine, LOG)
    await writer.advance(7, 70)
    await writer.advance(5, 50)
    assert await writer.mark() == SinkMark(7, 70, LOG)


async def test_a_database_that_became_another_logs_is_refused(engine: AsyncEngine) -> None:
    await AuditWriter(engine, b"M" * 16).write(rows_of(3))
    with pytest.raises(AuditRefused, match="another log"):
        await AuditWriter(engine, LOG).write(rows_of(9))
    assert await offsets(engine) == [3]


async def test_a_write_that_fails_leaves_neither_rows_nor_mark(engine: AsyncEngine) -> None:
    writer = AuditWriter(engine, LOG)
    await writer.write(rows_of(3))
    async with connected(engine) as connection:
        trigger = (
            "CREATE TRIGGER full BEFORE UPDATE ON sink_marks BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        )
        await connection.execute(text(trigger))
    with pytest.raises(AuditAway, match="disk is full"):
        await writer.write(rows_of(4))
    assert await offsets(engine) == [3]
    assert await writer.mark() == SinkMark(3, 1003, LOG)


async def test_a_mark_that_somebody_edited_is_refused(engine: AsyncEngine) -> None:
    writer = AuditWriter(engine, LOG)
    await writer.write(rows_of(3))
    async with connected(engine) as connection:
        await connection.execute(text("UPDATE sink_marks SET check_word = 'none'"))
    with pytest.raises(AuditRefused, match="not one of ours"):
        await writer.mark()


async def test_picks_that_were_named_later_read_suspect_whoever_writes_them_again(
    engine: AsyncEngine,
) -> None:
    """In (after, upto] by as-of, before the record that names them, and of that replica alone."""
    writer = AuditWriter(engine, LOG)
    rows = rows_of(3, 4, 5, 6, 9)
    rows.picks = [row._replace(as_of=row.log_offset - 1) for row in rows.picks]
    rows.picks[2] = rows.picks[2]._replace(replica_id="other")
    rows.picks[4] = rows.picks[4]._replace(as_of=5)  # behind the record
    rows.changes.append((8, PicksSuspected(rows.picks[0].replica_id, 2, 5, 8)))
    for _ in range(2):
        await writer.write(rows)
        async with connected(engine) as connection:
            found = await connection.execute(text("SELECT log_offset FROM picks WHERE suspect ORDER BY 1"))
            assert [offset for (offset,) in found] == [4, 6]
        await writer.forget()
