"""What the audit forgets: rows by age, and of a SQLite file the oldest where it is too large.

Rows are taken away from the old end, by offset, a bounded stretch each time, so that no
transaction holds the database for long. Time is log time: that of the newest pick is
now. Settings versions and roll-ups stay, and so do workers and replicas that are still there.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from sqlalchemy import Table, and_, delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.audit_database import AuditAway, connected
from app.sql_tables import (
    dispatch_ends,
    pick_candidates,
    picks,
    replicas,
    shadow_picks,
    sink_gaps,
    stream_changes,
    verifications,
    workers,
)
from projections.events.envelope import LANE

log = structlog.get_logger("picklog.audit")

EVERY_S = 60.0
STRETCH_PICKS = 2_000  # picks that one transaction takes away, with all that belongs to them
STRETCHES_MAX = 30  # in a row, before rows are written again
_BY_PICK: tuple[Table, ...] = (pick_candidates, dispatch_ends, shadow_picks, verifications, picks)


class Retention:
    """Takes rows away that are too old, or too many for the file's ceiling.

    age_us: log time that is kept, None for all. bytes_max: of a SQLite file, None for any.
    """

    def __init__(self, engine: AsyncEngine, age_us: int | None, bytes_max: int | None) -> None:
        self._engine = engine
        self._age_us = age_us
        self._bytes_max = bytes_max if engine.dialect.name == "sqlite" else None
        self._due_at = 0.0

    async def due(self, written: int) -> None:
        """Take away what is due, about once a minute. What fails is tried at the next time."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + EVERY_S
        try:
            for _ in range(STRETCHES_MAX):
                if not await self.take_away():
                    return
        except AuditAway as problem:
            log.warning("old rows could not be taken away", cause=str(problem))
        self._due_at = 0.0

    async def take_away(self) -> bool:
        """One stretch; whether there was anything to take."""
        async with connected(self._engine) as connection:
            horizon = await self._horizon(connection)
            if horizon is None:
                return False
            for table in _BY_PICK:
                await connection.execute(delete(table).where(*_upto(table, horizon)))
            await connection.execute(delete(workers).where(workers.c.to_offset <= horizon))
            await connection.execute(delete(replicas).where(replicas.c.gone_offset <= horizon))
            await connection.execute(delete(sink_gaps).where(sink_gaps.c.to_offset <= horizon))
            await connection.execute(delete(stream_changes).where(stream_changes.c.log_offset <= horizon))
            return True

    async def _horizon(self, connection: AsyncConnection) -> int | None:
        """Offset up to which rows go now, None where none has to."""
        oldest = select(picks.c.log_offset).order_by(picks.c.lane, picks.c.log_offset).limit(STRETCH_PICKS)
        if self._bytes_max is not None and await self._bytes(connection) > self._bytes_max:
            found = (await connection.execute(select(func.max(oldest.subquery().c.log_offset)))).scalar()
            if found is not None:
                return int(found)
        if self._age_us is None:
            return None
        newest = (await connection.execute(select(func.max(picks.c.asked_at)))).scalar()
        if newest is None:
            return None
        head = (
            select(picks.c.log_offset, picks.c.asked_at)
            .order_by(picks.c.lane, picks.c.log_offset)
            .limit(STRETCH_PICKS)
            .subquery()
        )
        old = select(func.max(head.c.log_offset)).where(head.c.asked_at < newest - self._age_us)
        found = (await connection.execute(old)).scalar()
        return None if found is None else int(found)

    async def _bytes(self, connection: AsyncConnection) -> int:
        """Bytes in use of a SQLite file; free pages are used again before it grows."""
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar() or 0
        free = (await connection.execute(text("PRAGMA freelist_count"))).scalar() or 0
        size = (await connection.execute(text("PRAGMA page_size"))).scalar() or 0
        return int((pages - free) * size)


def _upto(table: Table, horizon: int) -> tuple[Any, ...]:
    return (and_(table.c.lane == LANE, table.c.log_offset <= horizon),)
