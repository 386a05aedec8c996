"""Words between a writer's step machine and its shell: what is appended, what became of it."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, NamedTuple

from projections.events.kinds import FACT_KINDS, Speaker

Fact = tuple[Any, ...]
_OWNER_FACTS = frozenset(row.fact for row in FACT_KINDS.values() if row.speaker is Speaker.OWNER)


class Importance(IntEnum):
    """Shedding order, first to last. From CONTROL on nothing is shed."""

    RAW = 1
    SAMPLE = 2
    KV = 3
    CONTROL = 4
    PICK = 5


class State(Enum):
    """What a writer may send; transitions stand in `appender`."""

    OPEN = "open"
    HELD = "held"
    UNCLEAR = "unclear"


class Status(IntEnum):
    """What became of a fact."""

    ACKNOWLEDGED = 1  # durable at `offset`
    SHED = 2  # dropped by its importance
    LOST = 3  # a pick that became a ledger line, or beyond PENDING_BYTES_MAX


class Receipt(NamedTuple):
    """The end of an append. offset: None unless acknowledged."""

    status: Status
    offset: int | None
    sequence: int


class Send(NamedTuple):
    """Commit these records as batch `number`. critical: the reserve may be used for it."""

    number: int
    records: list[bytes]
    critical: bool


class Settled(NamedTuple):
    """Tell whoever submitted with `tag`."""

    tag: Any
    receipt: Receipt


class FindOwn(NamedTuple):
    """Read the log to its end: which sequences of `writer` are in it, from `sequence` on, and where?"""

    writer: bytes
    sequence: int


class Reclaim(NamedTuple):
    """The owner goes on under a new writer id: win a claim for it."""

    previous_writer: bytes


Effect = Send | Settled | FindOwn | Reclaim


class Entry:
    """A fact on its way.

    given: the time that came with it, None to take the log time when it is encoded.
    data:  its bytes, None once it was dropped.
    """

    __slots__ = (
        "data",
        "fact",
        "given",
        "importance",
        "is_owned",
        "is_urgent",
        "sequence",
        "submitted_at",
        "tag",
    )

    def __init__(
        self,
        fact: Fact,
        importance: Importance,
        given: int | None,
        tag: Any,
        now_us: int,
        is_urgent: bool = False,
    ) -> None:
        self.fact = fact
        self.importance = importance
        self.given = given
        self.tag = tag
        self.submitted_at = now_us
        self.is_urgent = is_urgent
        self.is_owned = type(fact) in _OWNER_FACTS
        self.sequence = 0
        self.data: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes that it takes in the queue."""
        return len(self.data) if self.data is not None else 0

    def settled(self, status: Status, offset: int | None = None) -> list[Effect]:
        """The effect that tells its sender, if it asked to be told."""
        if self.tag is None:
            return []
        return [Settled(self.tag, Receipt(status, offset, self.sequence))]
