"""What outlives a worker's restart, as the fold holds it."""

from __future__ import annotations

import pytest

from ingest.subscriptions import worker_places
from ingest.subscriptions.worker_places import WorkerPlace, WorkerPlaces
from projections.events.discovery import Keyspace
from projections.identity import WorkerKey
from tests.projections.fleet_script import NS, Script, card, endpoint, instance_key

PATH = "http://10.0.0.9:9090/v1/metadata/dynamo/backend/generate/tiny/_base/tokenizer.json"


def places(script: Script, made: WorkerPlaces | None = None) -> tuple[WorkerPlace, ...]:
    return (made or WorkerPlaces()).of(script.fold.state.registry)


def test_a_worker_has_a_host_a_component_a_model_its_ranks_and_a_system_port() -> None:
    script = Script()
    tokenizer = {"hf_tokenizer_json": {"path": PATH, "checksum": "blake3:" + "0" * 64}}
    runtime = {"data_parallel_start_rank": 2, "data_parallel_size": 2}
    script.worker(7, "decode", worker_type="decode", runtime=runtime, tokenizer=tokenizer)
    script.put(
        Keyspace.INSTANCES, instance_key(3), endpoint(3, transport={"tcp": "10.0.0.9:4000/3/generate"})
    )
    assert places(script) == (
        WorkerPlace(WorkerKey(NS, 3), "10.0.0.9", "backend", None, None, range(1)),
        WorkerPlace(WorkerKey(NS, 7), "10.0.0.1", "decode", "tiny", 9090, range(2, 4)),
    )


def test_encode_workers_and_workers_without_a_host_have_no_place() -> None:
    script = Script()
    script.worker(1, "encode", worker_type="encode")
    script.put(Keyspace.INSTANCES, instance_key(2), endpoint(2, transport={"nats_tcp": "a.b.c-2"}))
    assert places(script) == ()


def test_a_worker_that_two_records_claim_is_none() -> None:
    script = Script()
    script.worker(7)
    script.put(Keyspace.INSTANCES, instance_key(7, "other"), endpoint(7, "other"))
    assert places(script) == ()


def test_a_host_that_changes_in_place_is_seen_though_the_fleet_stays_the_same() -> None:
    script, made = Script(), WorkerPlaces()
    script.worker(7)
    generation, digest = script.fleet.generation, script.fold.state.registry.keyspaces.digest
    assert [one.host for one in places(script, made)] == ["10.0.0.1"]
    moved = endpoint(7, transport={"tcp": "10.0.0.2:4000/generate"})
    script.put(Keyspace.INSTANCES, instance_key(7), moved, revision=2)
    assert [one.host for one in places(script, made)] == ["10.0.0.2"]
    assert script.fleet.generation == generation
    assert script.fold.state.registry.keyspaces.digest != digest


def test_only_what_has_changed_is_read_again_and_nothing_of_workers_that_left_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bytes] = []

    def reading(value: bytes) -> str:
        read.append(value)
        return "host"

    monkeypatch.setattr(worker_places, "advertised_host", reading)
    script, made = Script(), WorkerPlaces()
    script.worker(1)
    script.worker(2)
    places(script, made)
    script.publisher(77)
    places(script, made)
    assert read == [endpoint(1), endpoint(2)]
    script.put(Keyspace.CARDS, instance_key(2), card(2, model="other"), revision=2)
    assert [one.model for one in places(script, made)] == ["tiny", "other"]
    assert read[2:] == [endpoint(2)]
    script.delete(Keyspace.INSTANCES, instance_key(1), revision=3)
    assert [one.key.instance_id for one in places(script, made)] == [2]
    assert [*made._known] == [WorkerKey(NS, 2)]
