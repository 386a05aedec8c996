"""Facts of load and kv-event publishers.

Continuity is judged on the wire by ingest and written here: `covers_from..sequence` of
a sample runs over frames that were coalesced into it, refused though numbered, or
skipped; so the fold sees a gap only where `covers_from` lies beyond the last sequence
that it knows of this connection (decision 17).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple


class Family(IntEnum):
    """Which subscriptions a fact speaks of."""

    LOAD = 1
    KV = 2

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class SubscriptionState(IntEnum):
    """Where a subscription stands."""

    PENDING = 1
    CONNECTING = 2
    CONNECTED = 3
    BACKOFF = 4
    ENDED = 5

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class Transport(IntEnum):
    """What carries a subscription."""

    DIRECT = 1
    BROKER = 2

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class SampleReceived(NamedTuple):
    """One ActiveLoad report of one rank, the newest of `covers_from..sequence`.

    connection: number of the connect that carried it, from 1, per publisher.
    Load fields: None where the worker sent nil.
    raw_digest: xxh3-64 of the raw frame kept in the sidecar, None where none is kept.
    """

    namespace: str
    publisher_id: int
    connection: int
    covers_from: int
    sequence: int
    worker_id: int
    dp_rank: int
    active_decode_blocks: int | None
    active_prefill_tokens: int | None
    kv_used_blocks: int | None
    published_at_ms: int
    raw_digest: int | None = None


class KvOperation(IntEnum):
    """What a kv-event says."""

    STORED = 1
    REMOVED = 2
    CLEARED = 3

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class StorageTier(IntEnum):
    """Where an engine keeps a block. Source: wire contract, storage tiers."""

    DEVICE = 1
    HOST_PINNED = 2
    DISK = 3
    EXTERNAL = 4

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


# worker id, dp rank, event id, KvOperation, StorageTier, 1 where a parent hash leads the columns, blocks
KV_EVENT_HEAD = struct.Struct(">QIQBBBI")


class KvBatchReceived(NamedTuple):
    """The kv-events of one frame in their order, as packed columns (decision 11).

    heads: one KV_EVENT_HEAD for each event.
    hashes: big-endian u64, one event after the other. Stored: the parent's engine hash where
    the head says so, then all tokens hashes, then all engine hashes of the chain. Removed:
    engine hashes. Cleared: none.
    covers_from..sequence: as for samples; a gap inside the events shows in their event ids.
    raw_digest: xxh3-64 of the raw frame kept in the sidecar, None where none is kept.
    """

    namespace: str
    publisher_id: int
    connection: int
    covers_from: int
    sequence: int
    heads: bytes
    hashes: bytes
    published_at_ms: int
    raw_digest: int | None = None


class FrameRefused(NamedTuple):
    """Frames of a publisher that were not taken: one fact per publisher, result and second."""

    family: int
    namespace: str
    publisher_id: int
    connection: int
    result: int
    frames: int


class SubscriptionChanged(NamedTuple):
    """A subscription changed state. CONNECTED drops the samples held from the publisher.

    reason: a fixed word (connected, dial_failed, denied_address, transport_refused,
    closed, stalled, over_limit, departed, ...).
    """

    family: int
    namespace: str
    publisher_id: int
    component: str
    state: int
    connection: int
    transport: int
    reason: str


class SubscriptionContinued(NamedTuple):
    """Another owner has listened to the publisher all along: samples and blocks held of it stay.

    Its sequences go on under the number `connection`; nothing up to the last one that the log
    knows was missed. Source: decision 45.
    """

    family: int
    namespace: str
    publisher_id: int
    component: str
    connection: int
    transport: int
