"""What runs follows the fleet, whatever became of it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.supervisor import Subscriptions
from projections.bounds import SUBSCRIPTIONS_MAX
from projections.events.held import PublisherHeld
from projections.events.signals import Family, SubscriptionState, Transport
from projections.identity import PublisherKey
from projections.registry.fleet import Publisher
from tests.ingest.subscriptions.network import (
    FakeConnector,
    Heard,
    fleet_of,
    message,
    never_late,
    publisher,
    settle,
)

pytestmark = pytest.mark.looptime


@pytest.fixture
def connector() -> FakeConnector:
    return FakeConnector()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@contextlib.asynccontextmanager
async def following(
    connector: FakeConnector, heard: Heard, *publishers: Publisher, **settings: Any
) -> AsyncIterator[Subscriptions]:
    """Subscriptions that follow a first fleet, their first dials over."""
    subscriptions = Subscriptions(
        heard.facts.append,
        SubscriptionSettings(),
        **{
            "on_notice": heard.notices.append,
            "random_unit": lambda: 1.0,
            "clock_s": never_late,
            "make_connector": lambda asked: connector,
            **settings,
        },
    )
    subscriptions.follow(fleet_of(*publishers))
    await settle()
    try:
        yield subscriptions
    finally:
        await subscriptions.stop()


def held(publisher_id: int, state: SubscriptionState, connection: int) -> PublisherHeld:
    return PublisherHeld(
        int(Family.LOAD), "prod", publisher_id, "decode", int(state), connection, 1, "connected", None, 0
    )


def told(heard: Heard) -> list[tuple[int, str, str]]:
    """(publisher, state, reason) of each change."""
    return [(fact.publisher_id, *what) for fact, what in zip(heard.changes, heard.states, strict=True)]


@pytest.mark.req("LOAD-21")
async def test_publishers_that_come_and_go_are_followed(connector: FakeConnector, heard: Heard) -> None:
    async with following(connector, heard, publisher(1), publisher(2)) as subscriptions:
        subscriptions.follow(fleet_of(publisher(2), publisher(3)))
        await settle()
        assert [row.key.publisher_id for row in subscriptions.rows()] == [2, 3]
        assert [peer.is_closed for peer in connector.peers] == [True, False, False]
    assert (1, "ended", "departed") in told(heard)
    assert (2, "backoff", "closed") not in told(heard)


async def test_the_same_publishers_change_nothing(connector: FakeConnector, heard: Heard) -> None:
    async with following(connector, heard, publisher(1)) as subscriptions:
        before = list(heard.facts)
        for _ in range(3):
            subscriptions.follow(fleet_of(publisher(1), publisher(9, topic="kv-events")))
        await settle()
        assert heard.facts == before
        assert len(connector.peers) == 1


async def test_other_topics_are_not_subscribed(connector: FakeConnector, heard: Heard) -> None:
    async with following(connector, heard, publisher(1, topic="kv-events")) as subscriptions:
        assert subscriptions.rows() == []
        assert connector.peers == []


@pytest.mark.req("LOAD-21")
@pytest.mark.field("B-130")
async def test_a_publisher_at_another_address_is_begun_anew_with_the_next_connection(
    connector: FakeConnector, heard: Heard
) -> None:
    async with following(connector, heard, publisher(1)) as subscriptions:
        subscriptions.follow(fleet_of(publisher(1, address="tcp://10.0.0.2:9")))
        await settle()
        assert connector.peers[0].is_closed
        assert connector.peer.address == "tcp://10.0.0.2:9"
        connector.peer.say(message(0, publisher_id=1))
        assert [fact.connection for fact in heard.samples] == [2]
    assert told(heard)[2:4] == [(1, "connecting", "moved"), (1, "connected", "connected")]


async def test_one_id_in_two_namespaces_is_two_publishers(connector: FakeConnector, heard: Heard) -> None:
    async with following(connector, heard, publisher(1), publisher(1, namespace="test")) as subscriptions:
        assert [row.key.namespace for row in subscriptions.rows()] == ["prod", "test"]
        assert len(connector.peers) == 2


@pytest.mark.req("LOAD-23")
async def test_the_lowest_ids_are_admitted_and_the_rest_wait(connector: FakeConnector, heard: Heard) -> None:
    everyone = [publisher(n) for n in range(10, 10 + SUBSCRIPTIONS_MAX + 1)]
    largest = everyone[-1].key.publisher_id
    async with following(connector, heard, *everyone) as subscriptions:
        await asyncio.sleep(1)
        assert len(connector.peers) == SUBSCRIPTIONS_MAX
        assert [
            row.key.publisher_id for row in subscriptions.rows() if row.state is SubscriptionState.PENDING
        ] == [largest]
        assert told(heard)[0] == (largest, "pending", "over_limit")
        counts = {state.label: count for (state, _), count in subscriptions.counts().items()}
        assert counts == {"pending": 1, "connecting": 0, "connected": SUBSCRIPTIONS_MAX, "backoff": 0}

        # a lower id comes: the highest that runs makes room, its samples must go
        heard.facts.clear()
        subscriptions.follow(fleet_of(publisher(3), *everyone))
        assert told(heard) == [
            (largest - 1, "ended", "over_limit"),
            (largest - 1, "pending", "over_limit"),
            (3, "connecting", "started"),
        ]

        # two go: both that waited are admitted
        heard.facts.clear()
        subscriptions.follow(fleet_of(*everyone[1:]))
        assert told(heard) == [
            (3, "ended", "departed"),
            (10, "ended", "departed"),
            (largest - 1, "connecting", "started"),
            (largest, "connecting", "started"),
        ]


async def test_one_that_waited_and_left_is_ended(connector: FakeConnector, heard: Heard) -> None:
    everyone = [publisher(n) for n in range(SUBSCRIPTIONS_MAX + 1)]
    async with following(connector, heard, *everyone) as subscriptions:
        heard.facts.clear()
        subscriptions.follow(fleet_of(*everyone[:-1]))
        assert told(heard) == [(SUBSCRIPTIONS_MAX, "ended", "departed")]


@pytest.mark.req("LOAD-21")
@pytest.mark.field("B-001")
async def test_tasks_that_do_not_end_hold_up_nobody(connector: FakeConnector, heard: Heard) -> None:
    """Fifty change at once, and every old task refuses to be cancelled."""
    stubborn = asyncio.Event()

    class Stubborn(FakeConnector):
        async def connect(self, address: str, protocol: asyncio.BaseProtocol) -> None:
            if address.startswith("tcp://10.0.0.9"):
                await super().connect(address, protocol)
                return
            while not stubborn.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await stubborn.wait()

    connector = Stubborn()
    async with following(connector, heard, *(publisher(n) for n in range(50))) as subscriptions:
        subscriptions.follow(fleet_of(*(publisher(n, address=f"tcp://10.0.0.9:{1 + n}") for n in range(50))))
        await asyncio.sleep(5.9)
        assert subscriptions.counts()[SubscriptionState.CONNECTED, Transport.DIRECT] == 50
        await asyncio.sleep(6)
        assert sum("does not end" in repr(notice) for notice in heard.notices) == 50
        stubborn.set()
        await settle()


async def test_stop_is_over_within_its_grace_and_says_that_nobody_is_connected(
    connector: FakeConnector, heard: Heard
) -> None:
    async with following(connector, heard, *(publisher(n) for n in range(20))) as subscriptions:
        begin_s = asyncio.get_running_loop().time()
        heard.facts.clear()
        await subscriptions.stop()
        assert asyncio.get_running_loop().time() - begin_s < 5
        assert [what[1:] for what in told(heard)] == [("backoff", "stopped")] * 20
        assert heard.notices == [], "an end that was asked for is no trouble to warn of"
        subscriptions.follow(fleet_of(publisher(99)))
        await settle()
        assert len(connector.peers) == 20
    assert all(peer.is_closed for peer in connector.peers)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.req("REL-03", "STORE-17")
async def test_other_settings_begin_all_anew_and_end_none(connector: FakeConnector, heard: Heard) -> None:
    second = FakeConnector()
    made = iter([connector, second])
    async with following(
        connector, heard, publisher(1), publisher(2), make_connector=lambda asked: next(made)
    ) as subscriptions:
        subscriptions.replace(SubscriptionSettings())  # the same
        heard.facts.clear()
        subscriptions.replace(SubscriptionSettings(allow=("10.0.0.0/8",)))
        await settle()
        assert all(peer.is_closed for peer in connector.peers)
        assert len(second.peers) == 2
        assert sorted(told(heard)) == [
            (1, "connected", "connected"),
            (1, "connecting", "settings_changed"),
            (2, "connected", "connected"),
            (2, "connecting", "settings_changed"),
        ]
        assert {fact.connection for fact in heard.changes if fact.state == SubscriptionState.CONNECTED} == {2}


async def test_settings_that_no_connector_has_change_nothing(connector: FakeConnector, heard: Heard) -> None:
    def make(asked: SubscriptionSettings) -> FakeConnector:
        if asked.transport is Transport.BROKER:
            raise ValueError("not here")
        return connector

    async with following(connector, heard, publisher(1), make_connector=make) as subscriptions:
        with pytest.raises(ValueError, match="not here"):
            subscriptions.replace(SubscriptionSettings(Transport.BROKER))
        assert subscriptions.settings == SubscriptionSettings()
        assert not connector.peer.is_closed


async def test_a_new_process_goes_on_from_what_the_fold_holds(connector: FakeConnector, heard: Heard) -> None:
    """Departed ones end first; the others stand anew, and no connection number comes twice."""
    rows = [held(1, SubscriptionState.CONNECTED, 7), held(2, SubscriptionState.CONNECTED, 3)]
    other_family = held(3, SubscriptionState.CONNECTED, 1)._replace(family=int(Family.KV))
    async with following(connector, heard, publisher(2), held=[*rows, other_family]):
        assert told(heard) == [
            (1, "ended", "departed"),
            (2, "connecting", "started"),
            (2, "connected", "connected"),
        ]
        assert [fact.connection for fact in heard.changes] == [7, 3, 4]


async def test_a_publisher_that_comes_back_gets_a_connection_number_of_its_own(
    connector: FakeConnector, heard: Heard
) -> None:
    async with following(connector, heard, publisher(1)) as subscriptions:
        for fleet in (fleet_of(), fleet_of(publisher(1))):
            subscriptions.follow(fleet)
            await settle()
        assert [fact.connection for fact in heard.changes] == [0, 1, 1, 1, 2]


@pytest.mark.field("B-138")
async def test_a_pause_of_this_process_cuts_everybody_before_a_byte_is_taken(
    connector: FakeConnector, heard: Heard
) -> None:
    paused_s = 0.0
    async with following(
        connector,
        heard,
        publisher(1),
        publisher(2),
        clock_s=lambda: asyncio.get_running_loop().time() + paused_s,
    ):
        await asyncio.sleep(3)
        connector.peers[0].say(message(1, publisher_id=1))
        paused_s = 1.5
        connector.peers[0].say(message(2, publisher_id=1))  # had waited in the socket
        assert [fact.sequence for fact in heard.samples] == [1]
        assert all(peer.is_closed for peer in connector.peers)
        assert told(heard)[4:] == [(1, "backoff", "stalled"), (2, "backoff", "stalled")]
        assert sum("stood still" in repr(notice) for notice in heard.notices) == 1
        await asyncio.sleep(5)
        assert len(connector.peers) == 4


async def test_a_pause_during_a_handshake_breaks_nothing(connector: FakeConnector, heard: Heard) -> None:
    connector.greets = False
    paused_s = 0.0
    async with following(
        connector, heard, publisher(1), clock_s=lambda: asyncio.get_running_loop().time() + paused_s
    ) as subscriptions:
        paused_s = 5.0
        connector.peer.greet()
        assert subscriptions.rows()[0].state is SubscriptionState.CONNECTED
        connector.peer.say(message(1, publisher_id=1))
        assert len(heard.samples) == 1


async def test_a_storm_of_dials_is_bounded(connector: FakeConnector, heard: Heard) -> None:
    connector.default = lambda address: asyncio.Event()  # none ever ends
    async with following(connector, heard, *(publisher(n) for n in range(1000))):
        assert len(connector.dialled_at_s) <= 64
        await asyncio.sleep(5.5)
        assert len(connector.dialled_at_s) <= 64 * 6
        await asyncio.sleep(15)
        assert len(connector.dialled_at_s) == 1000  # black holes do not shut the others out


@pytest.mark.req("LOAD-21")
async def test_any_churn_ends_with_what_the_last_fleet_says(connector: FakeConnector, heard: Heard) -> None:
    draw = random.Random(7)
    async with following(connector, heard) as subscriptions:
        for _ in range(300):
            wanted = [publisher(n, address=f"tcp://10.0.0.{draw.randrange(1, 4)}:5") for n in range(12)]
            wanted = [one for one in wanted if draw.random() < 0.6]
            subscriptions.follow(fleet_of(*wanted))
            if connector.peers and draw.random() < 0.5:
                draw.choice(connector.peers).hang_up()
            await asyncio.sleep(draw.choice((0, 0, 0.001, 0.2)))
        await asyncio.sleep(61)
        rows = subscriptions.rows()
        assert [(row.key, row.address) for row in rows] == [(one.key, one.address) for one in wanted]
        assert {row.state for row in rows} == {SubscriptionState.CONNECTED}
        assert sum(not peer.is_closed for peer in connector.peers) == len(wanted)
        assert len(subscriptions._ending) == 0
        per_publisher: dict[int, list[int]] = {}
        for fact in heard.changes:
            if fact.state == SubscriptionState.CONNECTED:
                per_publisher.setdefault(fact.publisher_id, []).append(fact.connection)
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in per_publisher.values())
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.req("ADM-05", "MET-06")
async def test_rows_and_counts_show_every_subscription(connector: FakeConnector, heard: Heard) -> None:
    connector.refuse(Reason.DENIED_ADDRESS)
    async with following(connector, heard, publisher(1)) as subscriptions:
        (row,) = subscriptions.rows()
        assert (row.family.label, row.key.publisher_id, row.key.namespace, row.component) == (
            "load",
            1,
            "prod",
            "decode",
        )
        assert (row.state.label, row.transport.label, row.reason) == ("backoff", "direct", "denied_address")
        counts = {
            (state.label, transport.label): n for (state, transport), n in subscriptions.counts().items()
        }
        assert counts == {
            ("pending", "direct"): 0,
            ("connecting", "direct"): 0,
            ("connected", "direct"): 0,
            ("backoff", "direct"): 1,
        }


@pytest.mark.req("EVS-16")
async def test_connections_get_the_numbers_that_a_takeover_gives_them(
    connector: FakeConnector, heard: Heard
) -> None:
    async with following(connector, heard, publisher(1), publisher(2)) as subscriptions:
        first = subscriptions.rows()[0].key
        told = len(heard.facts)
        subscriptions.renumber({first: 6, PublisherKey("gone", 3): 4})
        assert [row.connection for row in subscriptions.rows()] == [7, 1]
        assert len(heard.facts) == told, "the takeover has told it"
        subscriptions.follow(fleet_of(publisher(2)))
        subscriptions.follow(fleet_of(publisher(1), publisher(2)))
        await settle()
        assert [row.connection for row in subscriptions.rows()] == [8, 1]
