"""Roll-ups in the database: which windows have news, and their rows computed anew from the picks.

Whoever writes picks and ends marks their windows in the same transaction (`touch`), so no crash
forgets one. Once the minute and its grace are over in log time, a window is computed from all of its
rows, whatever was computed before, and the mark goes in that transaction. A row that comes later marks the
window again. A row of `rollups` only ever gives way to one that has seen as many picks and as much of the
log, so that picks taken away by retention leave it as it is.

With `publish` a window's mark stays, as `rolled`, until what was computed was told; after a crash it is
told again. It may be computed anew while it is told: then the mark stays for the newer row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog
from sqlalchemy import and_, delete, exists, select, text, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.audit_database import AuditAway, AuditError, connected
from app.sql_tables import dispatch_ends, picks, rollup_windows, rollups
from projections.audit.rollups import MINUTE_US, RolledPick, RollupRow, Window, minute_of
from projections.audit.rows import UNKNOWN_END, EndRow, PickRow
from projections.events.envelope import LANE

log = structlog.get_logger("picklog.audit")

EVERY_S = 1.0
PAUSE_S_MAX = 30.0
MINUTES_PER_TRANSACTION = 4
PUBLISHED_AT_ONCE = 200
ROWS_AT_ONCE = 2_000
_IDS_PER_STATEMENT = 500
_NEWEST = ("minute", "model", "picks", "ended", "to_offset")  # what a row computed anew differs in
WRITER_LOCK = 7_240_511_936_001_002  # an advisory lock of PostgreSQL: one writer of streams and roll-ups

Publish = Callable[[Sequence[RollupRow]], Awaitable[None]]


async def one_writer(connection: AsyncConnection) -> None:
    """Let this transaction be the only one of stream workers and roll-ups; SQLite has no other kind."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})"))


async def tell_on(rollups: RollupWriter) -> None:
    """Tell what was rolled up and not told yet, every second, until cancelled.

    What fails is said when its cause is a new one, and tried again ever more seldom.
    """
    pause, cause = EVERY_S, ""
    while True:
        try:
            await rollups.tell()
            if cause:
                log.info("roll-ups are told again")
            pause, cause = EVERY_S, ""
        except AuditError as problem:
            if str(problem) != cause:
                cause = str(problem)
                log.warning("roll-ups wait in the database to be told", cause=cause)
            pause = min(PAUSE_S_MAX, pause * 2)
        await asyncio.sleep(pause)


class RollupWriter:
    """grace_us: log time from a minute's end to its roll-up. publish: told of rows; again after a crash.

    tells_when_due: `due` tells too; otherwise somebody calls `tell` meanwhile.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        grace_us: int,
        publish: Publish | None = None,
        tells_when_due: bool = True,
    ) -> None:
        self._engine = engine
        self._grace_us = grace_us
        self._publish = publish
        self._tells_when_due = tells_when_due
        self._due_at = 0.0
        self._insert = postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert

    async def touch(
        self, connection: AsyncConnection, new_picks: Sequence[PickRow], ends: Sequence[EndRow]
    ) -> None:
        """Mark the windows of rows that this transaction has written."""
        windows = {(minute_of(pick.asked_at), pick.model) for pick in new_picks}
        ended = [end.pick_id for end in ends]
        for first in range(0, len(ended), _IDS_PER_STATEMENT):
            some = ended[first : first + _IDS_PER_STATEMENT]
            query = select(picks.c.asked_at, picks.c.model).where(picks.c.pick_id.in_(some))
            found = await connection.execute(query)
            windows |= {(minute_of(asked_at), model) for asked_at, model in found}
        if not windows:
            return
        rows = [
            {"minute": minute, "model": model, "rolled": False, "lane": LANE}
            for minute, model in sorted(windows)
        ]
        statement = self._insert(rollup_windows)
        again = statement.on_conflict_do_update(
            index_elements=list(rollup_windows.primary_key.columns), set_={"rolled": False}
        )
        await connection.execute(again, rows)

    async def due(self, at_us: int) -> None:
        """Roll up what is over, about once a second. at_us: log time. What fails is tried again next time."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + EVERY_S
        try:
            while await self.roll_up(at_us):
                pass
            if self._tells_when_due:
                await self.tell()
        except AuditAway as problem:
            log.warning("minutes could not be rolled up", cause=str(problem))

    async def roll_up(self, at_us: int) -> bool:
        """Compute the oldest windows with news that are over; whether there were any. Raises AuditAway."""
        async with connected(self._engine) as connection:
            await one_writer(connection)
            over = (
                select(rollup_windows.c.minute)
                .where(
                    rollup_windows.c.lane == LANE,
                    rollup_windows.c.rolled.is_(False),
                    rollup_windows.c.minute <= at_us - MINUTE_US - self._grace_us,
                )
                .group_by(rollup_windows.c.minute)
                .order_by(rollup_windows.c.minute)
                .limit(MINUTES_PER_TRANSACTION)
            )
            minutes = [minute for (minute,) in await connection.execute(over)]
            for minute in minutes:
                await self._minute(connection, minute)
        return bool(minutes)

    async def tell(self) -> None:
        """Publish what was computed and not told yet. Raises AuditAway, and what `publish` raises."""
        if self._publish is None:
            return
        of_window = and_(
            rollups.c.lane == rollup_windows.c.lane,
            rollups.c.minute == rollup_windows.c.minute,
            rollups.c.model == rollup_windows.c.model,
        )
        while True:
            query = (
                select(rollups)
                .join(rollup_windows, of_window)
                .where(rollup_windows.c.rolled.is_(True))
                .order_by(rollups.c.minute, rollups.c.model)
                .limit(PUBLISHED_AT_ONCE)
            )
            async with connected(self._engine) as connection:
                rows = [RollupRow(*row) for row in await connection.execute(query)]
            if not rows:
                return
            await self._publish(rows)
            told = tuple_(*(rollups.c[name] for name in _NEWEST)).in_(
                [tuple(getattr(row, name) for name in _NEWEST) for row in rows]
            )
            still_newest = exists().where(of_window, told)
            async with connected(self._engine) as connection:
                await connection.execute(
                    delete(rollup_windows).where(rollup_windows.c.rolled.is_(True), still_newest)
                )

    async def _minute(self, connection: AsyncConnection, minute: int) -> None:
        marked = and_(
            rollup_windows.c.lane == LANE,
            rollup_windows.c.minute == minute,
            rollup_windows.c.rolled.is_(False),
        )
        models = [
            model for (model,) in await connection.execute(select(rollup_windows.c.model).where(marked))
        ]
        windows = await self._windows(connection, minute, models)
        rows = [window.row()._asdict() for window in windows.values()]
        if rows:
            statement = self._insert(rollups)
            given = statement.excluded
            await connection.execute(
                statement.on_conflict_do_update(
                    index_elements=list(rollups.primary_key.columns),
                    set_={column.name: given[column.name] for column in rollups.columns},
                    where=and_(given.picks >= rollups.c.picks, given.to_offset >= rollups.c.to_offset),
                ),
                rows,
            )
        if self._publish is None:
            await connection.execute(delete(rollup_windows).where(marked))
            return
        gone = [model for model in models if model not in windows]
        await connection.execute(delete(rollup_windows).where(marked, rollup_windows.c.model.in_(gone)))
        await connection.execute(update(rollup_windows).where(marked).values(rolled=True))

    async def _windows(
        self, connection: AsyncConnection, minute: int, models: Sequence[str]
    ) -> dict[str, Window]:
        """The windows of a minute, by model; none for a model whose picks are gone."""
        wanted, windows = frozenset(models), dict[str, Window]()
        query = (
            select(
                picks.c.model,
                picks.c.log_offset,
                picks.c.decode_reason,
                picks.c.prefill_worker.is_not(None),
                picks.c.estimated_tokens,
                picks.c.overlap_blocks,
                picks.c.block_size,
                dispatch_ends.c.log_offset,
                dispatch_ends.c.status,
                dispatch_ends.c.first_byte_us,
                dispatch_ends.c.prompt_tokens,
                dispatch_ends.c.completion_tokens,
                dispatch_ends.c.cached_tokens,
            )
            .outerjoin(
                dispatch_ends,
                and_(dispatch_ends.c.pick_id == picks.c.pick_id, dispatch_ends.c.status != UNKNOWN_END),
            )
            .where(
                picks.c.lane == LANE,
                picks.c.asked_at >= minute,
                picks.c.asked_at < minute + MINUTE_US,
            )
        )
        result = await connection.stream(query.execution_options(yield_per=ROWS_AT_ONCE))
        async for model, *values in result:
            if model in wanted:
                window = windows.setdefault(model, Window(minute, model))
                window.add(RolledPick(*values))
        return windows
