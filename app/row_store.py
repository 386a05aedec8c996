"""Where the audit's rows go: a database, or a topic from which stream workers bring them there."""

from __future__ import annotations

from typing import Protocol

from app.audit_rows import AuditRows, SinkMark


class RowStore(Protocol):
    """Takes batches of rows in log order and remembers how far it has them.

    Every call may raise AuditRefused (in vain) and AuditAway (not now). name: as messages name it.
    """

    name: str

    async def prepare(self) -> None:
        """Make ready what rows are written to; before the mark is asked for, and again after trouble."""

    async def mark(self) -> SinkMark | None:
        """Up to where rows are written, None where none ever were."""

    async def write(self, rows: AuditRows) -> int:
        """Write rows and mark; how many rows and changes were new."""

    async def keep_up(self, rows: AuditRows) -> None:
        """What is due from time to time, after the rows were written. Raises nothing of its own."""

    async def close(self) -> None:
        """Let go of it."""
