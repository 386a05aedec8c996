"""The registry over records: generation, times of workers, departures, drops."""

from __future__ import annotations

import pytest

from projections.events.discovery import KeysDropped, Keyspace, PassEnded
from projections.identity import WorkerKey
from projections.notices import FleetPublished, WorkersDeparted
from tests.projections.fleet_script import (
    NS,
    Script,
    card,
    endpoint,
    instance_key,
)

INST, CARDS, CHANNELS, SOURCES = Keyspace


def published(script: Script) -> list[int]:
    return [n.generation for n in script.all_notices if isinstance(n, FleetPublished)]


@pytest.mark.req("RED-19")
def test_the_generation_grows_with_each_record_that_changes_the_fleet_and_no_other() -> None:
    script = Script()
    script.put(INST, instance_key(7, name="load_metrics"), endpoint(7, name="load_metrics"))
    assert script.fleet.generation == 0
    script.worker(7)
    assert published(script) == [1, 2] and script.fleet.generation == 2
    script.put(CARDS, instance_key(7) + "/lora", card(7, suffix="lora"))
    script.put(CARDS, instance_key(7), card(7), revision=9)
    script.put(INST, "rubbish", b"rubbish")
    assert script.fleet.generation == 2
    script.put(CARDS, instance_key(7), card(7, opaque="new"), revision=10)
    assert script.fleet.generation == 3, "the opaque card is published too"


@pytest.mark.req("RED-19", "ETCD-13")
@pytest.mark.field("B-006", "B-127")
def test_a_resync_that_finds_the_same_keys_changes_nothing() -> None:
    script = Script()
    script.pass_began()
    script.worker(7)
    script.pass_settled()
    before = script.fleet
    script.say(PassEnded("etcd", (NS,), 1, "compacted"))
    assert not script.fold.state.registry.is_connected(NS)
    script.pass_began(2, "ended")
    script.pass_settled(2, revision=50)
    assert script.fleet is before and script.fold.state.registry.is_connected(NS)


@pytest.mark.req("RED-26", "ETCD-13")
def test_first_seen_is_the_first_record_and_last_updated_the_newest_change() -> None:
    script = Script()
    script.put(INST, instance_key(7), endpoint(7))
    first = script.time
    script.put(CARDS, instance_key(7), card(7))
    (worker,) = script.fleet.workers.values()
    assert (worker.first_seen, worker.last_updated) == (first, script.time)
    changed = script.time
    script.put(CARDS, instance_key(7), card(7), revision=2)
    script.tick()
    (worker,) = script.fleet.workers.values()
    assert (worker.first_seen, worker.last_updated) == (first, changed)


@pytest.mark.req("ETCD-02", "ETCD-14")
def test_first_seen_is_forgotten_with_the_last_record_and_survives_a_conflict() -> None:
    script = Script()
    script.worker(7)
    first = script.fleet.workers[WorkerKey(NS, 7)].first_seen
    script.put(INST, "intruder", endpoint(7))
    assert not script.fleet.workers
    script.delete(INST, "intruder")
    assert script.fleet.workers[WorkerKey(NS, 7)].first_seen == first
    script.delete(INST, instance_key(7))
    assert not script.fleet.workers
    script.put(INST, instance_key(7), endpoint(7), revision=5)
    assert script.fleet.workers[WorkerKey(NS, 7)].first_seen == script.time
    script.say(KeysDropped((), "connection"))
    assert not script.fleet.workers and script.fold.state.registry.passes == {}
    script.worker(7)
    assert script.fleet.workers[WorkerKey(NS, 7)].first_seen > first


@pytest.mark.req("LOAD-26", "STORE-15")
@pytest.mark.field("B-004", "B-056")
def test_who_leaves_takes_samples_along_in_the_same_record() -> None:
    script = Script()
    for n in (7, 8):
        script.worker(n)
        script.sample(n, sequence=n)
    load = script.fold.state.load
    assert len(load) == 2
    script.delete(INST, instance_key(7))
    assert [n.workers for n in script.notices if isinstance(n, WorkersDeparted)] == [((NS, 7),)]
    assert load.sample(NS, 7, 0) is None and load.last_sample_at(NS, 7) is None
    script.sample(7, sequence=20)
    assert load.sample(NS, 7, 0) is None, "no sample is admitted for a worker that is gone"
    script.put(CARDS, instance_key(8), card(8, component="backend"), revision=2)
    script.put(INST, "intruder", endpoint(8))
    assert len(load) == 0, "set apart is gone as well"


@pytest.mark.req("MNS-06")
def test_dropping_a_namespace_leaves_the_others_routable() -> None:
    script = Script()
    for namespace in ("a", "b"):
        script.worker(7, namespace=namespace)
    script.say(KeysDropped(("a",), "namespaces"))
    assert list(script.fleet.workers) == [WorkerKey("b", 7)]
    (departed,) = [n for n in script.notices if isinstance(n, WorkersDeparted)]
    assert departed.workers == (("a", 7),)
    assert len([n for n in script.notices if isinstance(n, FleetPublished)]) == 1


@pytest.mark.field("B-013", "B-022")
def test_a_worker_that_swaps_its_engine_is_described_by_its_newest_card() -> None:
    """Put before delete and delete before put end alike (B-013)."""
    ends = []
    for order in ("put first", "delete first"):
        script = Script()
        script.worker(1, kv_cache_block_size=16)
        steps = [
            lambda script=script: script.worker(2, kv_cache_block_size=64),
            lambda script=script: (
                script.delete(INST, instance_key(1)),
                script.delete(CARDS, instance_key(1)),
            ),
        ]
        for step in steps if order == "put first" else reversed(steps):
            step()
        ends.append([(w.key.instance_id, w.model, w.block_size) for w in script.fleet.workers_of("tiny")])
    assert ends[0] == ends[1] == [(2, "tiny", 64)]


@pytest.mark.field("B-131")
def test_ranks_follow_the_newest_card() -> None:
    """Ranks that no longer exist take no traffic and no samples (B-131)."""
    script = Script()
    script.worker(7, runtime={"data_parallel_size": 8})
    script.sample(7, sequence=1, dp_rank=5)
    assert script.fold.state.load.sample(NS, 7, 5) is not None
    script.put(CARDS, instance_key(7), card(7, runtime={"data_parallel_size": 1}), revision=2)
    script.sample(7, sequence=2, dp_rank=6)
    assert script.fold.state.load.sample(NS, 7, 6) is None
    assert list(script.fleet.workers[WorkerKey(NS, 7)].ranks()) == [0]


@pytest.mark.field("B-012", "B-014")
def test_one_worker_with_an_odd_card_leaves_its_model_up() -> None:
    """B-012, B-014: candidates by the model of each worker's own card, the odd one apart."""
    script = Script()
    script.worker(1, model="a")
    script.worker(2, model="a", tool_parser="other")
    script.worker(3, model="b")
    script.worker(4, model=["odd"])
    assert [w.key.instance_id for w in script.fleet.workers_of("a")] == [1, 2]
    assert [w.key.instance_id for w in script.fleet.workers_of("b")] == [3]


@pytest.mark.field("B-146")
def test_churn_of_adapters_and_workers_leaves_nothing_behind() -> None:
    """B-146: held state returns to where it was; only the generation has moved."""
    script = Script()
    script.worker(1)
    registry = script.fold.state.registry
    keys, digest_of_keys = len(registry.keyspaces), registry.keyspaces.digest
    for n in range(300):
        script.put(CARDS, f"backend/generate/1/a{n}", card(1, suffix=f"a{n}"))
        script.worker(1000 + n)
        script.delete(CARDS, f"backend/generate/1/a{n}")
        script.delete(INST, instance_key(1000 + n))
        script.delete(CARDS, instance_key(1000 + n))
    assert (len(registry.keyspaces), registry.keyspaces.digest) == (keys, digest_of_keys)
    assert [key for key, _, _ in registry.seen()] == [WorkerKey(NS, 1)]
    assert registry.keyspaces.value_bytes == len(endpoint(1)) + len(card(1))


def test_the_record_that_makes_a_worker_is_told_as_it_was_found() -> None:
    script = Script()
    script.worker(7)
    registry = script.fold.state.registry
    assert registry.endpoint_value(WorkerKey(NS, 7)) == endpoint(7)
    assert registry.endpoint_value(WorkerKey("other", 7)) == b""
    script.put(INST, instance_key(7, "other"), endpoint(7, "other"))
    assert registry.endpoint_value(WorkerKey(NS, 7)) == b"", "two records claim it"
