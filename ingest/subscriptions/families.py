"""The two families of subscriptions: which publishers each listens to, and how.

    load   publishers of `kv_metrics`
    kv     publishers of `kv-events`, and engines that configuration names (`engine_sources`)

An engine has no record in the fleet and so no publisher id. It gets one from its address, in the
range of the others (53 bits), the same in every process: so the log and the status can name it, and
what it told before a restart of this process is known to be its own.

Sources: requirement rows LOAD-04, LOAD-23, KVX-02, KVX-04; wire contract 3.3 and 5.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import xxhash

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.engine_bindings import EngineBindings
from ingest.subscriptions.engine_stream import engine_plan
from ingest.subscriptions.event_stream import EVENT_PLAN
from ingest.subscriptions.message_stream import StreamPlan
from ingest.subscriptions.sample_stream import SAMPLE_PLAN
from ingest.wire.engine_events import EngineSource
from projections.events.signals import Family
from projections.identity import PublisherKey
from projections.registry.fleet import Fleet, Publisher

PUBLISHER_ID_BITS: Final = 53
ENGINE_COMPONENT: Final = "engine"  # in rows and facts, where publishers have their worker's


class Wanted(NamedTuple):
    """A publisher to listen to. Another value begins its subscription anew."""

    publisher: Publisher
    source: EngineSource | None = None


class FamilyPlan(NamedTuple):
    """One family. wanted: of the fleet and the settings, in ascending publisher id."""

    family: Family
    wanted: Callable[[Fleet, SubscriptionSettings], list[Wanted]]
    stream: Callable[[Wanted], StreamPlan]


def engine_publisher_id(endpoint: str) -> int:
    """The number that an engine at tcp://host:port goes by: 53 bits of the xxh3-64 of that text."""
    digest: int = xxhash.xxh3_64_intdigest(endpoint.encode())
    return digest & ((1 << PUBLISHER_ID_BITS) - 1)


def admission_order(key: PublisherKey) -> tuple[int, str]:
    """The order of admission: ids first, over all namespaces."""
    return key.publisher_id, key.namespace


def _of_topic(fleet: Fleet, topic: bytes) -> list[Wanted]:
    name = topic.decode()
    return [Wanted(publisher) for publisher in fleet.publishers if publisher.topic == name]


def _samples(fleet: Fleet, settings: SubscriptionSettings) -> list[Wanted]:
    return sorted(_of_topic(fleet, SAMPLE_PLAN.topic), key=_order)


def _events(fleet: Fleet, settings: SubscriptionSettings) -> list[Wanted]:
    """Relayed ones first: one that goes by the same number as an engine stands in its place."""
    found = {one.publisher.key: one for one in map(_engine, settings.engine_sources)}
    found.update((one.publisher.key, one) for one in _of_topic(fleet, EVENT_PLAN.topic))
    return sorted(found.values(), key=_order)


def _engine(source: EngineSource) -> Wanted:
    key = PublisherKey(source.namespace, engine_publisher_id(source.endpoint))
    topic = EVENT_PLAN.topic.decode()
    return Wanted(Publisher(key, topic, ENGINE_COMPONENT, None, source.endpoint), source)


def _order(one: Wanted) -> tuple[int, str]:
    return admission_order(one.publisher.key)


def kv_family(bindings: EngineBindings | None = None) -> FamilyPlan:
    """The family of block events. bindings: find the workers of engines that do not name theirs."""

    def event_plan(one: Wanted) -> StreamPlan:
        return EVENT_PLAN if one.source is None else engine_plan(one.source, bindings)

    return FamilyPlan(Family.KV, _events, event_plan)


LOAD_FAMILY: Final = FamilyPlan(Family.LOAD, _samples, lambda one: SAMPLE_PLAN)
KV_FAMILY: Final = kv_family()  # where all engines name their workers
