"""Closed sets of outcomes that codecs and reducers report.

A reducer never logs and never counts: it returns notices, and `app.observe` turns them
into log lines and metric series. Label values come from these enums, so label sets are
closed by construction. Numbers are part of the log's format (a `FrameRefused` record
carries one): append, never renumber.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class FrameResult(IntEnum):
    """What became of one frame of a publisher; label of load_events_total{result}."""

    APPLIED = 1
    DUPLICATE = 2
    MALFORMED = 3
    UNKNOWN_VERSION = 4
    TOPIC_MISMATCH = 5
    OVERSIZED = 6
    IDENTITY_MISMATCH = 7
    OVER_CAPACITY = 8
    TRANSPORT_REFUSED = 9
    GAP = 10

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class DiscoveryKind(IntEnum):
    """What became of one discovery fact; label of discovery_events_total{kind}."""

    PUT = 1
    DELETE = 2
    RESYNC = 3
    RESTART = 4
    DUPLICATE = 5
    MALFORMED = 6
    OVERSIZED = 7
    OVER_CAPACITY = 8
    EXCLUDED = 9
    UNSUPPORTED = 10
    REFUSED = 11
    MISMATCH = 12

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class IntakeResult(IntEnum):
    """Why the fold took no effect from a record."""

    DUPLICATE_RECORD = 1  # (writer, sequence) was seen
    FOREIGN_OWNER = 2  # fact of another pair than the owner's
    UNKNOWN_KIND = 3
    REFUSED_BYTES = 4  # decode or validation said no
    CONDEMNED = 5
    OVER_CAPACITY = 6

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class DiscoveryNotice(NamedTuple):
    """One counted discovery outcome. All but `kind` is for the log line only.

    records: how many records claim `identity`, 0 where none conflict.
    """

    kind: DiscoveryKind
    namespace: str
    what: str  # a fixed phrase, e.g. "two records claim one identity"
    identity: str = ""
    keys: tuple[str, ...] = ()
    times: int = 1
    level: str = "warning"  # debug | info | warning
    records: int = 0


class SampleNotice(NamedTuple):
    """One counted outcome of a sample at the fold."""

    result: FrameResult
    namespace: str
    publisher_id: int
    times: int = 1


class WorkersDeparted(NamedTuple):
    """Workers that left the fleet at this record: samples and series of theirs go."""

    workers: tuple[tuple[str, int], ...]


class FleetPublished(NamedTuple):
    """The published fleet changed; `generation` is the new number."""

    generation: int


class MixedRoles(NamedTuple):
    """A model began to be served by aggregated workers beside a prefill/decode pool."""

    named: tuple[tuple[str, str, int, int, int], ...]  # namespace, model, prefill, decode, aggregated
    suppressed: int


class IntakeNotice(NamedTuple):
    """A record that had no effect."""

    result: IntakeResult
    offset: int
    detail: str = ""


class StatusNotice(NamedTuple):
    """A change in what operators look at (owner, settings, replicas), for the log line."""

    what: str
    detail: str = ""
    level: str = "info"


Notice = (
    DiscoveryNotice
    | SampleNotice
    | WorkersDeparted
    | FleetPublished
    | MixedRoles
    | IntakeNotice
    | StatusNotice
)
