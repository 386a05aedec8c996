"""Writes rows of the audit: rows and mark in one transaction, twice is once.

The mark is read in that very transaction, so two writers cannot both write a record's rows,
and a batch that was committed without the answer arriving is not written again. Rows of
records up to the mark are left out; every insert also gives way to a row that is there, so
that a rebuild over an existing database changes nothing.

`unknown` ends are made and taken back in SQL, where the open dispatches are: at ReplicaGone
each pick of the replica without an end gets one, at the pick's offset; the real end deletes it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import Select, Table, Update, and_, delete, exists, func, literal, null, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.audit_database import AuditRefused, connected
from app.audit_rows import AuditRows, Change, GapNoticed, SinkMark
from app.sql_tables import (
    configs,
    dispatch_ends,
    pick_candidates,
    picks,
    replicas,
    sink_gaps,
    sink_marks,
    workers,
)
from projections.audit.rows import (
    UNKNOWN_END,
    ConfigRow,
    EndRow,
    PickRow,
    PicksSuspected,
    ReplicaHeard,
    ReplicaLeft,
    ReplicaRow,
    WorkerBegan,
    WorkerEnded,
)
from projections.bounds import SECOND_US
from projections.events.envelope import LANE

SINK = "audit"
OPEN_DISPATCH_US_MAX = 3_600 * SECOND_US  # an older pick of a replica that went is not looked at
_IDS_PER_STATEMENT = 500


class Insert:
    """`INSERT ... ON CONFLICT DO NOTHING` of whole rows, compiled once: rows are tuples in column order."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        kind = postgresql if dialect.name == "postgresql" else sqlite
        statement = kind.insert(table).on_conflict_do_nothing()
        compiled = statement.compile(dialect=dialect, column_keys=[column.name for column in table.columns])
        assert list(compiled.positiontup or ()) == [column.name for column in table.columns]
        self._sql = str(compiled)
        self._times: list[tuple[int, Callable[[Any], Any]]] = []
        for place, column in enumerate(table.columns):
            processor = column.type.dialect_impl(dialect).bind_processor(dialect)
            if processor is not None:
                self._times.append((place, processor))

    async def __call__(self, connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows; () is no statement at all."""
        if not rows:
            return
        if self._times:
            rows = [self._bound(row) for row in rows]
        await connection.exec_driver_sql(self._sql, [*rows])

    def _bound(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for place, processor in self._times:
            values[place] = processor(values[place])
        return tuple(values)


Touch = Callable[[AsyncConnection, Sequence[PickRow], Sequence[EndRow]], Awaitable[None]]
"""Told of picks and ends in the transaction that writes them."""


def open_dispatches(replica_id: str, at: int, offset: int) -> Select[Any]:
    """Rows of `dispatch_ends`, status `unknown`, for picks of a replica that was declared gone at `offset`.

    The caller leaves out those that have an end. at: log time, microseconds.
    """
    return select(
        picks.c.pick_id,
        literal(at, dispatch_ends.c.ended_at.type),
        literal(UNKNOWN_END),
        literal("none"),
        *(null() for _ in range(7)),
        picks.c.lane,
        picks.c.log_offset,
    ).where(
        picks.c.replica_id == replica_id,
        picks.c.asked_at >= at - OPEN_DISPATCH_US_MAX,
        picks.c.log_offset < offset,
        picks.c.decode_worker.is_not(None),
    )


def suspect_picks(suspected: PicksSuspected) -> Update:
    """Marks the rows of `picks` that a replica named later. Once or twice is the same."""
    return (
        update(picks)
        .where(
            picks.c.lane == LANE,
            picks.c.log_offset > suspected.after,  # a record stands behind its as-of
            picks.c.log_offset < suspected.offset,
            picks.c.replica_id == suspected.replica_id,
            picks.c.as_of > suspected.after,
            picks.c.as_of <= suspected.upto,
        )
        .values(suspect=True)
    )


class AuditWriter:
    """Writes for one sink into a database whose schema is the newest."""

    def __init__(
        self,
        engine: AsyncEngine,
        log_id: bytes,
        sink: str = SINK,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        touch: Touch | None = None,
    ) -> None:
        self._engine = engine
        self._log_id = log_id
        self._sink = sink
        self._now_us = now_us
        self._touch = touch
        dialect = engine.dialect
        self._insert_picks = Insert(picks, dialect)
        self._insert_candidates = Insert(pick_candidates, dialect)
        self._insert_ends = Insert(dispatch_ends, dialect)
        self._insert_workers = Insert(workers, dialect)
        self._insert_configs = Insert(configs, dialect)
        self._insert_replicas = Insert(replicas, dialect)
        self._insert_gaps = Insert(sink_gaps, dialect)

    async def mark(self) -> SinkMark | None:
        """Up to where this sink has written, None where it never did. Raises AuditAway."""
        async with connected(self._engine) as connection:
            return await self._mark(connection)

    async def write(self, rows: AuditRows) -> int:
        """Write rows and mark; how many rows and changes. Raises AuditAway, then nothing was written.

        Raises AuditRefused where the database has become another log's in the meantime.
        """
        if rows.last is None:
            return 0
        async with connected(self._engine) as connection:
            mark = await self._mark(connection, lock=True)
            if mark is not None:
                if mark.log_id != self._log_id:
                    raise AuditRefused("the database belongs to another log by now")
                if mark.offset >= rows.last[0]:
                    return 0
                rows = rows.after(mark.offset)
            await self._insert(connection, rows)
            if self._touch is not None:
                await self._touch(connection, rows.picks, rows.ends)
            for offset, change in rows.changes:
                await self._change(connection, offset, change)
            assert rows.last is not None
            await self._set_mark(connection, mark, *rows.last)
        return rows.count

    async def forget(self) -> None:
        """Forget the mark: what is read next is written from the log's beginning."""
        async with connected(self._engine) as connection:
            await connection.execute(
                delete(sink_marks).where(sink_marks.c.sink == self._sink, sink_marks.c.lane == LANE)
            )

    async def advance(self, offset: int, check: int) -> None:
        """Move the mark ahead, where it is not that far: everything up to there is written."""
        async with connected(self._engine) as connection:
            mark = await self._mark(connection, lock=True)
            if mark is None or mark.offset < offset:
                await self._set_mark(connection, mark, offset, check)

    async def _mark(self, connection: AsyncConnection, lock: bool = False) -> SinkMark | None:
        query = select(sink_marks.c.log_offset, sink_marks.c.check_word, sink_marks.c.log_id).where(
            sink_marks.c.sink == self._sink, sink_marks.c.lane == LANE
        )
        row = (await connection.execute(query.with_for_update() if lock else query)).first()
        if row is None:
            return None
        try:
            return SinkMark(int(row[0]), int(row[1]), bytes.fromhex(row[2]))
        except ValueError:
            raise AuditRefused("the mark in sink_marks is not one of ours: restore the row") from None

    async def _set_mark(
        self, connection: AsyncConnection, before: SinkMark | None, offset: int, check: int
    ) -> None:
        values = {"log_offset": offset, "check_word": str(check), "written_at": self._now_us()}
        if before is None:
            key = {"sink": self._sink, "lane": LANE, "log_id": self._log_id.hex()}
            await connection.execute(sink_marks.insert().values(**key, **values))
            return
        place = and_(sink_marks.c.sink == self._sink, sink_marks.c.lane == LANE)
        await connection.execute(update(sink_marks).where(place).values(**values))

    async def _insert(self, connection: AsyncConnection, rows: AuditRows) -> None:
        await self._insert_picks(connection, rows.picks)
        await self._insert_candidates(connection, rows.candidates)
        await self._insert_ends(connection, rows.ends)
        ended = [row.pick_id for row in rows.ends]
        for first in range(0, len(ended), _IDS_PER_STATEMENT):
            some = ended[first : first + _IDS_PER_STATEMENT]
            await connection.execute(
                delete(dispatch_ends).where(
                    dispatch_ends.c.status == literal(UNKNOWN_END, literal_execute=True),
                    dispatch_ends.c.pick_id.in_(some),
                )
            )

    async def _change(self, connection: AsyncConnection, offset: int, change: Change) -> None:
        if isinstance(change, WorkerBegan):
            row = (*change.version, LANE, change.offset, change.at, None, None, None)
            await self._insert_workers(connection, [row])
        elif isinstance(change, WorkerEnded):
            worker = and_(workers.c.namespace == change.namespace, workers.c.worker == change.worker)
            await self._end_workers(connection, change.offset, change.at, change.cause, worker)
        elif isinstance(change, ConfigRow):
            await self._insert_configs(connection, [change])
        elif isinstance(change, ReplicaRow):
            head, place = change[:-2], change[-2:]
            await self._insert_replicas(connection, [(*head, None, None, *place, offset)])
        elif isinstance(change, ReplicaLeft):
            await self._replica(connection, change.replica_id, offset, change.at, offset)
            await self._unknown_ends(connection, change)
        elif isinstance(change, PicksSuspected):
            await connection.execute(suspect_picks(change))
        elif isinstance(change, ReplicaHeard):
            await self._replica(connection, change.replica_id, offset, None, None)
        else:
            await self._gap(connection, change)

    async def _end_workers(
        self, connection: AsyncConnection, offset: int, at: int, cause: str, which: Any
    ) -> None:
        """End versions that began before the offset; those that ended already keep their end."""
        present = and_(workers.c.to_offset.is_(None), workers.c.from_offset < offset, workers.c.lane == LANE)
        end = {"to_offset": offset, "to_at": at, "end_cause": cause}
        await connection.execute(update(workers).where(present, which).values(**end))

    async def _replica(
        self, connection: AsyncConnection, replica_id: str, offset: int, at: int | None, gone: int | None
    ) -> None:
        """Say of the newest row of a replica whether it is gone; only ever forward in the log."""
        newest = (
            select(func.max(replicas.c.log_offset))
            .where(replicas.c.replica_id == replica_id, replicas.c.log_offset < offset)
            .scalar_subquery()
        )
        await connection.execute(
            update(replicas)
            .where(
                replicas.c.lane == LANE, replicas.c.log_offset == newest, replicas.c.changed_offset < offset
            )
            .values(gone_at=at, gone_offset=gone, changed_offset=offset)
        )

    async def _unknown_ends(self, connection: AsyncConnection, gone: ReplicaLeft) -> None:
        ended = exists(select(literal(1)).where(dispatch_ends.c.pick_id == picks.c.pick_id))
        open_picks = open_dispatches(gone.replica_id, gone.at, gone.offset).where(~ended)
        kind = postgresql if connection.dialect.name == "postgresql" else sqlite
        names = [column.name for column in dispatch_ends.columns]
        await connection.execute(
            kind.insert(dispatch_ends).from_select(names, open_picks).on_conflict_do_nothing()
        )

    async def _gap(self, connection: AsyncConnection, gap: GapNoticed) -> None:
        await self._end_workers(connection, gap.first, gap.at, "gap", literal(True))
        row = (self._sink, LANE, gap.first, gap.last, gap.cause, self._now_us())
        await self._insert_gaps(connection, [row])
