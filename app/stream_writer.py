"""Writes audit messages into the database, whatever their order: each adds, none may undo another.

Several workers write at the same time, a worker that was believed dead may go on for a while, and what was
not acknowledged comes again. So nothing here depends on what came before:

* rows give way to rows that are there, by the log positions that are their keys;
* what changes rows that may come later (an end of a version, a replica that went, suspect picks, a gap) is
  kept in `stream_changes` and applied from both sides: when it comes, and when a row comes that it concerns;
* a worker's version ends at the first change behind its beginning, a replica is gone or not by the last
  change before its next start, and a dispatch reads `unknown` from the first time that its replica went,
  unless it has an end.

In PostgreSQL transactions take one lock, so none misses what another has not committed; SQLite has no
other kind. `stream_positions` says of each partition how far it was written: in the same transaction, so
that a message is written once, and one that was never delivered is noticed (`app.stream_worker`).

Sources: decision 48; field reports B-133, B-136.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, func, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.audit_database import AuditRefused, connected
from app.audit_messages import AuditMessage
from app.audit_writer import SINK, Insert, open_dispatches, suspect_picks
from app.rollup_writer import RollupWriter, one_writer
from app.sql_tables import (
    configs,
    dispatch_ends,
    pick_candidates,
    picks,
    replicas,
    sink_gaps,
    sink_marks,
    stream_changes,
    stream_positions,
    workers,
)
from projections.audit.rows import UNKNOWN_END, EndRow, PickRow, PicksSuspected
from projections.events.envelope import LANE

WORKER_ENDED, REPLICA_LEFT, REPLICA_HEARD, GAP = "worker_ended", "replica_left", "replica_heard", "gap"
PICKS_SUSPECTED = "picks_suspected"  # cause: the offset behind which, as decimal text; to_offset: up to which
_IDS_PER_STATEMENT = 500


class Stretch(NamedTuple):
    """Messages of one partition. next_position: the topic's offset behind the last that was read."""

    partition: int
    next_position: int
    messages: Sequence[AuditMessage]


class _Change(NamedTuple):
    """A row of `stream_changes`, in its order of columns."""

    change: str
    namespace: str
    subject: str
    at: int
    cause: str
    to_offset: int | None
    lane: int
    log_offset: int


class StreamWriter:
    """Writes what workers of one topic read. rollups: told of picks and ends; None for no roll-ups."""

    def __init__(self, engine: AsyncEngine, topic: str, rollups: RollupWriter | None = None) -> None:
        self._engine = engine
        self._topic = topic
        self._rollups = rollups
        dialect = engine.dialect
        self._conflict = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        self._insert = {
            table.name: Insert(table, dialect)
            for table in (picks, pick_candidates, dispatch_ends, configs, workers, replicas)
        }
        self._insert_changes = Insert(stream_changes, dialect)
        self._insert_gaps = Insert(sink_gaps, dialect)

    async def positions(self) -> dict[int, int]:
        """Of each partition the offset in the topic that is to be written next. Raises AuditAway."""
        query = select(stream_positions.c.partition, stream_positions.c.position).where(
            stream_positions.c.topic == self._topic
        )
        async with connected(self._engine) as connection:
            return {int(partition): int(position) for partition, position in await connection.execute(query)}

    async def write(self, stretch: Stretch) -> int:
        """Write a stretch and its position, in one transaction; how many rows it had.

        Raises AuditAway, then nothing was written; AuditRefused for messages of another log.
        """
        tables: dict[str, list[tuple[Any, ...]]] = {}
        for message in stretch.messages:
            for table, row in message.rows:
                tables.setdefault(table, []).append(row)
        async with connected(self._engine) as connection:
            await one_writer(connection)
            for log_id in {message.log_id for message in stretch.messages}:
                await self._check_log(connection, log_id.hex())
            for name, insert in self._insert.items():
                await insert(connection, tables.get(name, ()))
            await self._apply(connection, tables)
            if self._rollups is not None:
                new_picks = [PickRow(*row) for row in tables.get("picks", ())]
                ends = [EndRow(*row) for row in tables.get("dispatch_ends", ())]
                await self._rollups.touch(connection, new_picks, ends)
            await self._move(connection, stretch)
        return sum(map(len, tables.values()))

    async def skip(self, partition: int, first: int, stop: int) -> None:
        """Say that the topic has lost messages, and go on behind them. Raises AuditAway."""
        async with connected(self._engine) as connection:
            await one_writer(connection)
            row = (f"{SINK}-{partition}", LANE, first, stop - 1, "retention", time.time_ns() // 1000)
            await self._insert_gaps(connection, [row])
            await self._move(connection, Stretch(partition, stop, ()))

    # -- where it stands ---------------------------------------------------------------

    async def _check_log(self, connection: AsyncConnection, log_id: str) -> None:
        for column in (stream_positions.c.log_id, sink_marks.c.log_id):
            found = await connection.execute(select(column).where(column != log_id, column != "").limit(1))
            other = found.scalar()
            if other is not None:
                raise AuditRefused(
                    f"the audit database follows log {other}, a message is of log {log_id}: move that"
                    " database aside, or name another topic in log.kafka.audit_topic"
                )

    async def _move(self, connection: AsyncConnection, stretch: Stretch) -> None:
        log_id = next((message.log_id.hex() for message in stretch.messages), "")
        statement = self._conflict(stream_positions).values(
            topic=self._topic, partition=stretch.partition, position=stretch.next_position, log_id=log_id
        )
        given = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(stream_positions.primary_key.columns),
                set_={
                    "position": given.position,
                    "log_id": func.coalesce(func.nullif(given.log_id, ""), stream_positions.c.log_id),
                },
                where=given.position > stream_positions.c.position,
            )
        )
        marks = [message for message in stretch.messages if message.check is not None]
        if marks:
            newest = max(marks, key=lambda mark: mark.offset)
            await self._mark(connection, stretch.partition, newest)

    async def _mark(self, connection: AsyncConnection, partition: int, mark: AuditMessage) -> None:
        """Everything of this partition is written up to the mark's record."""
        statement = self._conflict(sink_marks).values(
            sink=f"{SINK}-{partition}",
            lane=LANE,
            log_offset=mark.offset,
            check_word=str(mark.check),
            written_at=time.time_ns() // 1000,
            log_id=mark.log_id.hex(),
        )
        given = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(sink_marks.primary_key.columns),
                set_={name: given[name] for name in ("log_offset", "check_word", "written_at")},
                where=given.log_offset > sink_marks.c.log_offset,
            )
        )

    # -- what changes other rows -------------------------------------------------------

    async def _apply(self, connection: AsyncConnection, tables: dict[str, list[tuple[Any, ...]]]) -> None:
        changes = _changes(tables)
        await self._insert_changes(connection, changes)
        now = time.time_ns() // 1000
        await self._insert_gaps(
            connection,
            [(SINK, lane, first, last, cause, now) for lane, first, last, _, cause in tables.get("gaps", ())],
        )
        for change in changes:
            if change.change in (WORKER_ENDED, GAP):
                await self._end_versions(connection, change)
        for row in tables.get("workers", ()):
            await self._end_of_version(connection, _named(workers, row))
        subjects = {change.subject for change in changes if change.change in (REPLICA_LEFT, REPLICA_HEARD)}
        subjects |= {str(_named(replicas, row)["replica_id"]) for row in tables.get("replicas", ())}
        for replica in sorted(subjects):
            await self._replica(connection, replica)
        await self._forget_unknown(connection, tables.get("dispatch_ends", ()))
        await self._unknown(connection, changes, tables.get("picks", ()))
        await self._suspect(connection, changes, tables.get("picks", ()))

    async def _end_versions(self, connection: AsyncConnection, change: _Change) -> None:
        """The versions that began before a change end with it, unless they ended earlier."""
        which = [workers.c.lane == LANE, workers.c.from_offset < change.log_offset]
        if change.change == WORKER_ENDED:
            which += [workers.c.namespace == change.namespace, workers.c.worker == change.subject]
        open_then = or_(workers.c.to_offset.is_(None), workers.c.to_offset > change.log_offset)
        end = {"to_offset": change.log_offset, "to_at": change.at, "end_cause": change.cause}
        await connection.execute(update(workers).where(*which, open_then).values(**end))

    async def _end_of_version(self, connection: AsyncConnection, row: dict[str, Any]) -> None:
        """A version that came late ends with the first change behind its beginning, if there is one."""
        of_worker = and_(
            stream_changes.c.change == WORKER_ENDED,
            stream_changes.c.namespace == row["namespace"],
            stream_changes.c.subject == row["worker"],
        )
        of_all = and_(stream_changes.c.change == GAP, stream_changes.c.subject == "")
        query = (
            select(stream_changes)
            .where(stream_changes.c.log_offset > row["from_offset"], or_(of_worker, of_all))
            .order_by(stream_changes.c.log_offset, stream_changes.c.change)
            .limit(1)
        )
        found = (await connection.execute(query)).first()
        if found is not None:
            change = _Change(*found)._replace(
                change=WORKER_ENDED, namespace=row["namespace"], subject=row["worker"]
            )
            await self._end_versions(connection, change)

    async def _replica(self, connection: AsyncConnection, replica: str) -> None:
        """Each start of a replica is gone or not by the last change before the next start."""
        starts = select(replicas.c.log_offset).where(
            replicas.c.replica_id == replica, replicas.c.lane == LANE
        )
        offsets = sorted(int(offset) for (offset,) in await connection.execute(starts))
        query = select(stream_changes).where(
            stream_changes.c.change.in_((REPLICA_LEFT, REPLICA_HEARD)), stream_changes.c.subject == replica
        )
        changes = [_Change(*row) for row in await connection.execute(query)]
        for number, offset in enumerate(offsets):
            until = offsets[number + 1] if number + 1 < len(offsets) else None
            of_start = [
                change
                for change in changes
                if change.log_offset > offset and (until is None or change.log_offset <= until)
            ]
            if not of_start:
                continue
            last = max(of_start, key=lambda change: change.log_offset)
            is_gone = last.change == REPLICA_LEFT
            await connection.execute(
                update(replicas)
                .where(
                    replicas.c.lane == LANE,
                    replicas.c.log_offset == offset,
                    replicas.c.changed_offset < last.log_offset,
                )
                .values(
                    gone_at=last.at if is_gone else None,
                    gone_offset=last.log_offset if is_gone else None,
                    changed_offset=last.log_offset,
                )
            )

    async def _suspect(
        self, connection: AsyncConnection, changes: Sequence[_Change], new_picks: Sequence[tuple[Any, ...]]
    ) -> None:
        """Picks that their replica named as suspect, whichever of both came first."""
        due = [change for change in changes if change.change == PICKS_SUSPECTED]
        of = sorted({str(_named(picks, row)["replica_id"]) for row in new_picks})
        if of:
            query = select(stream_changes).where(
                stream_changes.c.change == PICKS_SUSPECTED, stream_changes.c.subject.in_(of)
            )
            due += [_Change(*row) for row in await connection.execute(query)]
        for change in due:
            assert change.to_offset is not None
            named = PicksSuspected(change.subject, int(change.cause), change.to_offset, change.log_offset)
            await connection.execute(suspect_picks(named))

    # -- dispatches whose replica went -------------------------------------------------

    async def _forget_unknown(self, connection: AsyncConnection, ends: Sequence[tuple[Any, ...]]) -> None:
        ended = [row[0] for row in ends]
        for first in range(0, len(ended), _IDS_PER_STATEMENT):
            some = ended[first : first + _IDS_PER_STATEMENT]
            await connection.execute(
                delete(dispatch_ends).where(
                    dispatch_ends.c.status == literal(UNKNOWN_END, literal_execute=True),
                    dispatch_ends.c.pick_id.in_(some),
                )
            )

    async def _unknown(
        self, connection: AsyncConnection, changes: Sequence[_Change], new_picks: Sequence[tuple[Any, ...]]
    ) -> None:
        for change in changes:
            if change.change == REPLICA_LEFT:
                await self._unknown_ends(connection, change)
        replicas_of = {str(_named(picks, row)["replica_id"]) for row in new_picks}
        if not replicas_of:
            return
        offsets = [int(_named(picks, row)["log_offset"]) for row in new_picks]
        query = select(stream_changes).where(
            stream_changes.c.change == REPLICA_LEFT,
            stream_changes.c.subject.in_(sorted(replicas_of)),
            stream_changes.c.log_offset > min(offsets),
        )
        for row in (await connection.execute(query)).all():
            await self._unknown_ends(connection, _Change(*row), (min(offsets), max(offsets)))

    async def _unknown_ends(
        self, connection: AsyncConnection, gone: _Change, span: tuple[int, int] | None = None
    ) -> None:
        """Picks of a replica that went read `unknown` from the first time that it went, without an end."""
        ends = dispatch_ends.alias()
        is_ended = select(literal(1)).where(ends.c.pick_id == picks.c.pick_id, ends.c.status != UNKNOWN_END)
        open_picks = open_dispatches(gone.subject, gone.at, gone.log_offset).where(~is_ended.exists())
        if span is not None:
            open_picks = open_picks.where(picks.c.lane == LANE, picks.c.log_offset.between(*span))
        names = [column.name for column in dispatch_ends.columns]
        statement = self._conflict(dispatch_ends).from_select(names, open_picks)
        given = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(dispatch_ends.primary_key.columns),
                set_={"ended_at": given.ended_at},
                where=and_(dispatch_ends.c.status == UNKNOWN_END, given.ended_at < dispatch_ends.c.ended_at),
            )
        )


def _changes(tables: dict[str, list[tuple[Any, ...]]]) -> list[_Change]:
    found = [
        _Change(WORKER_ENDED, namespace, worker, to_at, cause, None, lane, to_offset)
        for namespace, worker, lane, to_offset, to_at, cause in tables.get("worker_ends", ())
    ]
    for replica, lane, offset, gone_at in tables.get("replica_changes", ()):
        change = REPLICA_HEARD if gone_at is None else REPLICA_LEFT
        found.append(_Change(change, "", replica, gone_at or 0, "", None, lane, offset))
    for replica, lane, after, upto, offset in tables.get("suspect_picks", ()):
        found.append(_Change(PICKS_SUSPECTED, "", replica, 0, str(after), upto, lane, offset))
    for lane, first, last, at, _ in tables.get("gaps", ()):
        found.append(_Change(GAP, "", "", at, GAP, last, lane, first))
    return found


def _named(table: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((column.name for column in table.columns), row, strict=True))
