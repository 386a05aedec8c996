"""Publishers of block events that contradict themselves, against a router that is killed meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.wire import fake_publisher as fake
from tests.ingest.wire.kv_messages import message, removed, stored
from tests.live.hostile_peers import MODEL, Hostile, hostile
from tests.live.router_process import picklog, until

PUBLISHER = 0x511
U64_MAX = 2**64 - 1
RANKS = [0, 0, 0, 1, 4095, 2**32 - 1]
WORKERS = [31, 31, 32, 33, 0, U64_MAX]
EVENT_IDS = [0, 1, U64_MAX, 2**63]
PROMPT = b'{"model":"tiny-chat","prompt":[%s]}' % b",".join(b"%d" % token for token in range(1, 320))
ROUNDS, FRAMES, EVENTS = 2, 120, 12


def announce(peers: Hostile, endpoint: str) -> None:
    scope = {
        "kind": "endpoint",
        "endpoint": {"namespace": "dynamo", "component": "backend", "name": "generate"},
    }
    peers.store.put(
        "event_channels",
        f"namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/{PUBLISHER:x}",
        {
            "type": "EventChannel",
            "scope": scope,
            "topic": "kv-events",
            "instance_id": PUBLISHER,
            "transport": {"kind": "Zmq", "config": {"endpoint": endpoint}},
        },
    )


def odd_data(rng: random.Random) -> Any:
    """Chains, cycles, own parents, repeats, removals of what nobody has, clears."""
    start, count = rng.randrange(1, 20), rng.randrange(8)
    pairs = [(number, number) for number in range(start, start + count)]
    shapes: list[Callable[[], Any]] = [
        lambda: stored(*[(number, number) for number in range(1, count + 1)]),
        lambda: stored(*pairs, parent=start - 1),
        lambda: stored(*pairs, parent=start),
        lambda: stored(*reversed(pairs), parent=start + count),
        lambda: stored(*pairs[:1] * count),
        lambda: removed(*[number for number, _ in pairs] * 2),
        lambda: "cleared",
    ]
    return rng.choice(shapes)()


def storm(rng: random.Random, ids: dict[tuple[int, int], int]) -> list[dict[str, Any]]:
    events = []
    for _ in range(EVENTS):
        rank = rng.choice(WORKERS), rng.choice(RANKS)
        ids[rank] = ids.get(rank, 0) + 1
        event_id = rng.choice(EVENT_IDS) if rng.random() < 0.02 else ids[rank]
        tier = rng.choice(["device", "device", "host_pinned", "disk", "moon"])
        event = {"event_id": event_id, "data": odd_data(rng), "dp_rank": rank[1]}
        events.append(
            {"worker_id": rank[0], "storage_tier": tier, "residency_domain": "worker", "event": event}
        )
    return events


@pytest.mark.req("KVX-07", "MEM-08")
async def test_events_that_contradict_themselves_cost_no_request_and_can_be_repeated(tmp_path: Path) -> None:
    rng = random.Random(7)
    with hostile(tmp_path) as peers:
        router = peers.router
        peers.store.worker(33, runtime_config={"total_kv_blocks": 1024, "data_parallel_size": 2})
        router.config["dynamo"]["kv"] = {
            "enabled": True,
            "host_cache_hit_weight": 0.75,
            "predicted_ttl": "2s",
        }
        router.write(router.config)
        async with fake.FakePublisher() as publisher:
            announce(peers, publisher.endpoint)
            ids: dict[tuple[int, int], int] = {}
            for round_ in range(ROUNDS):
                await publisher.subscriber(b"kv-events", round_ + 1)
                for number in range(FRAMES):
                    publisher.publish(message(storm(rng, ids), number, PUBLISHER))
                    await asyncio.sleep(0)
                    if number % 20 == 0:
                        status = await asyncio.to_thread(peers.status, PROMPT, path=b"/v1/completions")
                        assert status == 200
                await asyncio.to_thread(until, lambda: counted(peers, "applied"), "events are applied")
                await asyncio.to_thread(router.kill)
                await asyncio.to_thread(router.start)
            assert await asyncio.to_thread(peers.status, PROMPT, path=b"/v1/completions") == 200
        assert router.log_lines("Traceback") == []
        assert MODEL in router.models()
        await asyncio.to_thread(router.verify)
        capture = tmp_path / "redacted.picklog"
        said = await asyncio.to_thread(
            picklog, "capture", "export", "--redact", "--log", str(router.data), "--out", str(capture)
        )
        assert said.returncode == 0, said.stderr
        await asyncio.to_thread(router.verify, capture)


def counted(peers: Hostile, result: str) -> float:
    return peers.router.metrics().get(f'continuum_dynamo_kv_events_total{{result="{result}"}}', 0.0)
