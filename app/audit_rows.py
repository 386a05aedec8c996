"""Rows of one stretch of the log, on their way to the database.

Bounded by the sink, which writes them before they are many. What is inserted stands in
lists by table; what changes rows that may stand in the database already is a list in log order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.audit.rows import (
    ConfigRow,
    EndRow,
    PickRow,
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


Change = ConfigRow | GapNoticed | ReplicaHeard | ReplicaLeft | ReplicaRow | WorkerBegan | WorkerEnded


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
