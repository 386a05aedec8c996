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
    UNSUPPORTED = 11  # of block events alone

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


class KvEventResult(IntEnum):
    """What became of one kv-event, or of a frame of them; label of kv_events_total{result}.

    Each event that a publisher may speak of has one result; GAP and AGED are counted besides.
    """

    APPLIED = 1
    REPLAY = 2  # its id is not above the cursor
    GAP = 3  # its id jumps: what the publisher told of the rank is cleared, then it is taken
    ORPHAN = 4  # the rank does not hold the parent
    OVER_CAPACITY = 5
    IDENTITY_MISMATCH = 6  # no live worker declares the rank
    OTHER_TIER = 7  # a tier that is not indexed
    MALFORMED = 8
    SELF_PARENT = 9  # a block that names itself as its parent
    UNKNOWN_REMOVED = 10  # a removal of which the rank holds nothing
    AGED = 11  # a publisher was not heard for 60 s: what it told is cleared
    DISPLACED = 12  # a newer publisher speaks for the rank
    UNKNOWN_VERSION = 13
    TOPIC_MISMATCH = 14
    OVERSIZED = 15
    TRANSPORT_REFUSED = 16
    UNSUPPORTED = 17  # an engine's blocks that are not indexed: other attention, size, pairs of tokens

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class ClearCause(IntEnum):
    """Why all blocks that were known of a rank are not known any more."""

    ENGINE = 1  # it said so
    GAP = 2
    NEW_PUBLISHER = 3
    BINDING = 4  # its publisher speaks for another rank from here on
    AGED = 5
    ENDED = 6  # its subscription ended for good
    DEPARTED = 7
    SWITCHED_OFF = 8

    @property
    def label(self) -> str:
        """Spelling in documents."""
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


class KvNotice(NamedTuple):
    """Counted outcomes of kv-events at the fold."""

    result: KvEventResult
    namespace: str
    publisher_id: int
    times: int = 1


class RankCleared(NamedTuple):
    """Blocks known of a rank are not known any more. blocks: how many, of all its tiers."""

    cause: ClearCause
    namespace: str
    instance_id: int
    dp_rank: int
    blocks: int


class BlocksOrphaned(NamedTuple):
    """Blocks were stored on the device of a rank under a parent that it is not known to hold.

    Told once for events in a row, beside the KvNotice that counts them.
    """

    namespace: str
    instance_id: int
    dp_rank: int


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
    | KvNotice
    | RankCleared
    | BlocksOrphaned
    | WorkersDeparted
    | FleetPublished
    | MixedRoles
    | IntakeNotice
    | StatusNotice
)
