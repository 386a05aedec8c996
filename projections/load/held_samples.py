"""What the load store holds: a rank's sample, a worker's samples, a publisher's continuity."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from projections.events.codec import encode_value
from projections.identity import U64_MAX, WorkerKey
from projections.notices import FrameResult, SampleNotice

_xxh3 = xxhash.xxh3_64_intdigest


class HeldSample(NamedTuple):
    """The latest report of one rank. received_at: log time of its record, microseconds."""

    publisher_id: int
    sequence: int
    received_at: int
    active_decode_blocks: int | None
    active_prefill_tokens: int | None
    kv_used_blocks: int | None


class WorkerSamples:
    """What is held of one worker. Readers must not change it.

    samples: dp_rank -> HeldSample. live: ranks known to be declared in `generation`.
    """

    __slots__ = ("changed", "generation", "key", "last_sample_at", "live", "samples", "word")

    def __init__(self, key: WorkerKey) -> None:
        self.key = key
        self.samples: dict[int, HeldSample] = {}
        self.last_sample_at: int | None = None
        self.generation = -1
        self.live: dict[int, None] = {}
        self.changed = False  # since `word` was added to the digest
        self.word = 0


class PublisherSamples:
    """Continuity of one publisher's connection, and the ranks whose samples came from it."""

    __slots__ = ("applied", "connection", "displaced", "key", "last_sequence", "ranks", "took_turns")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.connection = 0
        self.last_sequence: int | None = None
        self.ranks: dict[tuple[str, int, int], None] = {}
        self.displaced = False  # another publisher replaced a sample of this connection
        self.took_turns = False  # reported once per connection
        self.applied = (SampleNotice(FrameResult.APPLIED, *key),)


def word_of(worker: WorkerSamples) -> int:
    """The worker's part of the digest: 0 once nothing is held of it."""
    key = worker.key
    total = 0
    if worker.last_sample_at is not None:
        total += _xxh3(encode_value(("worker", *key, worker.last_sample_at)))
    for dp_rank, sample in worker.samples.items():
        total += _xxh3(encode_value(("sample", *key, dp_rank, *sample)))
    return total & U64_MAX
