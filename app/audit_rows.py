"""Rows of one stretch of the log, on their way to the database, and what a place is that they go to.

Bounded by the sink, which writes them before they are many. What is inserted stands in
lists by table; what changes rows that may stand in the database already is a list in log order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from projections.audit.rows import (
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


class GapNoticed(NamedTuple):
    """Records from `first` to `last` could not be read: versions in force end there."""

    first: int
    last: int
    at: int
    cause: str


Change = (
    ConfigRow
    | GapNoticed
    | PicksSuspected
    | ReplicaHeard
    | ReplicaLeft
    | ReplicaRow
    | WorkerBegan
    | WorkerEnded
)


class SinkMark(NamedTuple):
    """Up to where rows are written: offset and check word of the newest record, and the log's id."""

    offset: int
    check: int
    log_id: bytes


class AuditRows:
    """Rows of the records in `first`..`last`. count: rows and changes held. at: newest log time, or 0."""

    def __init__(self) -> None:
        self.picks: list[PickRow] = []
        self.candidates: list[tuple[Any, ...]] = []
        self.ends: list[EndRow] = []
        self.changes: list[tuple[int, Change]] = []  # (offset, what)
        self.last: tuple[int, int] | None = None  # offset and check word of the newest record
        self.at = 0

    @property
    def count(self) -> int:
        """How much there is to write; 0 also where the mark alone has moved."""
        return len(self.picks) + len(self.candidates) + len(self.ends) + len(self.changes)

    def after(self, offset: int) -> AuditRows:
        """Only what records beyond `offset` say."""
        rest = AuditRows()
        rest.picks = [row for row in self.picks if row.log_offset > offset]
        rest.candidates = [row for row in self.candidates if row[2] > offset]
        rest.ends = [row for row in self.ends if row.log_offset > offset]
        rest.changes = [change for change in self.changes if change[0] > offset]
        rest.last = self.last
        rest.at = self.at
        return rest


class RowStore(Protocol):
    """A database, or a topic from which stream workers bring rows there; it remembers how far it has them.

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
