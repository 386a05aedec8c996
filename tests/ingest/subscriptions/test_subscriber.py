"""What one publisher's subscription says to the log, for whatever the publisher does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ingest.subscriptions.connectors import ConnectFailed
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.sample_stream import SAMPLE_PLAN, SampleStream
from ingest.subscriptions.subscriber import Subscriber
from ingest.wire.zmtp_frames import GREETING, encode_frame, encode_message, encode_ready
from projections.events.signals import SubscriptionState
from projections.notices import FrameResult
from tests.ingest.subscriptions.network import (
    FakeConnector,
    Heard,
    message,
    ports,
    publisher,
    settle,
    unreadable,
)

pytestmark = pytest.mark.looptime

FIVE_FRAMES = encode_frame(b"kv_metrics", 1) + encode_frame(b"", 1) * 3 + encode_frame(b"")


@contextlib.asynccontextmanager
async def running(
    connector: FakeConnector, heard: Heard, connection: int = 0, **settings: Any
) -> AsyncIterator[Subscriber]:
    """A subscriber whose first dial is over."""
    subscriber = Subscriber(publisher(), connection, ports(heard, connector, **settings), SAMPLE_PLAN)
    subscriber.start(Reason.STARTED)
    task = asyncio.ensure_future(subscriber.run())
    await settle()
    try:
        yield subscriber
    finally:
        subscriber.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def connector() -> FakeConnector:
    return FakeConnector()


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def test_a_connection_is_told_with_the_next_number(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard, connection=6):
        assert heard.states == [("connecting", "started"), ("connected", "connected")]
        assert [fact.connection for fact in heard.changes] == [6, 7]


async def test_a_lone_sample_is_told_at_once_with_all_its_values(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        connector.peer.say(message(3, rank=2, used=99))
        (told,) = heard.samples
    assert told == ("prod", 5, 1, 3, 3, 77, 2, None, None, 99, 1_700_000_000_000, None)


@pytest.mark.req("LOAD-19")
async def test_a_repeated_or_older_sequence_is_a_counted_duplicate(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        for sequence in (4, 4, 2, 5):
            connector.peer.say(message(sequence))
            await asyncio.sleep(0.01)
        assert heard.covered == [(4, 4), (5, 5)]
        await asyncio.sleep(2)
    assert [fact.result for fact in heard.refused] == [FrameResult.DUPLICATE] * 2
    assert sum(fact.frames for fact in heard.refused) == 2


@pytest.mark.req("STORE-14")
async def test_a_hole_in_the_numbers_stays_visible(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard):
        for sequence in (1, 2, 5):
            connector.peer.say(message(sequence))
            await asyncio.sleep(0.01)
    assert heard.covered == [(1, 1), (2, 2), (5, 5)]


@pytest.mark.req("STORE-14", "LOAD-13")
@pytest.mark.field("B-068")
async def test_a_refused_frame_fills_its_place_and_the_connection_stays(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        connector.peer.say(message(1))
        connector.peer.say(unreadable(2) + encode_message((b"kv_metrics", b"short")))
        await asyncio.sleep(0.01)
        connector.peer.say(message(3))
        assert not connector.peer.is_closed
    assert heard.covered == [(1, 1), (2, 3)]
    assert {fact.result for fact in heard.refused} == {FrameResult.MALFORMED}
    assert sum(fact.frames for fact in heard.refused) == 2


async def test_samples_of_one_read_step_are_merged_into_the_newest_of_each_rank(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        connector.peer.say(b"".join(message(n, rank=n % 2, used=n) for n in range(6)))
    assert heard.covered == [(0, 4), (5, 5)]
    assert [(fact.dp_rank, fact.kv_used_blocks) for fact in heard.samples] == [(0, 4), (1, 5)]


@pytest.mark.field("B-071")
async def test_a_flood_becomes_a_bounded_number_of_records(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard):
        for step in range(1000):  # a second of 100,000 samples
            connector.peer.say(b"".join(message(100 * step + n) for n in range(100)))
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
    assert len(heard.samples) < 600
    assert heard.samples[-1].sequence == 99_999
    joined = itertools.pairwise(heard.covered)
    assert all(later[0] == earlier[1] + 1 for earlier, later in joined)


@pytest.mark.field("B-071")
async def test_a_flood_over_many_ranks_is_bounded_and_what_was_missed_is_a_gap(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        for step in range(200):  # a fifth of a second, every sample of another rank
            connector.peer.say(b"".join(message(500 * step + n, rank=500 * step + n) for n in range(500)))
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        count = len(heard.samples)
        await asyncio.sleep(1)
    assert count < 3_000
    assert FrameResult.OVER_CAPACITY in {fact.result for fact in heard.refused}
    joined = itertools.pairwise(heard.covered)
    assert any(later[0] > earlier[1] + 1 for earlier, later in joined)


@pytest.mark.field("B-070")
async def test_a_burst_of_many_ranks_loses_nothing(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard):
        connector.peer.say(b"".join(message(rank, rank=rank) for rank in range(700)))
        await asyncio.sleep(1)
    assert [fact.dp_rank for fact in heard.samples] == list(range(700))
    assert heard.refused == []


async def test_while_the_log_sheds_samples_wait_and_merge(connector: FakeConnector, heard: Heard) -> None:
    shedding = [True]
    async with running(connector, heard, is_shedding=lambda: shedding[0]):
        for sequence in range(50):
            connector.peer.say(message(sequence, used=sequence))
            await asyncio.sleep(0.02)
        assert heard.samples == []
        shedding[0] = False
        await asyncio.sleep(0.1)
    assert heard.covered == [(0, 49)]


async def test_refused_frames_are_told_once_a_second_and_add_up(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        for step in range(300):
            connector.peer.say(unreadable(step) * 10)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
    assert len(heard.refused) <= 5
    assert sum(fact.frames for fact in heard.refused) == 3000


@pytest.mark.req("ZMTP-09", "LOAD-13")
@pytest.mark.field("B-068")
async def test_a_violation_is_counted_closes_and_is_followed_by_another_connection(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        first = connector.peer
        first.say(message(1) + FIVE_FRAMES)
        assert first.is_closed
        assert heard.covered == [(1, 1)]  # what came before the violation counts
        assert [fact.result for fact in heard.refused] == [FrameResult.TRANSPORT_REFUSED]
        await asyncio.sleep(1)
        assert len(connector.peers) == 2
    assert heard.states[2:] == [("backoff", "transport_refused"), ("connected", "connected")]


@pytest.mark.req("STORE-13")
@pytest.mark.field("B-072")
async def test_each_connect_is_told_and_numbers_begin_anew(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard):
        connector.peer.say(message(900))
        connector.peer.hang_up()
        await asyncio.sleep(1)
        connector.peer.say(message(0))
    assert heard.covered == [(900, 900), (0, 0)]
    assert [fact.connection for fact in heard.samples] == [1, 2]
    assert heard.states[1:] == [
        ("connected", "connected"),
        ("backoff", "closed"),
        ("connected", "connected"),
    ]


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(lambda peer: None, id="silent"),
        pytest.param(lambda peer: peer.say(GREETING[:20]), id="short greeting"),
        pytest.param(lambda peer: peer.say(GREETING), id="no READY"),
    ],
)
async def test_a_handshake_that_takes_ten_seconds_is_over(
    connector: FakeConnector, heard: Heard, say: Callable[[Any], None]
) -> None:
    connector.greets = False
    async with running(connector, heard):
        say(connector.peer)
        await asyncio.sleep(9.9)
        assert not connector.peer.is_closed
        await asyncio.sleep(0.2)
        assert connector.peers[0].is_closed
    assert heard.states[1:] == [("backoff", "handshake_timeout")]


async def test_a_slow_handshake_within_its_time_counts(connector: FakeConnector, heard: Heard) -> None:
    connector.greets = False
    async with running(connector, heard):
        for octet in GREETING + encode_ready(b"XPUB"):
            connector.peer.say(bytes([octet]))
            await asyncio.sleep(0.05)
        await asyncio.sleep(60)
        assert not connector.peer.is_closed
        assert connector.peer.written.endswith(encode_frame(b"\x01kv_metrics"))


@pytest.mark.req("LOAD-22")
@pytest.mark.field("B-069")
async def test_waits_double_from_half_a_second_to_thirty_for_as_long_as_it_takes(
    connector: FakeConnector, heard: Heard
) -> None:
    connector.refuse()
    async with running(connector, heard):
        await asyncio.sleep(200)
    at_s = connector.dialled_at_s
    waits = [round(later - earlier, 3) for earlier, later in itertools.pairwise(at_s)]
    assert waits[:9] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert heard.states == [("connecting", "started"), ("backoff", "dial_failed")]  # told once


@pytest.mark.req("LOAD-22")
async def test_waits_are_drawn_from_nothing_to_the_ceiling(connector: FakeConnector, heard: Heard) -> None:
    connector.refuse()
    draws = iter([0.0, 0.25, 0.5, 0.5])
    async with running(connector, heard, random_unit=lambda: next(draws)):
        await asyncio.sleep(4)
    at_s = connector.dialled_at_s
    waits = [round(later - earlier, 3) for earlier, later in itertools.pairwise(at_s)]
    assert waits[:3] == [0, 0.25, 1]


@pytest.mark.req("ZMTP-10")
async def test_the_floor_returns_after_a_session_of_thirty_seconds_only(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard):
        waits = []
        for lasts_s in (24, 24, 24, 28, 1):  # and what is left of the 5 s below
            sessions = len(connector.peers)
            await asyncio.sleep(lasts_s)
            connector.peer.hang_up()
            ended_s = asyncio.get_running_loop().time()
            await asyncio.sleep(5)
            assert len(connector.peers) == sessions + 1
            waits.append(round(connector.dialled_at_s[-1] - ended_s, 1))
    assert waits == [0.5, 1, 2, 0.5, 1]


@pytest.mark.field("B-069")
async def test_a_publisher_that_listens_late_is_found(connector: FakeConnector, heard: Heard) -> None:
    connector.outcomes = [ConnectFailed(Reason.DIAL_FAILED), ConnectFailed(Reason.DIAL_FAILED)]
    async with running(connector, heard) as subscriber:
        await asyncio.sleep(2)
        assert subscriber.state is SubscriptionState.CONNECTED


@pytest.mark.field("B-115")
async def test_a_denied_address_is_told_and_counted(connector: FakeConnector, heard: Heard) -> None:
    connector.refuse(Reason.DENIED_ADDRESS)
    async with running(connector, heard) as subscriber:
        assert subscriber.state is SubscriptionState.BACKOFF
        assert heard.states[-1] == ("backoff", "denied_address")
        assert [fact.result for fact in heard.refused] == [FrameResult.TRANSPORT_REFUSED]


async def test_a_connector_that_breaks_ends_its_session_only(connector: FakeConnector, heard: Heard) -> None:
    connector.outcomes = [RuntimeError("boom")]
    async with running(connector, heard) as subscriber:
        assert heard.states[-1] == ("backoff", "fault")
        assert any("boom" in repr(notice) for notice in heard.notices)
        await asyncio.sleep(1)
        assert subscriber.state is SubscriptionState.CONNECTED


async def test_an_append_that_raises_is_survived(connector: FakeConnector, heard: Heard) -> None:
    """It must not, but a subscription that then hangs for ever would be worse than the fault."""
    async with running(connector, heard) as subscriber:
        object.__setattr__(subscriber._ports, "append", lambda fact: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            connector.peer.say(message(1))
        object.__setattr__(subscriber._ports, "append", heard.facts.append)
        await asyncio.sleep(1)
        assert subscriber.state is SubscriptionState.CONNECTED
        assert len(connector.peers) == 2


async def test_a_closed_subscriber_says_nothing_more(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard) as subscriber:
        peer = connector.peer
        peer.say(message(1) + unreadable(2))
        connector.peer.say(message(3))  # waits for its turn
        subscriber.close()
        told = list(heard.facts)
        assert peer.is_closed
        await asyncio.sleep(60)
        assert heard.facts == told
        assert len(connector.peers) == 1


async def test_a_cut_drops_what_waits_and_connects_again(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard) as subscriber:
        connector.peer.say(message(1))
        connector.peer.say(message(2))  # waits for its turn
        subscriber.cut(Reason.STALLED)
        await asyncio.sleep(1)
        assert heard.covered == [(1, 1)]
        assert heard.states[2:] == [("backoff", "stalled"), ("connected", "connected")]


async def test_raw_frames_are_kept_for_told_samples_alone(connector: FakeConnector, heard: Heard) -> None:
    kept: list[tuple[bytes, ...]] = []

    def keep(frames: tuple[bytes, ...]) -> int | None:
        kept.append(frames)
        return 1000 + len(kept)

    async with running(connector, heard, keep_raw=keep):
        connector.peer.say(message(1) + message(2) + message(3))
    assert [(fact.sequence, fact.raw_digest) for fact in heard.samples] == [(3, 1001)]
    assert encode_message(kept[0]) == message(3)


async def test_a_reader_of_the_log_that_is_away_changes_nothing_in_memory(
    connector: FakeConnector, heard: Heard
) -> None:
    """Shedding for a minute under a flood over many ranks: what waits is bounded."""
    async with running(connector, heard, is_shedding=lambda: True) as subscriber:
        for step in range(60):
            connector.peer.say(b"".join(message(1000 * step + n, rank=n) for n in range(1000)))
            await asyncio.sleep(1)
        assert isinstance(subscriber._stream, SampleStream)
        assert subscriber._stream.waiting <= 256
    assert heard.samples == []


async def test_a_renewed_connection_may_end_the_one_before_for_good(
    connector: FakeConnector, heard: Heard
) -> None:
    async with running(connector, heard) as subscriber:
        heard.facts.clear()
        subscriber.renew(Reason.REBOUND, is_end=True)
        subscriber.renew(Reason.RESTARTED)
    assert [(fact.state, fact.connection, fact.reason) for fact in heard.changes[:3]] == [
        (SubscriptionState.ENDED, 1, "rebound"),
        (SubscriptionState.CONNECTED, 2, "rebound"),
        (SubscriptionState.CONNECTED, 3, "restarted"),
    ]
    assert subscriber.connection == 3


async def test_the_peer_is_the_address_that_was_connected_to(connector: FakeConnector, heard: Heard) -> None:
    async with running(connector, heard) as subscriber:
        assert subscriber.peer == "10.0.0.1"
        connector.peer.hang_up()
        await settle()
        assert subscriber.peer is None
