"""Facts of load publishers.

Continuity is judged on the wire by ingest and written here: `covers_from..sequence` of
a sample runs over frames that were coalesced into it, refused though numbered, or
skipped; so the fold sees a gap only where `covers_from` lies beyond the last sequence
that it knows of this connection (decision 17).
"""

from __future__ import annotations

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
