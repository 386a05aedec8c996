"""The audit's database as the place where rows go: rows, retention, roll-ups.

The follower writes into it directly, unless stream workers do (`audit.sink: stream`).
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.engine import URL

from app.audit_database import upgrade, writing_engine
from app.audit_retention import Retention
from app.audit_rows import AuditRows, SinkMark
from app.audit_writer import SINK, AuditWriter
from app.rollup_writer import RollupWriter

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


class SqlRows:
    """A RowStore in a database. Raises AuditRefused for a driver that is not installed."""

    name = "the audit database"

    def __init__(self, settings: SinkSettings, log_id: bytes, sink: str = SINK) -> None:
        self._engine = writing_engine(settings.url)
        self._log_id = log_id
        self._retention = Retention(self._engine, settings.retention_us, settings.bytes_max)
        self._rollups: RollupWriter | None = None
        if settings.rollup_grace_us is not None:
            self._rollups = RollupWriter(self._engine, settings.rollup_grace_us)
        touch = None if self._rollups is None else self._rollups.touch
        self.writer = AuditWriter(self._engine, log_id, sink, touch=touch)

    async def prepare(self) -> None:
        """See RowStore."""
        await upgrade(self._engine)

    async def mark(self) -> SinkMark | None:
        """See RowStore."""
        return await self.writer.mark()

    async def write(self, rows: AuditRows) -> int:
        """See RowStore."""
        return await self.writer.write(rows)

    async def keep_up(self, rows: AuditRows) -> None:
        """See RowStore."""
        assert rows.last is not None
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
        await self._engine.dispose()
