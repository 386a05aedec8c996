"""One connection against publishers on real sockets: each misbehaviour ends it, or nothing does.

The publishers are the independent fake of the wire tests and libzmq itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import zmq

from ingest.subscriptions.connectors import DirectConnector
from ingest.subscriptions.loop_watch import LoopWatch
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.resolver import Resolver
from ingest.subscriptions.session import ZmtpSession
from ingest.wire.publisher_frames import encode_sample_message
from ingest.wire.zmtp import ZmtpReason
from ingest.wire.zmtp_frames import GREETING, Message, encode_command, encode_ready
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS, ZmtpLimits
from tests.ingest.subscriptions.network import Peer, message, never_late, sample
from tests.ingest.wire import fake_publisher as fake

TOPIC = b"kv_metrics"


class Listener:
    """Notes what a session says."""

    def __init__(self) -> None:
        self.connected = 0
        self.messages: list[Message] = []
        self.ended: list[tuple[Reason, str]] = []
        self.breaks = False
        self._changed = asyncio.Event()

    def session_connected(self) -> None:
        self.connected += 1
        self._changed.set()

    def session_received(self, messages: list[Message]) -> None:
        if self.breaks:
            raise RuntimeError("boom")
        self.messages += messages
        self._changed.set()

    def session_ended(self, reason: Reason, detail: str) -> None:
        self.ended.append((reason, detail))
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(fake.PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def session_to(endpoint: str, limits: ZmtpLimits = KV_METRICS_LIMITS) -> AsyncIterator[Any]:
    """(session, listener) over a real socket."""
    listener = Listener()
    session = ZmtpSession(limits, TOPIC, listener, LoopWatch(lambda late_s: None, never_late))
    await DirectConnector(None, Resolver()).connect(endpoint, session)
    try:
        yield session, listener
    finally:
        session.end(Reason.STOPPED)
        await asyncio.sleep(0)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def offline(listener: Listener) -> tuple[ZmtpSession, Peer]:
    """A session without a socket."""
    session = ZmtpSession(KV_METRICS_LIMITS, TOPIC, listener, LoopWatch(lambda late_s: None, never_late))
    peer = Peer("tcp://10.0.0.1:1", session)
    session.connection_made(peer)
    return session, peer


@pytest.mark.req("ZMTP-12", "TST-03")
@pytest.mark.parametrize("socket_type", [zmq.PUB, zmq.XPUB])
async def test_samples_of_a_real_libzmq_publisher_arrive(socket_type: int) -> None:
    frames = encode_sample_message(5, sample(1))
    async with fake.RealPublisher(socket_type) as publisher, session_to(publisher.endpoint) as (_, listener):
        await listener.until(lambda: listener.connected)
        while not listener.messages:  # a PUB tells nobody when its subscriber is there
            await publisher.publish(frames)
            await asyncio.sleep(0)
        assert listener.messages[0] == frames


async def test_heartbeats_of_libzmq_are_answered_and_the_connection_stays() -> None:
    async with (
        fake.RealPublisher(heartbeat_ms=20) as publisher,
        session_to(publisher.endpoint) as (_, listener),
    ):
        await publisher.subscriber(TOPIC)
        for number in range(20):
            await publisher.publish(encode_sample_message(5, sample(number)))
            await listener.until(lambda number=number: len(listener.messages) > number)
        assert listener.ended == []


@pytest.mark.field("B-071")
async def test_a_held_session_reads_nothing_and_then_all_of_it() -> None:
    async with fake.FakePublisher() as publisher, session_to(publisher.endpoint) as (session, listener):
        await publisher.subscriber(TOPIC)
        publisher.publish(encode_sample_message(5, sample(0)))
        await listener.until(lambda: listener.messages)
        session.hold()
        for number in range(1, 50):
            publisher.publish(encode_sample_message(5, sample(number)))
        for _ in range(100):  # turns in which a reading session would have read
            await asyncio.sleep(0)
        assert len(listener.messages) == 1
        session.release()
        await listener.until(lambda: len(listener.messages) == 50)


def test_a_session_that_is_over_is_neither_held_nor_released() -> None:
    listener = Listener()
    session = ZmtpSession(KV_METRICS_LIMITS, TOPIC, listener, LoopWatch(lambda late_s: None, never_late))
    session.hold()
    session.release()
    session.end(Reason.STOPPED)
    session.hold()
    assert [reason for reason, _ in listener.ended] == [Reason.STOPPED]


@pytest.mark.req("ZMTP-03", "LOAD-08")
async def test_the_bare_topic_is_subscribed_in_one_frame() -> None:
    async with fake.FakePublisher() as publisher, session_to(publisher.endpoint):
        session = await publisher.subscriber(TOPIC)
        assert session.subscription_frames == [b"\x00\x0b\x01kv_metrics"]


@pytest.mark.req("ZMTP-02", "ZMTP-09")
@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (fake.PLAIN, ZmtpReason.MECHANISM),
        (fake.OLD_VERSION, ZmtpReason.VERSION),
        (fake.WRONG_TYPE, ZmtpReason.SOCKET_TYPE),
        (fake.GIANT_READY, ZmtpReason.COMMAND_OVERSIZED),
        (fake.ERROR_COMMAND, ZmtpReason.PEER_ERROR),
        (fake.HUGE_FRAME, ZmtpReason.FRAME_OVERSIZED),
        (fake.ENDLESS_MULTIPART, ZmtpReason.TOO_MANY_FRAMES),
        (fake.ENDLESS_BODY, ZmtpReason.FRAME_OVERSIZED),
    ],
)
async def test_each_violation_ends_the_session_by_its_name(script: fake.Script, detail: ZmtpReason) -> None:
    async with fake.FakePublisher(script) as publisher, session_to(publisher.endpoint) as (_, listener):
        await listener.until(lambda: listener.ended)
        assert listener.ended == [(Reason.TRANSPORT_REFUSED, detail.value)]
        await publisher.until(lambda: publisher.sessions[0].has_ended)


@pytest.mark.parametrize("script", [fake.SHORT_GREETING, fake.CUT_MID_FRAME])
async def test_a_publisher_that_closes_ends_the_session(script: fake.Script) -> None:
    async with fake.FakePublisher(script) as publisher, session_to(publisher.endpoint) as (_, listener):
        await listener.until(lambda: listener.ended)
        assert listener.ended[0][0] is Reason.CLOSED


@pytest.mark.parametrize("script", [fake.SILENT, fake.SLOW_GREETING])
async def test_a_handshake_over_its_time_ends_the_session(script: fake.Script) -> None:
    soon = dataclasses.replace(KV_METRICS_LIMITS, handshake_us=50_000)
    async with fake.FakePublisher(script) as publisher, session_to(publisher.endpoint, soon) as (_, listener):
        await listener.until(lambda: listener.ended)
        assert listener.ended == [(Reason.HANDSHAKE_TIMEOUT, "")]
        assert not listener.connected


async def test_a_reset_ends_the_session() -> None:
    async with fake.FakePublisher() as publisher, session_to(publisher.endpoint) as (_, listener):
        (await publisher.subscriber(TOPIC)).cut()
        await listener.until(lambda: listener.ended)
        assert listener.ended[0][0] is Reason.CLOSED


async def test_what_came_before_a_violation_is_delivered(listener: Listener) -> None:
    _, peer = offline(listener)
    peer.greet()
    peer.say(message(1) + message(2) + b"\x80\x00")
    assert len(listener.messages) == 2
    assert listener.ended == [(Reason.TRANSPORT_REFUSED, ZmtpReason.FLAGS.value)]


async def test_handshake_samples_and_violation_in_one_step_are_told_in_order(listener: Listener) -> None:
    _, peer = offline(listener)
    peer.say(GREETING + encode_ready(b"PUB") + message(1) + b"\x80\x00")
    assert (listener.connected, len(listener.messages), len(listener.ended)) == (1, 1, 1)


async def test_a_listener_that_breaks_ends_its_session_only(listener: Listener) -> None:
    _, peer = offline(listener)
    peer.greet()
    listener.breaks = True
    peer.say(message(1))
    assert listener.ended == [(Reason.FAULT, "RuntimeError: boom")]
    assert peer.is_closed


async def test_a_session_ends_once_and_then_says_nothing(listener: Listener) -> None:
    session, peer = offline(listener)
    peer.greet()
    session.end(Reason.STALLED)
    session.end(Reason.CLOSED)
    session.buffer_updated(2)
    session.connection_lost(None)
    assert listener.ended == [(Reason.STALLED, "")]


async def test_a_connection_made_after_the_end_is_closed(listener: Listener) -> None:
    session = ZmtpSession(KV_METRICS_LIMITS, TOPIC, listener, LoopWatch(lambda late_s: None, never_late))
    session.end(Reason.STOPPED)
    peer = Peer("tcp://10.0.0.1:1", session)
    session.connection_made(peer)
    assert peer.is_closed
    assert peer.written == b""


async def test_answers_wait_in_the_bounded_machine_while_the_peer_does_not_read(listener: Listener) -> None:
    session, peer = offline(listener)
    peer.greet()
    written = len(peer.written)
    session.pause_writing()
    for _ in range(100_000 // 50):
        peer.say(encode_command(b"PING", b"\x00\x00context") * 50)
    assert len(peer.written) == written
    session.resume_writing()
    assert 0 < len(peer.written) - written <= KV_METRICS_LIMITS.write_bytes


@pytest.mark.req("ZMTP-04")
@pytest.mark.field("B-072")
async def test_hostile_floods_leave_memory_flat(listener: Listener) -> None:
    """Bodies without an end, giant lengths and bad frames, over a thousand connections."""
    tracemalloc.start()
    try:
        hostile = [
            fake.frame_bytes(TOPIC, more=True) + fake.frame_bytes(b"", declared=2**63 - 1),
            fake.frame_bytes(b"", more=True) * 5000,
            b"".join(fake.frame_bytes(bytes(8), more=True) for _ in range(3))
            + fake.frame_bytes(b"", declared=32_000)
            + bytes(31_000),
            encode_command(b"PING", b"\x00\x00" + bytes(17)),
        ]
        for turn in range(1000):
            session, peer = offline(listener)
            peer.greet()
            peer.say(hostile[turn % len(hostile)])
            session.end(Reason.STOPPED)
            listener.ended.clear()
            await asyncio.sleep(0)
            if turn == 100:
                before, _ = tracemalloc.get_traced_memory()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 256 * 1024
    assert peak < 4 * 1024 * 1024


@pytest.mark.field("B-073")
async def test_a_flooding_publisher_is_drained_as_fast_as_it_writes() -> None:
    """It never waits for us, though nobody here asks for the messages (B-073)."""
    count = 20_000
    async with fake.FakePublisher() as publisher, session_to(publisher.endpoint) as (_, listener):
        session = await publisher.subscriber(TOPIC)
        for number in range(count):
            publisher.publish(encode_sample_message(5, sample(number)))
            if number % 500 == 0:
                await session.writer.drain()
        await listener.until(lambda: len(listener.messages) == count)
        assert listener.ended == []


async def test_a_session_knows_the_address_at_its_other_end_while_it_stands(listener: Listener) -> None:
    async with fake.FakePublisher() as publisher, session_to(publisher.endpoint) as (session, heard):
        await heard.until(lambda: heard.connected)
        assert session.peer == "127.0.0.1"
    await asyncio.sleep(0)
    assert session.peer is None
    assert offline(listener)[0].peer == "10.0.0.1"
