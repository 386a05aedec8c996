"""Reading kv-events: frames to packed columns, against a plain typed decode of msgspec, same run.

    python -m bench.kv_frames [--rounds N]

Frames have the form that Dynamo 1.6.1 writes. The plain way decodes into typed structs and packs
their hashes with struct; it takes the named form alone, and checks no ceiling and no identity. Both go
from the body frame to columns, in turn; the ratio is the median over rounds. `columns` and `typed`
say which of our two ways read the frame. Seconds are those of the CPU, as a busy neighbour falls
upon one side's.

Target: at least 2 times for big events (128 blocks and more, a full batch of upstream).
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import msgspec

from bench import floor
from ingest.wire.event_columns import usual_columns
from ingest.wire.publisher_frames import Opened, encode_envelope_message
from ingest.wire.router_events import KV_EVENTS_TOPIC, KvFrame, decode_kv_message
from projections.events.signals import KV_EVENT_HEAD

TARGET_RATIO = 2.0
PUBLISHER = 4_777_304_328_145_567
SECONDS_A_ROUND = 0.05


class Shape(NamedTuple):
    """A frame: so many events of so many blocks. is_big: the target counts."""

    events: int
    blocks: int
    is_big: bool


SHAPES = (
    Shape(1, 1, False),
    Shape(16, 1, False),
    Shape(128, 4, False),
    Shape(16, 16, False),
    Shape(1, 64, False),
    Shape(8, 128, True),
    Shape(64, 128, True),
    Shape(1, 512, True),
    Shape(1, 8192, True),
)


class Envelope(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    payload: bytes


class Block(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    block_hash: int
    tokens_hash: int


class Stored(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    parent_hash: int | None
    blocks: list[Block]


class Data(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    stored: Stored


class Event(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    event_id: int
    data: Data
    dp_rank: int = 0


class RouterEvent(msgspec.Struct, gc=False):
    """As the plain way decodes it."""

    worker_id: int
    event: Event
    storage_tier: str = "device"


open_plainly = msgspec.msgpack.Decoder(Envelope).decode
decode_plainly = msgspec.msgpack.Decoder(list[RouterEvent]).decode


def plain_columns(body: bytes) -> tuple[bytes, bytes]:
    """Heads and hashes the plain way."""
    heads, hashes = [], []
    for said in decode_plainly(open_plainly(body[5:]).payload):
        stored = said.event.data.stored
        count, parent = len(stored.blocks), stored.parent_hash
        heads.append(
            KV_EVENT_HEAD.pack(
                said.worker_id, said.event.dp_rank, said.event.event_id, 1, 1, int(parent is not None), count
            )
        )
        if parent is not None:
            hashes.append(parent.to_bytes(8, "big"))
        tokens = [block.tokens_hash for block in stored.blocks]
        engines = [block.block_hash for block in stored.blocks]
        hashes.append(struct.pack(f">{2 * count}Q", *tokens, *engines))
    return b"".join(heads), b"".join(hashes)


def frames_of(shape: Shape) -> tuple[bytes, ...]:
    """One message; every hash is a full u64, as nearly all are."""
    source = random.Random(7)

    def wide() -> int:
        return source.getrandbits(63) | 1 << 63

    events = [
        {
            "worker_id": 5_796_009_213_452_682_770,
            "storage_tier": "device",
            "residency_domain": "worker",
            "event": {
                "event_id": 1_000 + number,
                "data": {
                    "stored": {
                        "parent_hash": wide() if number else None,
                        "start_position": None,
                        "blocks": [
                            {"block_hash": wide(), "tokens_hash": wide(), "mm_extra_info": None}
                            for _ in range(shape.blocks)
                        ],
                    }
                },
                "dp_rank": 0,
            },
        }
        for number in range(shape.events)
    ]
    return encode_envelope_message(
        KV_EVENTS_TOPIC, PUBLISHER, Opened(7, 1_795_969_684_138, msgpack.packb(events))
    )


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of CPU that one call takes, over as many as a round has time for."""
    began = time.thread_time()
    work()
    calls = max(1, int(SECONDS_A_ROUND / max(time.thread_time() - began, 1e-7)))
    began = time.thread_time()
    for _ in range(calls):
        work()
    return (time.thread_time() - began) / calls


def measure(shape: Shape, rounds: int) -> bool:
    """Print one line; whether the target was met, which a small shape does always."""
    frames = frames_of(shape)
    read = decode_kv_message(frames, PUBLISHER)
    body = frames[3]
    assert isinstance(read, KvFrame)
    assert plain_columns(body) == (read.heads, read.hashes)
    timed = [
        (seconds_of(lambda: plain_columns(body)), seconds_of(lambda: decode_kv_message(frames, PUBLISHER)))
        for _ in range(rounds)
    ]
    plain, ours = (statistics.median(column) for column in zip(*timed, strict=True))
    ratio = statistics.median(one / other for one, other in timed)
    blocks = shape.events * shape.blocks
    way = "columns" if usual_columns(open_plainly(body[5:]).payload) else "typed"
    met = not shape.is_big or ratio >= TARGET_RATIO
    print(
        f"{shape.events:4} x {shape.blocks:4} blocks  {way:7}"
        f"  ours {ours / blocks * 1e9:6.0f} ns/block {shape.events / ours:10,.0f} events/s"
        f"  plain {plain / blocks * 1e9:6.0f} ns/block  ratio {ratio:.2f}"
        f"{'' if not shape.is_big else ' met' if met else ' MISSED'}",
        flush=True,
    )
    return met


def main() -> int:
    """Measure all shapes; exit status 1 when a target is missed."""
    parser = argparse.ArgumentParser(description="kv-events to columns against plain msgspec.")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    gc.collect()
    gc.freeze()
    print(floor.line())
    met = [measure(shape, asked.rounds) for shape in SHAPES]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
