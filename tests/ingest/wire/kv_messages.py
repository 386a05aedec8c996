"""Messages of block events for tests: as Dynamo writes them, and read back out of columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from ingest.wire.publisher_frames import Opened, encode_envelope_message
from projections.events.signals import KV_EVENT_HEAD, KvOperation, StorageTier

TOPIC = b"kv-events"
PUBLISHER = 3_383_143_811_728_659
WORKER = 14_846_907_575_122_110_250
AT_MS = 1_795_969_684_138


class Told(NamedTuple):
    """One event, as columns say it."""

    worker_id: int
    dp_rank: int
    event_id: int
    operation: KvOperation
    tier: StorageTier
    parent: int | None
    tokens: tuple[int, ...]
    engines: tuple[int, ...]


def told(heads: bytes, hashes: bytes) -> list[Told]:
    """Events of columns, read without the product's code; all hashes must be used up."""
    words = struct.unpack(f">{len(hashes) // 8}Q", hashes)
    events, at = [], 0

    def take(count: int) -> tuple[int, ...]:
        nonlocal at
        at += count
        assert at <= len(words)
        return words[at - count : at]

    for worker_id, dp_rank, event_id, operation, tier, leads, blocks in KV_EVENT_HEAD.iter_unpack(heads):
        parent = take(1)[0] if leads else None
        tokens = take(blocks) if operation == KvOperation.STORED else ()
        engines = take(blocks)
        events.append(
            Told(
                worker_id,
                dp_rank,
                event_id,
                KvOperation(operation),
                StorageTier(tier),
                parent,
                tokens,
                engines,
            )
        )
    assert at == len(words)
    return events


def blocks_of(pairs: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    """(engine hash, tokens hash) as the wire's maps."""
    return [{"block_hash": engine, "tokens_hash": tokens, "mm_extra_info": None} for engine, tokens in pairs]


def stored(*pairs: tuple[int, int], parent: int | None = None) -> dict[str, Any]:
    return {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks_of(pairs)}}


def removed(*hashes: int) -> dict[str, Any]:
    return {"removed": {"block_hashes": [*hashes]}}


def event(event_id: int, data: Any, rank: int = 0, **changes: Any) -> dict[str, Any]:
    """A RouterEvent of 1.6.1; a change to `...` takes the field away."""
    fields = {
        "worker_id": WORKER,
        "storage_tier": "device",
        "residency_domain": "worker",
        "event": {"event_id": event_id, "data": data, "dp_rank": rank},
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def message(payload: Any, sequence: int = 7, publisher_id: int = PUBLISHER) -> tuple[bytes, ...]:
    """The four frames around a payload (bytes stay as they are)."""
    packed = payload if isinstance(payload, bytes) else msgpack.packb(payload)
    return encode_envelope_message(TOPIC, publisher_id, Opened(sequence, AT_MS, packed))
