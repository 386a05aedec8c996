"""Block events on real sockets of loopback: libzmq, an engine's batches, a flood beside samples."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.families import KV_FAMILY, LOAD_FAMILY
from ingest.subscriptions.supervisor import Subscriptions
from ingest.wire.engine_events import EngineSource
from ingest.wire.publisher_frames import encode_sample_message
from ingest.wire.router_events import KvFrame, decode_kv_message
from projections.bounds import KV_FRAME_BYTES_MAX
from projections.events.signals import (
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.notices import FrameResult
from tests.ingest.subscriptions.network import fleet_of, never_late, publisher, sample
from tests.ingest.wire import fake_publisher as fake
from tests.ingest.wire.engine_batches import batch, engine_message, stored_items, tokens
from tests.ingest.wire.kv_messages import event, message, removed, stored, told
from tests.ingest.wire.recorded import event_recordings, recorded_messages

TOPIC = b"kv-events"
ALLOW = ("127.0.0.0/8",)


class Told:
    """What subscriptions of both families say, and a way to wait for it."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self._changed = asyncio.Event()

    def __call__(self, fact: Any) -> None:
        self.facts.append(fact)
        self._changed.set()

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def connected(self) -> int:
        return sum(fact.state == SubscriptionState.CONNECTED for fact in self.of(SubscriptionChanged))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(fake.PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def listening(*publishers: Any, sources: tuple[EngineSource, ...] = ()) -> AsyncIterator[Told]:
    facts = Told()
    settings = SubscriptionSettings(allow=ALLOW, engine_sources=sources)
    families = [Subscriptions(facts, settings, plan, clock_s=never_late) for plan in (LOAD_FAMILY, KV_FAMILY)]
    for one in families:
        one.follow(fleet_of(*publishers))
    try:
        yield facts
    finally:
        for one in families:
            await one.stop()


@pytest.mark.req("KVX-02", "KVX-05", "ZMTP-12")
@pytest.mark.parametrize("path", event_recordings(), ids=lambda path: path.name)
async def test_recorded_block_events_come_through_libzmq_whole(path: Path) -> None:
    messages = recorded_messages(path)
    publisher_id = int.from_bytes(messages[0][1], "big")
    ours = [frames for frames in messages if int.from_bytes(frames[1], "big") == publisher_id]
    async with fake.RealPublisher() as peer:
        at = publisher(publisher_id, topic="kv-events", address=f"tcp://127.0.0.1:{peer.port}")
        async with listening(at) as facts:
            await peer.subscriber(TOPIC)
            for frames in ours:
                await peer.publish(frames)
            await facts.until(lambda: len(facts.of(KvBatchReceived)) == len(ours))
    for fact, frames in zip(facts.of(KvBatchReceived), ours, strict=True):
        read = decode_kv_message(frames, publisher_id)
        assert isinstance(read, KvFrame)
        assert (fact.heads, fact.hashes, fact.sequence) == (read.heads, read.hashes, read.sequence)
    assert facts.of(FrameRefused) == []


@pytest.mark.req("KVX-03")
async def test_8192_blocks_are_taken_and_a_frame_above_a_mebibyte_ends_the_connection() -> None:
    wide = [2**63 + n for n in range(8192)]
    large = message([event(1, stored(*zip(wide, wide, strict=True)))], 0, 5)
    over = (*large[:2], (1).to_bytes(8, "big"), bytes(KV_FRAME_BYTES_MAX + 1))
    async with fake.RealPublisher() as peer:
        at = publisher(5, topic="kv-events", address=f"tcp://127.0.0.1:{peer.port}")
        async with listening(at) as facts:
            await peer.subscriber(TOPIC)
            await peer.publish(large)
            await facts.until(lambda: facts.of(KvBatchReceived))
            (fact,) = facts.of(KvBatchReceived)
            assert len(told(fact.heads, fact.hashes)[0].tokens) == 8192
            await peer.publish(over)
            await facts.until(lambda: facts.of(FrameRefused))
            assert facts.of(FrameRefused)[0].result == FrameResult.TRANSPORT_REFUSED
            await peer.subscriber(TOPIC)
            await peer.publish(message([event(2, removed(1))], 2, 5))
            await facts.until(lambda: len(facts.of(KvBatchReceived)) == 2)
            assert facts.of(KvBatchReceived)[1].connection == 2


@pytest.mark.req("ZMTP-12")
@pytest.mark.parametrize("topic", ["kv@", ""])
async def test_an_engine_is_heard_through_libzmq(topic: str) -> None:
    async with fake.RealPublisher(zmq.XPUB) as peer:
        source = EngineSource(f"tcp://127.0.0.1:{peer.port}", "prod", 42, 16, topic=topic)
        async with listening(sources=(source,)) as facts:
            await peer.subscriber(topic.encode())
            await peer.publish(engine_message(0, batch(stored_items([7, 8], tokens(2))), b"kv@pod@model"))
            await peer.publish(engine_message(1, batch(["BlockRemoved", [7], "GPU"]), b"kv@pod@model"))
            await facts.until(lambda: len(facts.of(KvBatchReceived)) == 2)
    read = [one for fact in facts.of(KvBatchReceived) for one in told(fact.heads, fact.hashes)]
    assert [(one.worker_id, one.engines) for one in read] == [(42, (7, 8)), (42, (7,))]
    assert read[1].event_id == read[0].event_id + 1
    assert facts.of(FrameRefused) == []


async def test_a_flood_of_block_events_does_not_keep_samples_waiting() -> None:
    """Between two frames of half a mebibyte every other socket has its turn."""
    wide = [2**63 + n for n in range(8192)]
    data = stored(*zip(wide, wide, strict=True))
    async with fake.FakePublisher() as flood, fake.FakePublisher() as load:
        events = publisher(5, topic="kv-events", address=flood.endpoint)
        async with listening(events, publisher(6, address=load.endpoint)) as facts:
            await flood.subscriber(TOPIC)
            await load.subscriber(b"kv_metrics")
            await facts.until(lambda: facts.connected == 2)
            for number in range(40):
                flood.publish(message([event(number + 1, data)], number, 5))
            for number in range(5):
                load.publish(encode_sample_message(6, sample(number, number)))
            await facts.until(lambda: len(facts.of(SampleReceived)) == 5)
            assert len(facts.of(KvBatchReceived)) < 40, "samples were told before the flood was over"
            await facts.until(lambda: len(facts.of(KvBatchReceived)) == 40)
