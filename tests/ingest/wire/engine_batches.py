"""Batches of engines for tests: vLLM's positional arrays and the named form of them."""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from ingest.wire.engine_events import EngineSource

BLOCK = 16
SOURCE = EngineSource("tcp://10.0.0.7:5557", "prod", 42, BLOCK)


def tokens(blocks: int, first: int = 1) -> list[int]:
    return [*range(first, first + BLOCK * blocks)]


def stored_items(
    hashes: list[Any], ids: list[Any], parent: Any = None, *more: Any, size: int = BLOCK
) -> list[Any]:
    """more: lora_id, medium, lora_name, extra_keys, then the tail."""
    return ["BlockStored", hashes, parent, ids, size, *more]


def stored_map(hashes: list[Any], ids: list[Any], parent: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": BLOCK,
        **more,
    }


def batch(*events: Any, rank: int | None = None, seconds: float = 1_732_890_000.5) -> bytes:
    packed: bytes = msgpack.packb([seconds, [*events], rank])
    return packed


def engine_message(sequence: int, packed: bytes, topic: bytes = b"") -> tuple[bytes, bytes, bytes]:
    return topic, sequence.to_bytes(8, "big"), packed


def encodings(ids: list[int]) -> list[bytes]:
    """A run of token ids in every encoding that a record could carry it in."""
    found = [struct.pack(f"{order}{len(ids)}{form}", *ids) for order in "<>" for form in "HIQ"]
    found += [msgpack.packb(one)[3 if len(ids) > 15 else 1 :] for one in (ids, list(map(float, ids)))]
    found += [separator.join(map(str, ids)).encode() for separator in (",", ", ", " ", "\n")]
    found += [",".join(f"{one:x}" for one in ids).encode()]
    return found
