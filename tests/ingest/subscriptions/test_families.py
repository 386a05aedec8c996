"""Which publishers each family listens to, and what an engine goes by."""

from __future__ import annotations

import pytest

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.engine_bindings import EngineBindings
from ingest.subscriptions.engine_stream import EngineStream
from ingest.subscriptions.event_stream import EVENT_PLAN
from ingest.subscriptions.families import (
    ENGINE_COMPONENT,
    KV_FAMILY,
    LOAD_FAMILY,
    Wanted,
    admission_order,
    engine_publisher_id,
    kv_family,
)
from ingest.subscriptions.sample_stream import SAMPLE_PLAN
from projections.events.signals import Family
from projections.identity import PublisherKey
from tests.ingest.subscriptions.network import fleet_of, publisher
from tests.ingest.subscriptions.stream_host import FakeHost
from tests.ingest.wire.engine_batches import SOURCE

FLEET = fleet_of(
    publisher(3),
    publisher(1, topic="kv-events"),
    publisher(2, topic="other"),
    publisher(4, topic="kv-events"),
)
ENGINES = SubscriptionSettings(engine_sources=(SOURCE,))


def ids(wanted: list[Wanted]) -> list[int]:
    return [one.publisher.key.publisher_id for one in wanted]


@pytest.mark.req("KVX-02")
def test_each_family_wants_the_publishers_of_its_topic() -> None:
    assert ids(LOAD_FAMILY.wanted(FLEET, ENGINES)) == [3]
    assert ids(KV_FAMILY.wanted(FLEET, SubscriptionSettings())) == [1, 4]
    assert (LOAD_FAMILY.family, KV_FAMILY.family) == (Family.LOAD, Family.KV)
    (sample,), (event, _) = (
        LOAD_FAMILY.wanted(FLEET, ENGINES),
        KV_FAMILY.wanted(FLEET, SubscriptionSettings()),
    )
    assert (LOAD_FAMILY.stream(sample), KV_FAMILY.stream(event)) == (SAMPLE_PLAN, EVENT_PLAN)


def test_an_engine_is_a_publisher_of_its_own_among_the_others() -> None:
    wanted = KV_FAMILY.wanted(FLEET, ENGINES)
    assert ids(wanted) == sorted([1, 4, engine_publisher_id(SOURCE.endpoint)])
    (engine,) = [one for one in wanted if one.source is not None]
    assert engine.publisher[:2] == (PublisherKey("prod", engine_publisher_id(SOURCE.endpoint)), "kv-events")
    assert (engine.publisher.component, engine.publisher.address) == (ENGINE_COMPONENT, SOURCE.endpoint)
    plan = KV_FAMILY.stream(engine)
    assert isinstance(plan.make(FakeHost()), EngineStream)


def test_an_engine_that_finds_its_worker_is_listened_to_like_one_that_names_it() -> None:
    found = SOURCE._replace(instance_id=None)
    bindings = EngineBindings(lambda _: None, lambda: 0)
    bindings.replace([found])
    family = kv_family(bindings)
    named, finding = (
        family.wanted(FLEET, ENGINES),
        family.wanted(FLEET, SubscriptionSettings(engine_sources=(found,))),
    )
    assert ids(finding) == ids(named)
    assert isinstance(family.stream(finding[-1]).make(FakeHost()), EngineStream)


def test_the_number_of_an_engine_is_its_address_and_never_changes() -> None:
    assert engine_publisher_id("tcp://10.0.0.7:5557") == 7_987_029_809_570_808
    assert engine_publisher_id("tcp://10.0.0.7:5557") < 2**53
    assert engine_publisher_id("tcp://10.0.0.7:5557") != engine_publisher_id("tcp://10.0.0.7:5558")


def test_a_relay_with_the_number_of_an_engine_stands_in_its_place() -> None:
    fleet = fleet_of(publisher(engine_publisher_id(SOURCE.endpoint), topic="kv-events"))
    (one,) = KV_FAMILY.wanted(fleet, ENGINES)
    assert one.source is None


def test_admission_is_by_number_over_all_namespaces() -> None:
    keys = [PublisherKey("b", 1), PublisherKey("a", 2), PublisherKey("a", 1)]
    assert sorted(keys, key=admission_order) == [
        PublisherKey("a", 1),
        PublisherKey("b", 1),
        PublisherKey("a", 2),
    ]
