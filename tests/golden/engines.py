"""Engines that exist only for a golden log: what they keep, drop and load, told in frames as Dynamo's.

A mock fleet of Dynamo has no cache below the device, and each of its workers publishes. These
engines keep every block of a prompt in three tiers of different sizes: what is pushed out of the
device is still held in host memory, and what is pushed out there on disk. Some publish
nothing. Frames are made by the product's own encoders and read by its own decoders, so that a
record says what ingest would have written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
import xxhash

from ingest.wire.publisher_frames import (
    Opened,
    Sample,
    decode_sample_message,
    encode_envelope_message,
    encode_sample_message,
)
from ingest.wire.router_events import KV_EVENTS_TOPIC, KvFrame, decode_kv_message
from projections.events.signals import KvBatchReceived, SampleReceived, StorageTier
from projections.identity import RankKey

BLOCK = 16
WORD = 8
PREFILL_US_A_TOKEN = 250

Path = tuple[bytes, ...]  # tokens hashes from the root


class Held(NamedTuple):
    """A tier of one engine. blocks: path -> engine hash, least recently used first."""

    tier: StorageTier
    capacity: int
    blocks: dict[Path, int]


class Engine:
    """One rank. capacities: blocks of device, host and disk, 0 where it has no such tier.

    load_publisher, kv_publisher: ids; kv_publisher is None where its blocks are not told.
    """

    def __init__(self, rank: RankKey, number: int, capacities: tuple[int, int, int], publishes: bool) -> None:
        tiers = (StorageTier.DEVICE, StorageTier.HOST_PINNED, StorageTier.DISK)
        self.rank = rank
        self.load_publisher = 7_000 + number
        self.kv_publisher = 8_000 + number if publishes else None
        self.tiers = [Held(*row, {}) for row in zip(tiers, capacities, strict=True) if row[1]]
        self.event_id = 0
        self.samples = self.frames = 0
        self.last_sample = self.last_frame = -1
        self.waiting = self.decoding = 0  # prompt tokens not yet computed, blocks of running requests
        self.free_at = 0
        self.is_heard = False  # whether anybody is connected to its publishers

    # -- work --------------------------------------------------------------------------

    def cached(self, path: Path) -> int:
        """Blocks of a prompt that need not be computed, in whatever tier."""
        return max(_depth(held, path) for held in self.tiers)

    def admit(self, at: int, tokens: int, path: Path) -> tuple[int, int]:
        """A prompt has come: the time at which it will be computed, and the tokens that this takes."""
        new = max(1, tokens - self.cached(path) * BLOCK)
        self.waiting += new
        self.free_at = max(at, self.free_at) + new * PREFILL_US_A_TOKEN
        return self.free_at, new

    def computed(self, path: Path, new_tokens: int) -> list[dict[str, Any]]:
        """Its blocks are held from here on: events of what is new in each tier, and of what had to go."""
        self.waiting -= new_tokens
        told: list[dict[str, Any]] = []
        for held in self.tiers:
            known = _depth(held, path)
            for depth in range(1, known + 1):  # used again
                held.blocks[path[:depth]] = held.blocks.pop(path[:depth])
            new = path[known : held.capacity]
            if new:
                told += self._drop(held, len(held.blocks) + len(new) - held.capacity, path[:known])
                told.append(self._store(held, path[:known], new))
        return told

    def clear(self) -> list[dict[str, Any]]:
        """The device is emptied, as by an operator's flush."""
        self.tiers[0].blocks.clear()
        return [self._event(self.tiers[0].tier, "cleared")]

    def forget_quietly(self) -> None:
        """It drops a block of the device and the event is lost on its way: the next one shows a gap."""
        if self.tiers[0].blocks:
            self._drop(self.tiers[0], 1, ())

    def _store(self, held: Held, parent: Path, new: Path) -> dict[str, Any]:
        blocks = []
        for place, tokens_hash in enumerate(new):
            path = (*parent, *new[: place + 1])
            name = xxhash.xxh3_64_intdigest(b"".join(path), seed=self.rank.instance_id)
            held.blocks[path] = name
            token = int.from_bytes(tokens_hash, "big")
            blocks.append({"block_hash": name, "tokens_hash": token, "mm_extra_info": None})
        stored = {
            "parent_hash": held.blocks[parent] if parent else None,
            "start_position": None,
            "blocks": blocks,
        }
        return self._event(held.tier, {"stored": stored})

    def _drop(self, held: Held, count: int, kept: Path) -> list[dict[str, Any]]:
        """The oldest leaves go; `kept` and what leads to it stays."""
        names: list[int] = []
        while count > len(names):
            inner = {path[:-1] for path in held.blocks}
            leaf = next(p for p in held.blocks if p not in inner and p != kept[: len(p)])
            names.append(held.blocks.pop(leaf))
        return [self._event(held.tier, {"removed": {"block_hashes": names}})] if names else []

    def _event(self, tier: StorageTier, data: Any) -> dict[str, Any]:
        self.event_id += 1
        return {
            "worker_id": self.rank.instance_id,
            "storage_tier": tier.label,
            "residency_domain": "worker",
            "event": {"event_id": self.event_id, "data": data, "dp_rank": self.rank.dp_rank},
        }

    # -- what the owner hears ----------------------------------------------------------

    def sample(self, at_ms: int, connection: int) -> SampleReceived:
        """Its load now, as the owner writes it after reading it off the wire."""
        used = len(self.tiers[0].blocks)
        said = Sample(self.samples, at_ms, *self.rank[1:], self.decoding, self.waiting, used)
        self.samples += 1
        read = decode_sample_message(encode_sample_message(self.load_publisher, said), self.load_publisher)
        assert isinstance(read, Sample)
        covers_from, self.last_sample = self.last_sample + 1, read.sequence
        where = (self.rank.namespace, self.load_publisher, connection, covers_from, read.sequence)
        loads = (read.active_decode_blocks, read.active_prefill_tokens, read.kv_used_blocks)
        return SampleReceived(*where, read.worker_id, read.dp_rank, *loads, read.published_at_ms)

    def batch(self, events: list[dict[str, Any]], at_ms: int, connection: int) -> KvBatchReceived | None:
        """Events in one frame, likewise; None where it publishes none."""
        if self.kv_publisher is None or not events:
            return None
        opened = Opened(self.frames, at_ms, msgpack.packb(events))
        self.frames += 1
        frames = encode_envelope_message(KV_EVENTS_TOPIC, self.kv_publisher, opened)
        read = decode_kv_message(frames, self.kv_publisher)
        assert isinstance(read, KvFrame) and not read.dropped
        covers_from, self.last_frame = self.last_frame + 1, read.sequence
        where = (self.rank.namespace, self.kv_publisher, connection, covers_from, read.sequence)
        return KvBatchReceived(*where, read.heads, read.hashes, read.published_at_ms)


def _depth(held: Held, path: Path) -> int:
    depth = 0
    while depth < len(path) and path[: depth + 1] in held.blocks:
        depth += 1
    return depth
