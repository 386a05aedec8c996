"""Memory and time of a full registry: 16,384 workers with cards of 2 KB, two keys each.

Measured in a process of its own: resident memory before and after folding the keys from
encoded records, after publishing the fleet, and how long seeding took. The records
themselves are made as they are folded and thrown away.

    python -m bench.registry_memory [--workers N] [--card-bytes N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from bench import floor
from projections.bounds import KEYS_PER_KEYSPACE_MAX, MIB
from projections.events.codec import encode_record
from projections.events.control import LaneOpened
from projections.events.discovery import KeyPut, Keyspace
from projections.fold import Fold
from projections.notices import Notice

GOAL_BYTES = 600 * MIB
WRITER = b"bench owner-----"
NAMESPACE = "dynamo"


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def values(workers: int, card_bytes: int) -> Iterator[tuple[Keyspace, str, bytes]]:
    """Keys and values of the fleet: distinct cards, each padded to about `card_bytes`."""
    for number in range(workers):
        instance_id = 0x7A74_0000_0000_0000 + number * 7919
        names = {"namespace": NAMESPACE, "component": "backend", "endpoint": "generate"}
        key = f"backend/generate/{instance_id:x}"
        instance = {
            "type": "Endpoint",
            **names,
            "instance_id": instance_id,
            "transport": {"tcp": f"10.0.{number >> 8}.{number & 255}:4000/{instance_id:x}/generate"},
            "device_type": "cuda",
            "request_plane_codec": "msgpack",
        }
        yield Keyspace.INSTANCES, key, json.dumps(instance).encode()
        runtime = {"total_kv_blocks": 12_000 + number, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
        body = {
            "display_name": f"org/model-{number % 8}",
            "worker_type": "decode",
            "kv_cache_block_size": 64,
            "runtime_config": {**runtime, "data_parallel_start_rank": 0, "data_parallel_size": 8},
        }
        card = {"type": "Model", **names, "instance_id": instance_id, "card_json": body}
        text = json.dumps(card)
        body["user_data"] = "x" * max(0, card_bytes - len(text) - len(', "user_data": ""'))
        yield Keyspace.CARDS, key, json.dumps(card).encode()


def measure(workers: int, card_bytes: int) -> dict[str, float]:
    """Fold the fleet's keys and look at the process."""
    gc.collect()
    before = resident_bytes()
    fold = Fold()
    notices: list[Notice] = []
    fold.apply(0, encode_record(1, WRITER, 1, 1, LaneOpened(1, 0, b"", "new")), notices)
    began, folded_s = time.perf_counter(), 0.0
    for number, (keyspace, key, value) in enumerate(values(workers, card_bytes), start=2):
        digest = blake3(value).digest()
        fact = KeyPut(int(keyspace), NAMESPACE, key, number, value, len(value), digest)
        data = encode_record(number, WRITER, 1, number, fact)
        at = time.perf_counter()
        fold.apply(number - 1, data, notices)
        folded_s += time.perf_counter() - at
        notices.clear()
    seeded = resident_bytes()
    at = time.perf_counter()
    fleet = fold.state.registry.fleet
    models = len(fleet.workers_of("org/model-0"))
    published_s = time.perf_counter() - at
    if len(fleet.workers) != workers or not models:
        raise SystemExit(f"the fleet has {len(fleet.workers)} workers, {workers} were put")
    gc.collect()
    return {
        "workers": workers,
        "card_bytes": card_bytes,
        "resident_bytes": resident_bytes(),
        "grown_bytes": resident_bytes() - before,
        "grown_by_seeding_bytes": seeded - before,
        "interned_value_bytes": fold.state.registry.keyspaces.value_bytes,
        "fold_s": folded_s,
        "with_encoding_s": time.perf_counter() - began,
        "publish_s": published_s,
        "goal_bytes": GOAL_BYTES,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=KEYS_PER_KEYSPACE_MAX)
    parser.add_argument("--card-bytes", type=int, default=2048)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.workers, options.card_bytes)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{options.workers:,} workers with cards of {options.card_bytes:,} bytes:")
        print(f"  memory of the process: {found['resident_bytes'] / MIB:,.0f} MiB, goal under 600 MiB")
        print(f"  grown by the registry: {found['grown_bytes'] / MIB:,.0f} MiB")
        print(
            f"  seeding, two keys each: {found['fold_s']:.2f} s; "
            f"publishing the fleet: {found['publish_s']:.3f} s"
        )
        print(floor.line())
    return 0 if found["resident_bytes"] < GOAL_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
