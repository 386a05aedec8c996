"""What real fleets of three releases wrote to etcd, folded: workers, roles, publishers of each moment.

Each recording starts workers, kills one with -9, starts it anew, ends another by SIGTERM and
starts that anew. With PICKLOG_CAPTURES the full captures are folded as well.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from blake3 import blake3

from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.discovery import KeyDeleted, KeyPut, Keyspace
from projections.identity import WorkerKey
from projections.notices import DiscoveryNotice
from projections.registry.fleet import Role
from tests.projections.fleet_script import NS, Script, text

HERE = Path(__file__).parent
PREFIXES = {
    Keyspace.INSTANCES: "v1/instances/dynamo/",
    Keyspace.CARDS: "v1/mdc/dynamo/",
    Keyspace.CHANNELS: "v1/event_channels/namespace/dynamo/",
    Keyspace.SOURCES: "v1/event_sources/namespace/dynamo/",
}


class Expected(NamedTuple):
    """Of the state at the end: block size, blocks and ranks of a worker, publishers of each topic."""

    block_size: int
    blocks: int
    ranks: int
    kv_metrics: int
    kv_events: int
    registry_digest: int  # pinned: the same on every interpreter, for ever


RECORDINGS = {
    "1.4.2-disagg": Expected(16, 256, 1, 4, 2, 5_196_827_587_920_161_893),
    "1.4.2-agg-dp2": Expected(32, 96, 2, 2, 4, 4_622_092_430_153_331_645),
    "1.4.2-agg-lossy": Expected(16, 160, 1, 1, 1, 798_816_095_945_033_727),
    "1.5.0-disagg": Expected(16, 256, 1, 5, 3, 2_715_773_886_870_211_021),
    "1.6.1-agg": Expected(16, 256, 1, 2, 2, 1_594_368_944_462_744_690),
}


def rows_of(name: str) -> list[dict[str, Any]]:
    """Watch events and moments of a recording, by time."""
    with gzip.open(HERE / f"etcd-watch-{name}.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    return sorted((row.get("timeline", row) for row in rows), key=lambda row: row["t_ns"])


def captured(name: str) -> list[dict[str, Any]]:
    """The same of a full capture."""
    folder = Path(os.environ["PICKLOG_CAPTURES"]) / name
    with gzip.open(folder / "etcd-watch.jsonl.gz") as lines:
        rows = [json.loads(line) for line in lines]
    rows += [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: row["t_ns"])


def fact_of(row: dict[str, Any]) -> KeyPut | KeyDeleted | None:
    for keyspace, prefix in PREFIXES.items():
        if row["key"].startswith(prefix):
            key, revision = row["key"][len(prefix) :], row["mod_revision"]
            if row["type"] == "delete":
                return KeyDeleted(int(keyspace), NS, key, revision)
            value = row["value"].encode()
            return KeyPut(int(keyspace), NS, key, revision, value, len(value), blake3(value).digest())
    return None


def replayed(rows: list[dict[str, Any]]) -> Iterator[tuple[Script, dict[str, int]]]:
    """The script at each moment that names the instances then alive, and at the end."""
    script = Script()
    start = rows[0]["t_ns"]
    instances: dict[str, int] = {}
    for row in rows:
        script.time = 1_000_000 + (row["t_ns"] - start) // 1_000
        if "key" in row:
            fact = fact_of(row)
            if fact is not None:
                script.say(fact, step=0)
        elif "instances" in row:
            instances = {name: ids[0] for name, ids in row["instances"].items() if ids}
            yield script, instances
    yield script, instances


def role_of(name: str) -> Role:
    return {"prefill": Role.PREFILL, "decode": Role.DECODE, "agg": Role.AGGREGATED}[name.split("-")[0]]


def check_moments(rows: list[dict[str, Any]]) -> Script:
    """At each moment exactly the live instances are published, each in its role."""
    moments = 0
    for script, instances in replayed(rows):
        published = {key.instance_id: worker.role for key, worker in script.fleet.workers.items()}
        assert published == {instance_id: role_of(name) for name, instance_id in instances.items()}
        moments += 1
    assert moments >= 4
    assert not [n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.level == "warning"]
    return script


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.req("RED-01", "RED-07", "DUP-08")
def test_the_fleet_of_each_moment_is_that_of_the_recording(name: str) -> None:
    expected = RECORDINGS[name]
    script = check_moments(rows_of(name))
    fleet = script.fleet
    for worker in fleet.workers.values():
        assert (worker.model, worker.block_size, worker.total_kv_blocks) == (
            "tiny-chat",
            expected.block_size,
            expected.blocks,
        )
        assert worker.dp_declared and len(worker.ranks()) == expected.ranks
        assert worker.context_length is None, "0 means unknown"
        assert worker.max_num_batched_tokens == 8192 and worker.max_num_seqs == 256
    topics = [publisher.topic for publisher in fleet.publishers]
    counts = (topics.count("kv_metrics"), topics.count("kv-events"))
    assert counts == (expected.kv_metrics, expected.kv_events)
    bound = set(fleet.bindings.values())
    assert len(bound) == expected.kv_events, "each block publisher speaks for a rank of its own"
    assert all(fleet.is_live(NS, binding.instance_id, binding.dp_rank) for binding in bound)


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.req("EVS-03", "EVS-13")
def test_the_state_of_a_recording_is_pinned_and_survives_a_checkpoint(name: str) -> None:
    *_, (script, _) = replayed(rows_of(name))
    registry = script.fold.state.registry
    assert registry.digest == RECORDINGS[name].registry_digest
    restored = fold_from_checkpoint(list(checkpoint_records(script.fold, bytes(16))))
    assert restored.state.registry.digest == registry.digest
    assert list(restored.state.registry.fleet.workers.items()) == list(script.fleet.workers.items())


@pytest.mark.parametrize("name", ["1.4.2-disagg", "1.6.1-agg"])
def test_the_order_of_puts_does_not_matter(name: str) -> None:
    """Cards before instances, channels before both: workers start in every order."""
    last = {row["key"]: row for row in rows_of(name) if "key" in row}
    facts = [fact for fact in map(fact_of, last.values()) if isinstance(fact, KeyPut)]
    forward, backward = Script(), Script()
    for fact in facts:
        forward.say(fact)
    for fact in reversed(facts):
        backward.say(fact)
    strip = [
        [worker._replace(first_seen=0, last_updated=0) for worker in one.fleet.workers.values()]
        for one in (forward, backward)
    ]
    assert strip[0] == strip[1] and forward.fleet.publishers == backward.fleet.publishers


@pytest.mark.req("RED-10")
def test_records_of_dynamo_1_2_still_make_a_worker_and_its_publishers() -> None:
    """Its endpoints have no device and use NATS, its base cards a null suffix, its channels no scope."""
    script = Script()
    names = {"namespace": NS, "component": "backend"}
    plane = {"nats_tcp": "127.0.0.1:4222"}
    named = {**names, "endpoint": "generate", "instance_id": 7}
    script.put(
        Keyspace.INSTANCES, "backend/generate/7", text({"type": "Endpoint", **named, "transport": plane})
    )
    body = {"display_name": "old", "kv_cache_block_size": 32, "runtime_config": {"total_kv_blocks": 9}}
    model = {"type": "Model", **named, "model_suffix": None, "card_json": body}
    script.put(Keyspace.CARDS, "backend/generate/7", text(model))
    zmq = {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.1:5000"}}
    flat = {"type": "EventChannel", **names, "topic": "kv_metrics", "instance_id": 9, "transport": zmq}
    script.put(Keyspace.CHANNELS, "backend/kv_metrics/9", text(flat))
    worker = script.fleet.workers[WorkerKey(NS, 7)]
    assert (worker.model, worker.block_size, worker.total_kv_blocks) == ("old", 32, 9)
    assert worker.role is Role.UNKNOWN and not worker.dp_declared
    assert [(p.topic, p.component, p.address) for p in script.fleet.publishers] == [
        ("kv_metrics", "backend", "tcp://10.0.0.1:5000")
    ]
    assert not [n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.level == "warning"]


@pytest.mark.skipif("PICKLOG_CAPTURES" not in os.environ, reason="full captures are not in the repository")
@pytest.mark.parametrize("name", RECORDINGS)
def test_full_captures_give_the_same(name: str) -> None:
    check_moments(captured(name))
