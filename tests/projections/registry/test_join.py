"""Which card belongs to which worker, and in which role it serves."""

from __future__ import annotations

import pytest

from projections.events.discovery import Keyspace
from projections.identity import PublisherKey, WorkerKey
from projections.notices import DiscoveryNotice
from projections.registry.fleet import RankBinding, Role, Worker
from tests.projections.fleet_script import (
    NS,
    Script,
    card,
    channel,
    channel_key,
    endpoint,
    instance_key,
    source,
)

INST, CARDS, CHANNELS, SOURCES = Keyspace


def only(script: Script) -> Worker:
    (worker,) = script.fleet.workers.values()
    return worker


@pytest.mark.req("RED-01", "RED-26")
def test_endpoint_and_card_of_one_component_endpoint_and_id_join() -> None:
    script = Script()
    script.worker(7, runtime={"data_parallel_size": 2, "data_parallel_start_rank": 2, "enable_eagle": True})
    worker = only(script)
    assert worker.key == WorkerKey(NS, 7) and worker.model == "tiny" and worker.role is Role.AGGREGATED
    assert (worker.component, worker.endpoint, worker.block_size) == ("backend", "generate", 16)
    assert list(worker.ranks()) == [2, 3] and worker.dp_declared and worker.enable_eagle
    assert script.fleet.card_of(worker.key) == card(
        7, runtime={"data_parallel_size": 2, "data_parallel_start_rank": 2, "enable_eagle": True}
    )


@pytest.mark.req("RED-02")
def test_a_hex_id_and_a_number_join() -> None:
    script = Script()
    script.put(INST, instance_key(0x1A7F2B), endpoint(0x1A7F2B))
    script.put(CARDS, instance_key(0x1A7F2B), card("1a7f2b"))
    assert only(script).has_card


@pytest.mark.field("B-017")
@pytest.mark.parametrize("first", ["endpoint", "card"])
def test_the_order_of_card_and_endpoint_does_not_matter(first: str) -> None:
    script = Script()
    puts = [(INST, endpoint(7)), (CARDS, card(7))]
    for keyspace, value in puts if first == "endpoint" else reversed(puts):
        script.put(keyspace, instance_key(7), value)
    assert only(script).has_card and only(script).model == "tiny"


@pytest.mark.req("RED-01")
@pytest.mark.field("B-008")
def test_cards_of_another_component_endpoint_or_id_do_not_join() -> None:
    script = Script()
    script.put(INST, instance_key(7), endpoint(7))
    for n, value in enumerate((card(7, "other"), card(7, name="load"), card(8))):
        script.put(CARDS, f"k{n}", value)
    worker = only(script)
    assert not worker.has_card and worker.model is None and script.fleet.card_of(worker.key) is None


@pytest.mark.req("RED-03")
def test_a_legacy_card_joins_by_id_and_a_scoped_one_wins() -> None:
    script = Script()
    script.put(INST, instance_key(7), endpoint(7))
    script.put(CARDS, "legacy", card(7, component="", name="", model="legacy"))
    assert only(script).model == "legacy"
    script.put(CARDS, instance_key(7), card(7, model="scoped"))
    assert only(script).model == "scoped"
    script.delete(CARDS, instance_key(7))
    assert only(script).model == "legacy"


@pytest.mark.req("RED-04")
@pytest.mark.field("B-024")
def test_an_adapters_card_never_joins_and_defines_no_capacity() -> None:
    script = Script()
    script.put(INST, instance_key(7), endpoint(7))
    script.put(CARDS, instance_key(7) + "/lora", card(7, model="lora", suffix="lora", kv_cache_block_size=64))
    assert not only(script).has_card
    script.put(CARDS, instance_key(7), card(7, kv_cache_block_size=1056))
    assert (only(script).model, only(script).block_size) == ("tiny", 1056)


@pytest.mark.req("RED-05", "DUP-08")
def test_only_generate_endpoints_become_workers_and_the_rest_is_silent() -> None:
    script = Script()
    for name in ("load_metrics", "clear_kv_blocks", "worker_kv_query_source_9"):
        script.put(INST, instance_key(7, name=name), endpoint(7, name=name))
    assert not script.fleet.workers
    script.put(INST, instance_key(7), endpoint(7))
    assert list(script.fleet.workers) == [WorkerKey(NS, 7)]
    assert [n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.level != "debug"] == []


@pytest.mark.parametrize(
    ("component", "worker_type", "role"),
    [
        ("prefill", "prefill", Role.PREFILL),
        ("prefill", None, Role.PREFILL),
        ("decode", "planner", Role.DECODE),
        ("backend", "decode", Role.DECODE),
        ("backend", "Prefill", Role.PREFILL),
        ("backend", "encode", Role.ENCODE),
        ("backend", None, Role.UNKNOWN),
        ("Prefill", None, Role.UNKNOWN),
    ],
)
@pytest.mark.req("RED-07", "RED-11")
def test_roles_that_agree_or_stand_alone(component: str, worker_type: str | None, role: Role) -> None:
    script = Script()
    script.worker(7, component, worker_type=worker_type)
    assert only(script).role is role
    routed = script.fleet.workers_of("tiny")
    assert bool(routed) == (role in (Role.PREFILL, Role.DECODE, Role.AGGREGATED))


@pytest.mark.req("RED-08")
def test_without_a_card_the_component_decides() -> None:
    for component, role in (("prefill", Role.PREFILL), ("decode", Role.DECODE), ("backend", Role.UNKNOWN)):
        script = Script()
        script.put(INST, instance_key(7, component), endpoint(7, component))
        assert only(script).role is role and not only(script).has_card


@pytest.mark.parametrize("said", ["decode", "aggregated", "encode"])
@pytest.mark.req("RED-06")
@pytest.mark.field("B-014", "B-130")
def test_a_worker_whose_component_and_card_disagree_is_set_apart_with_both_roles_named(said: str) -> None:
    script = Script()
    script.worker(7, "prefill", worker_type=said)
    assert not script.fleet.workers
    excluded = [
        n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.kind.label == "excluded"
    ]
    assert len(excluded) == 1 and excluded[0].identity == f"{NS}/7"
    assert "prefill" in excluded[0].what and said in excluded[0].what
    assert [key for key, _ in script.fold.state.registry.conflicts()] == [WorkerKey(NS, 7)]
    script.put(CARDS, instance_key(7, "prefill"), card(7, "prefill", worker_type="prefill"))
    assert only(script).role is Role.PREFILL and not script.fold.state.registry.conflicts()


@pytest.mark.req("DUP-02", "DUP-07")
def test_an_instance_id_claimed_twice_makes_no_worker_until_one_is_left() -> None:
    for order in ((0, 1), (1, 0)):
        claims = [(instance_key(7), endpoint(7)), (instance_key(7, "other"), endpoint(7, "other"))]
        script = Script()
        for index in order:
            script.put(INST, *claims[index])
        assert not script.fleet.workers
        script.delete(INST, claims[order[0]][0])
        assert only(script).component == ("other" if order[0] == 0 else "backend")


@pytest.mark.req("DUP-03")
def test_base_cards_claimed_twice_leave_a_worker_without_a_card() -> None:
    script = Script()
    script.worker(7, "prefill", worker_type="prefill")
    script.put(CARDS, "intruder", card(7, "prefill", worker_type="decode"))
    worker = only(script)
    assert not worker.has_card and worker.role is Role.PREFILL
    script.put(CARDS, "legacy", card(7, component="", name=""))
    assert not only(script).has_card, "a refused card is not replaced by a legacy one"
    script.delete(CARDS, "intruder")
    assert only(script).has_card


@pytest.mark.req("DUP-08")
def test_adapters_claimed_twice_leave_the_base_card_alone() -> None:
    script = Script()
    script.worker(7)
    for key in ("a", "b"):
        script.put(CARDS, key, card(7, suffix="lora"))
    assert only(script).has_card and script.notices[-1].kind.label == "duplicate"  # type: ignore[union-attr]


@pytest.mark.req("DUP-04", "LOAD-07")
@pytest.mark.field("B-070")
def test_a_publisher_claimed_twice_is_no_publisher_until_one_is_left() -> None:
    script = Script()
    script.publisher(9)
    assert [p.key for p in script.fleet.publishers] == [PublisherKey(NS, 9)]
    script.put(CHANNELS, channel_key(9, "other"), channel(9, "other", port=6000))
    assert not script.fleet.publishers
    script.delete(CHANNELS, channel_key(9))
    assert [str(one.address) for one in script.fleet.publishers] == ["tcp://10.0.0.1:6000"]


@pytest.mark.req("DUP-08", "LOAD-06")
def test_one_publisher_id_may_stand_for_a_channel_of_each_topic_and_its_source() -> None:
    script = Script()
    script.publisher(9, topic="kv_metrics")
    script.publisher(9, topic="kv-events")
    script.publisher(9, topic="forward-pass-metrics")
    script.put(SOURCES, channel_key(9, topic="kv-events"), source(9, 7, 3))
    assert [(p.topic, p.key.publisher_id) for p in script.fleet.publishers] == [
        ("kv-events", 9),
        ("kv_metrics", 9),
    ]
    assert script.fleet.binding_of(PublisherKey(NS, 9)) == RankBinding(7, 3)
    assert not [n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.level == "warning"]


def test_a_source_claimed_twice_binds_nothing() -> None:
    script = Script()
    script.put(SOURCES, "a", source(9, 7, 0))
    script.put(SOURCES, "b", source(9, 7, 1))
    assert script.fleet.binding_of(PublisherKey(NS, 9)) is None
    script.delete(SOURCES, "a")
    assert script.fleet.binding_of(PublisherKey(NS, 9)) == RankBinding(7, 1)


@pytest.mark.req("RED-15", "RED-16")
@pytest.mark.field("B-011")
def test_one_id_in_two_namespaces_is_two_workers_whatever_the_values_claim() -> None:
    script = Script()
    for namespace in ("prod", "canary"):
        script.worker(7, namespace=namespace, model=namespace)
    assert list(script.fleet.workers) == [WorkerKey("canary", 7), WorkerKey("prod", 7)]
    assert [w.model for w in script.fleet.workers.values()] == ["canary", "prod"]
    assert not [n for n in script.all_notices if isinstance(n, DiscoveryNotice) and n.level == "warning"]


@pytest.mark.req("RED-15")
def test_the_id_of_the_value_is_the_worker_and_the_disagreement_is_counted() -> None:
    script = Script()
    script.put(INST, instance_key(6), endpoint(7))
    assert list(script.fleet.workers) == [WorkerKey(NS, 7)]
    assert [n.kind.label for n in script.notices if isinstance(n, DiscoveryNotice)] == ["put", "mismatch"]


@pytest.mark.req("RED-22")
@pytest.mark.field("B-020")
def test_two_halves_of_a_data_parallel_group_own_their_own_ranks() -> None:
    """B-020: ranks of an instance are those its own card declares, whatever its siblings say."""
    script = Script()
    for instance_id, start in ((1, 0), (2, 8)):
        script.worker(instance_id, runtime={"data_parallel_start_rank": start, "data_parallel_size": 8})
    assert [[*worker.ranks()] for worker in script.fleet.workers.values()] == [[*range(8)], [*range(8, 16)]]
    assert not script.fleet.is_live(NS, 1, 8) and not script.fleet.is_live(NS, 2, 7)


@pytest.mark.field("B-003", "B-017")
def test_a_worker_without_a_card_serves_no_model_until_the_card_comes() -> None:
    """B-003, B-017: it is visible, and routable only when record and card are both known."""
    script = Script()
    script.put(INST, instance_key(7, "decode"), endpoint(7, "decode"))
    assert only(script).role is Role.DECODE and script.fleet.models() == ()
    script.put(CARDS, instance_key(7, "decode"), card(7, "decode", worker_type="decode"))
    assert script.fleet.models() == ("tiny",)
    script.delete(CARDS, instance_key(7, "decode"))
    assert script.fleet.models() == () and len(script.fleet.workers) == 1
