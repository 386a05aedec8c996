"""The audit's database as the place where rows go: rows, retention, roll-ups.

The follower writes into it directly, unless stream workers do (`audit.sink: stream`). Roll-ups may be told
elsewhere too, in a task of their own, since rows do not wait for whoever is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy.engine import URL

from app.audit_database import upgrade, writing_engine
from app.audit_retention import Retention
from app.audit_rows import AuditRows, SinkMark
from app.audit_writer import SINK, AuditWriter
from app.rollup_writer import RollupWriter, tell_on
from projections.audit.rollups import RollupRow

LAST_US = 1 << 62  # behind every log time


class SinkSettings(NamedTuple):
    """How a sink writes.

    url: of the database. retention_us: age of rows that are kept, None for ever.
    bytes_max: of a SQLite file, None without a ceiling. candidates: rows a phase; None for every candidate.
    rollup_grace_us: log time from a minute's end to its roll-up, None for no roll-ups.
    """

    url: URL
    retention_us: int | None
    bytes_max: int | None
    candidates: int | None
    rollup_grace_us: int | None = None


class Told(Protocol):
    """Whoever is told of roll-ups."""

    async def publish(self, rows: Sequence[RollupRow]) -> None:
        """Tell some; when it returns they are told for good. Raises AuditError."""

    async def close(self) -> None:
        """Nothing more is told."""


class SqlRows:
    """A RowStore in a database. told: of roll-ups. Raises AuditRefused for a driver that is not installed."""

    name = "the audit database"

    def __init__(
        self, settings: SinkSettings, log_id: bytes, sink: str = SINK, told: Told | None = None
    ) -> None:
        self._engine = writing_engine(settings.url)
        self._log_id = log_id
        self._retention = Retention(self._engine, settings.retention_us, settings.bytes_max)
        self._rollups: RollupWriter | None = None
        self._told = told
        self._teller: asyncio.Task[None] | None = None
        if settings.rollup_grace_us is not None:
            publish = None if told is None else told.publish
            self._rollups = RollupWriter(self._engine, settings.rollup_grace_us, publish, told is None)
        touch = None if self._rollups is None else self._rollups.touch
        self.writer = AuditWriter(self._engine, log_id, sink, touch=touch)

    async def prepare(self) -> None:
        """See RowStore."""
        await upgrade(self._engine)
        if self._told is not None and self._rollups is not None and self._teller is None:
            self._teller = asyncio.create_task(tell_on(self._rollups))

    async def mark(self) -> SinkMark | None:
        """See RowStore."""
        return await self.writer.mark()

    async def write(self, rows: AuditRows) -> int:
        """See RowStore."""
        return await self.writer.write(rows)

    async def keep_up(self, rows: AuditRows) -> None:
        """See RowStore."""
        assert rows.last is not None
        if self._teller is not None and self._teller.done():
            self._teller.result()  # raises what ended it
        await self._retention.due(rows.last[0])
        if self._rollups is not None:
            await self._rollups.due(rows.at)

    async def roll_up_all(self) -> None:
        """Roll up every window that has news, whatever the time. Raises AuditAway."""
        while self._rollups is not None and await self._rollups.roll_up(LAST_US):
            pass

    def of_follower(self) -> AuditWriter:
        """A writer for the same database under the follower's own mark."""
        return AuditWriter(self._engine, self._log_id)

    async def close(self) -> None:
        """See RowStore."""
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)
        if self._told is not None:
            await self._told.close()
        await self._engine.dispose()
