"""Subscriptions to block events: on and off with the fold's mode, and under a cap of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.engine_bindings import EngineBindings
from ingest.subscriptions.families import KV_FAMILY, FamilyPlan, engine_publisher_id, kv_family
from ingest.subscriptions.supervisor import Subscriptions
from ingest.subscriptions.worker_places import WorkerPlace
from ingest.wire.zmtp_frames import encode_frame, encode_message
from projections.bounds import SUBSCRIPTIONS_MAX
from projections.events.held import PublisherHeld
from projections.events.signals import Family, SubscriptionState
from projections.identity import WorkerKey
from projections.notices import FrameResult
from projections.registry.fleet import Fleet, Publisher
from tests.ingest.subscriptions.network import (
    FakeConnector,
    Heard,
    fleet_of,
    never_late,
    publisher,
    settle,
)
from tests.ingest.wire.engine_batches import SOURCE, batch, engine_message
from tests.ingest.wire.kv_messages import event, removed
from tests.ingest.wire.kv_messages import message as kv_message
from tests.ingest.wire.kv_messages import told as events_in

pytestmark = pytest.mark.looptime
ENGINE_ID = engine_publisher_id(SOURCE.endpoint)


def events_of(publisher_id: int, **fields: Any) -> Publisher:
    return publisher(publisher_id, topic="kv-events", component="backend", **fields)


def message(number: int, publisher_id: int = 1, blocks: int = 1) -> bytes:
    """One message as bytes of the wire."""
    payload = [event(number + 1, removed(*(2**63 + n for n in range(blocks))))]
    return encode_message(kv_message(payload, number, publisher_id))


@contextlib.asynccontextmanager
async def following(
    connector: FakeConnector,
    heard: Heard,
    fleet: Fleet,
    *,
    is_wanted: bool = True,
    family: FamilyPlan = KV_FAMILY,
    **settings: Any,
) -> AsyncIterator[Subscriptions]:
    asked = SubscriptionSettings(engine_sources=settings.pop("engine_sources", ()))
    subscriptions = Subscriptions(
        heard.facts.append,
        asked,
        family,
        on_notice=heard.notices.append,
        random_unit=lambda: 1.0,
        clock_s=never_late,
        make_connector=lambda _: connector,
        **settings,
    )
    subscriptions.follow(fleet, is_wanted)
    await settle()
    try:
        yield subscriptions
    finally:
        await subscriptions.stop()


@pytest.fixture
def connector() -> FakeConnector:
    return FakeConnector()


@pytest.fixture
def heard() -> Heard:
    return Heard()


def told(heard: Heard) -> list[tuple[int, str, str]]:
    return [(fact.publisher_id, *what) for fact, what in zip(heard.changes, heard.states, strict=True)]


@pytest.mark.req("KVX-02", "ADM-05")
async def test_publishers_of_block_events_are_subscribed_in_a_family_of_their_own(
    connector: FakeConnector, heard: Heard
) -> None:
    fleet = fleet_of(publisher(1), events_of(1), events_of(2))
    async with following(connector, heard, fleet) as subscriptions:
        assert connector.peer.written.endswith(encode_frame(b"\x01kv-events"))
        assert [(row.family, row.key.publisher_id, row.component) for row in subscriptions.rows()] == [
            (Family.KV, 1, "backend"),
            (Family.KV, 2, "backend"),
        ]
        connector.peers[0].say(message(5))
    assert {fact.family for fact in heard.changes} == {Family.KV}
    assert [(fact.publisher_id, fact.sequence) for fact in heard.batches] == [(1, 5)]


@pytest.mark.req("KVX-04")
async def test_the_cap_is_the_familys_own(connector: FakeConnector, heard: Heard) -> None:
    everyone = [events_of(n) for n in range(SUBSCRIPTIONS_MAX + 1)]
    load = [publisher(n) for n in range(500)]
    async with following(connector, heard, fleet_of(*everyone, *load)) as subscriptions:
        await asyncio.sleep(1)
        counts = {state.label: count for (state, _), count in subscriptions.counts().items()}
        assert counts == {"pending": 1, "connecting": 0, "connected": SUBSCRIPTIONS_MAX, "backoff": 0}


@pytest.mark.req("KVX-20")
async def test_a_fold_that_indexes_nothing_ends_them_all_and_another_starts_them_anew(
    connector: FakeConnector, heard: Heard
) -> None:
    fleet = fleet_of(events_of(1), events_of(2))
    async with following(connector, heard, fleet) as subscriptions:
        heard.facts.clear()
        subscriptions.follow(fleet, is_wanted=False)
        assert told(heard) == [(1, "ended", "departed"), (2, "ended", "departed")]
        assert subscriptions.rows() == []
        assert all(peer.is_closed for peer in connector.peers)
        subscriptions.follow(fleet_of(events_of(1), events_of(2), events_of(3)), is_wanted=False)
        assert subscriptions.rows() == []
        subscriptions.follow(fleet, is_wanted=True)
        await settle()
        assert [row.connection for row in subscriptions.rows()] == [2, 2]


@pytest.mark.req("KVX-20")
async def test_what_the_fold_holds_of_a_former_process_is_ended_where_none_is_wanted(
    connector: FakeConnector, heard: Heard
) -> None:
    held = [
        PublisherHeld(
            int(family), "prod", 1, "backend", int(SubscriptionState.CONNECTED), 7, 1, "connected", None, 0
        )
        for family in Family
    ]
    async with following(connector, heard, fleet_of(events_of(1)), is_wanted=False, held=held):
        assert [(fact.family, fact.connection) for fact in heard.changes] == [(Family.KV, 7)]
        assert told(heard) == [(1, "ended", "departed")]


async def test_an_engine_is_subscribed_by_its_topic_and_told_by_its_number(
    connector: FakeConnector, heard: Heard
) -> None:
    source = SOURCE._replace(topic="kv@")
    async with following(connector, heard, fleet_of(events_of(1)), engine_sources=(source,)) as subscriptions:
        rows = {row.key.publisher_id: row for row in subscriptions.rows()}
        assert rows[ENGINE_ID].address == SOURCE.endpoint
        (peer,) = [one for one in connector.peers if one.address == SOURCE.endpoint]
        assert peer.written.endswith(encode_frame(b"\x01kv@"))
        peer.say(encode_message(engine_message(3, batch(["AllBlocksCleared"]), b"kv@pod")))
    assert [(fact.publisher_id, fact.namespace) for fact in heard.batches] == [(ENGINE_ID, "prod")]


async def test_an_engine_finds_its_worker_by_the_address_that_its_name_led_to(
    connector: FakeConnector, heard: Heard
) -> None:
    source = SOURCE._replace(endpoint="tcp://engine.fleet:5557", instance_id=None)
    bindings = EngineBindings(heard.notices.append, lambda: 0)
    bindings.replace([source])
    bindings.follow([place(9, "10.0.0.7"), place(10, "10.0.0.8")])
    connector.peer_of = lambda _: "10.0.0.7"
    fleet, family = fleet_of(), kv_family(bindings)
    async with following(connector, heard, fleet, family=family, engine_sources=(source,)) as subscriptions:
        assert [row.finds_worker for row in subscriptions.rows()] == [True]
        connector.peer.say(encode_message(engine_message(1, batch(["AllBlocksCleared"]))))
        connector.peer_of = lambda _: "10.0.0.8"
        connector.peer.hang_up()
        await asyncio.sleep(1)
        connector.peer.say(encode_message(engine_message(1, batch(["AllBlocksCleared"]))))
        bindings.follow([])
        connector.peer.say(encode_message(engine_message(2, batch(["AllBlocksCleared"]))))
        subscriptions.follow(fleet, is_wanted=False)
        heard.facts, seen = [], heard.facts
        bindings.follow([place(10, "10.0.0.8")])
        assert heard.facts == [], "who is not listened to any more tells nothing"
        heard.facts = seen
    assert [one.worker_id for fact in heard.batches for one in events_in(fact.heads, fact.hashes)] == [9, 10]
    assert [(state, reason) for _, state, reason in told(heard)] == [
        ("connecting", "started"), ("connected", "connected"), ("ended", "rebound"), ("connected", "rebound"),
        ("backoff", "closed"), ("connected", "connected"), ("ended", "rebound"), ("connected", "rebound"),
        ("ended", "rebound"), ("connected", "rebound"), ("ended", "departed"),
    ]  # fmt: skip
    assert [fact.result for fact in heard.refused] == [FrameResult.IDENTITY_MISMATCH]


def place(instance_id: int, host: str) -> WorkerPlace:
    return WorkerPlace(WorkerKey("prod", instance_id), host, "backend", "m", None, range(1))


@pytest.mark.req("REL-03")
async def test_a_change_of_engines_restarts_those_alone(connector: FakeConnector, heard: Heard) -> None:
    other = SOURCE._replace(endpoint="tcp://10.0.0.8:5557")
    async with following(
        connector, heard, fleet_of(events_of(1)), engine_sources=(SOURCE, other)
    ) as subscriptions:
        heard.facts.clear()
        larger = SOURCE._replace(block_size=32)
        subscriptions.replace(SubscriptionSettings(engine_sources=(larger,)))
        await asyncio.sleep(1)
        assert sorted(told(heard)) == sorted(
            [
                (engine_publisher_id(other.endpoint), "ended", "departed"),
                (ENGINE_ID, "connecting", "moved"),
                (ENGINE_ID, "connected", "connected"),
            ]
        )
        assert sum(not peer.is_closed for peer in connector.peers) == 2


@pytest.mark.field("B-071")
async def test_while_the_log_sheds_sockets_are_not_read_and_nothing_is_lost_after(
    connector: FakeConnector, heard: Heard
) -> None:
    shedding = [True]
    async with following(connector, heard, fleet_of(events_of(1)), is_shedding=lambda: shedding[0]):
        peer = connector.peer
        peer.say(b"".join(map(message, range(200))))
        assert peer.is_held
        await asyncio.sleep(30)
        peer.say(message(200))
        assert heard.batches == []
        shedding[0] = False
        await asyncio.sleep(0.5)
        assert not peer.is_held
        assert [fact.sequence for fact in heard.batches] == [*range(201)]


async def test_a_session_that_ends_while_it_is_held_is_followed_by_one_that_is_not(
    connector: FakeConnector, heard: Heard
) -> None:
    shedding = [True]
    async with following(connector, heard, fleet_of(events_of(1)), is_shedding=lambda: shedding[0]):
        connector.peer.say(message(0))
        connector.peer.hang_up()
        await asyncio.sleep(1)
        shedding[0] = False
        connector.peer.say(message(7))
        await asyncio.sleep(1)
        assert [(fact.connection, fact.sequence) for fact in heard.batches] == [(2, 7)]
        assert not connector.peer.is_held


@pytest.mark.req("KVX-19")
async def test_a_refused_frame_names_its_family(connector: FakeConnector, heard: Heard) -> None:
    async with following(connector, heard, fleet_of(events_of(1))):
        connector.peer.say(encode_message(kv_message(b"\xc1", 0, 1)) + message(1))
        assert [(fact.family, fact.publisher_id) for fact in heard.refused] == [(Family.KV, 1)]
        assert not connector.peer.is_closed
    assert len(heard.batches) == 1


@pytest.mark.parametrize(("before", "after"), [(42, 43), (42, None), (None, 42)])
async def test_an_entry_that_names_another_worker_ends_what_was_told_of_the_one_before(
    connector: FakeConnector, heard: Heard, before: int | None, after: int | None
) -> None:
    source = SOURCE._replace(instance_id=before)
    async with following(connector, heard, fleet_of(), engine_sources=(source,)) as subscriptions:
        heard.facts.clear()
        changed = SOURCE._replace(instance_id=after)
        subscriptions.replace(SubscriptionSettings(engine_sources=(changed,)))
        await settle()
        assert [what for _, *what in told(heard)][:2] == [["ended", "rebound"], ["connecting", "moved"]]
        heard.facts.clear()
        larger = changed._replace(block_size=32)
        subscriptions.replace(SubscriptionSettings(engine_sources=(larger,)))
        assert [what for _, *what in told(heard)] == [["connecting", "moved"]]
