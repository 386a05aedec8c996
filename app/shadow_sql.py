"""Rows of the shadow and the verifier in the audit's database, beside the picks."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.engine import URL

from app.audit_database import AuditError, connected, upgrade, writing_engine
from app.audit_writer import Insert
from app.shadow import Rows, SinkAway
from app.sql_tables import shadow_picks, verifications


class SqlSink:
    """A RowSink in a database. Rows give way to those that are there."""

    def __init__(self, url: URL) -> None:
        """Raises AuditRefused for a driver that is not installed."""
        self._engine = writing_engine(url)
        self._insert_shadow = Insert(shadow_picks, self._engine.dialect)
        self._insert_verifications = Insert(verifications, self._engine.dialect)
        self._is_prepared = False

    async def mark(self, shadow_config: str) -> int:
        """See RowSink. Raises SinkAway."""
        try:
            await self._prepare()
            async with connected(self._engine) as connection:
                newest = await connection.scalar(
                    select(func.max(shadow_picks.c.log_offset)).where(
                        shadow_picks.c.shadow_config == shadow_config
                    )
                )
        except AuditError as problem:
            raise SinkAway(str(problem)) from problem
        return -1 if newest is None else int(newest)

    async def write(self, rows: Rows) -> None:
        """See RowSink."""
        try:
            await self._prepare()
            async with connected(self._engine) as connection:
                await self._insert_shadow(connection, rows.shadow)
                await self._insert_verifications(connection, rows.verifications)
        except AuditError as problem:
            raise SinkAway(str(problem)) from problem

    async def close(self) -> None:
        """See RowSink."""
        await self._engine.dispose()

    async def _prepare(self) -> None:
        if not self._is_prepared:
            await upgrade(self._engine)
            self._is_prepared = True
