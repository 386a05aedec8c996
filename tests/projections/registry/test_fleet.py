"""The published fleet: a value in canonical order that never changes."""

from __future__ import annotations

import gc
import weakref

import pytest

from projections.events.discovery import Keyspace
from projections.identity import WorkerKey
from tests.projections.fleet_script import NS, Script, instance_key


def test_workers_come_in_canonical_order_whatever_the_order_of_puts() -> None:
    script = Script()
    for namespace, instance_id in (("b", 2), ("a", 30), ("b", 1), ("a", 4)):
        script.worker(instance_id, namespace=namespace)
    expected = [("a", 4), ("a", 30), ("b", 1), ("b", 2)]
    assert list(script.fleet.workers) == expected
    assert [worker.key for worker in script.fleet.workers_of("tiny")] == expected


def test_workers_of_a_model_are_those_that_are_routed_to() -> None:
    script = Script()
    script.worker(1, worker_type="decode", model="a")
    script.worker(2, worker_type="prefill", model="a")
    script.worker(3, worker_type="encode", model="a")
    script.worker(4, worker_type=None, model="a")
    script.worker(5, model="b")
    assert [worker.key.instance_id for worker in script.fleet.workers_of("a")] == [1, 2]
    assert script.fleet.models() == ("a", "b") and script.fleet.workers_of("c") == ()
    assert script.fleet.workers_of("a") is script.fleet.workers_of("a"), "made once a generation"


@pytest.mark.req("RED-22")
def test_a_rank_is_live_while_its_worker_declares_it() -> None:
    script = Script()
    script.worker(7, runtime={"data_parallel_start_rank": 2, "data_parallel_size": 4})
    live = [rank for rank in range(10) if script.fleet.is_live(NS, 7, rank)]
    assert live == [2, 3, 4, 5]
    assert not script.fleet.is_live(NS, 8, 2) and not script.fleet.is_live("other", 7, 2)
    registry = script.fold.state.registry
    assert [rank for rank in range(10) if registry.is_live(NS, 7, rank)] == live


@pytest.mark.req("RED-18", "RED-21")
def test_a_fleet_that_somebody_holds_never_changes() -> None:
    script = Script()
    script.worker(7)
    held = script.fleet
    script.worker(8)
    script.delete(Keyspace.INSTANCES, instance_key(7))
    assert list(held.workers) == [WorkerKey(NS, 7)] and list(script.fleet.workers) == [WorkerKey(NS, 8)]
    assert held.generation < script.fleet.generation
    with pytest.raises(TypeError):
        held.workers[WorkerKey(NS, 9)] = held.workers[WorkerKey(NS, 7)]  # type: ignore[index]


@pytest.mark.req("RED-20")
def test_a_fleet_goes_with_its_last_reader() -> None:
    script = Script()
    script.worker(7)
    held = script.fleet
    gone = weakref.ref(held)
    script.worker(8)
    assert script.fleet is not held
    del held
    gc.collect()
    assert gone() is None


@pytest.mark.req("RED-13", "RED-17")
def test_a_field_that_nobody_reads_yet_is_in_the_opaque_card_which_is_shared() -> None:
    script = Script()
    script.worker(7, of_next_year={"x": 1})
    card = script.fleet.card_of(WorkerKey(NS, 7))
    assert card is not None and b"of_next_year" in card
    script.worker(8)
    assert script.fleet.card_of(WorkerKey(NS, 7)) is card
