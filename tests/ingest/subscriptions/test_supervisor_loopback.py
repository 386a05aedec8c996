"""Subscriptions on real sockets of loopback, folded: libzmq's publisher and recorded frames."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.supervisor import Subscriptions
from ingest.wire.publisher_frames import Sample, decode_sample_message, encode_sample_message
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS
from projections.events.discovery import Keyspace
from projections.events.signals import SampleReceived, SubscriptionChanged, SubscriptionState
from projections.load.store import HeldSample
from projections.notices import FrameResult, SampleNotice
from tests.ingest.subscriptions.network import never_late, settle
from tests.ingest.wire import fake_publisher as fake
from tests.ingest.wire.recorded import RECORDINGS, recorded_messages
from tests.projections.fleet_script import (
    NS,
    Script,
    card,
    channel,
    channel_key,
    endpoint,
    instance_key,
)

TOPIC = b"kv_metrics"
SOON = dataclasses.replace(KV_METRICS_LIMITS, reconnect_us_min=1_000, reconnect_us_max=50_000)


class Loop:
    """A script whose fold the subscriptions follow, and which folds what they say."""

    def __init__(self) -> None:
        self.script = Script()
        self.facts: list[Any] = []
        self._changed = asyncio.Event()
        self.subscriptions = Subscriptions(
            self._append, SubscriptionSettings(allow=("127.0.0.0/8",)), clock_s=never_late, limits=SOON
        )

    def _append(self, fact: Any) -> None:
        self.facts.append(fact)
        self.script.say(fact)
        self._changed.set()

    def add(self, worker_id: int, publisher_id: int, port: int, ranks: int = 1) -> None:
        """A worker with its publisher at a port of loopback."""
        runtime = {"data_parallel_size": ranks}
        where = {"kind": "Zmq", "config": {"endpoint": f"tcp://127.0.0.1:{port}"}}
        self.script.put(Keyspace.INSTANCES, instance_key(worker_id), endpoint(worker_id))
        self.script.put(Keyspace.CARDS, instance_key(worker_id), card(worker_id, runtime=runtime))
        self.script.put(Keyspace.CHANNELS, channel_key(publisher_id), channel(publisher_id, transport=where))
        self.subscriptions.follow(self.script.fleet)

    def drop(self, publisher_id: int) -> None:
        self.script.delete(Keyspace.CHANNELS, channel_key(publisher_id))
        self.subscriptions.follow(self.script.fleet)

    def held(self, worker_id: int, rank: int = 0) -> HeldSample | None:
        return self.script.fold.state.load.sample(NS, worker_id, rank)

    def holds(self, worker_id: int, used: int) -> bool:
        held = self.held(worker_id)
        return held is not None and held.kv_used_blocks == used

    def results(self) -> list[FrameResult]:
        return [one.result for one in self.script.all_notices if isinstance(one, SampleNotice)]

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(fake.PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def loop() -> AsyncIterator[Loop]:
    loop = Loop()
    yield loop
    await loop.subscriptions.stop()


def load_of(sequence: int, used: int, worker_id: int = 7, publisher_id: int = 5) -> tuple[bytes, ...]:
    return encode_sample_message(publisher_id, Sample(sequence, 0, worker_id, 0, None, None, used))


@pytest.mark.req("TST-03", "ZMTP-12", "ZMTP-13")
@pytest.mark.field("B-070")
@pytest.mark.parametrize(
    "name", ["kv_metrics-1.4.2", "kv_metrics-1.5.0", "kv_metrics-1.6.1", "kv_metrics-1.4.2-dp2"]
)
async def test_recorded_frames_through_libzmq_end_in_the_store(loop: Loop, name: str) -> None:
    messages = recorded_messages(Path(RECORDINGS / f"{name}.msgpack.gz"))
    publisher_id = int.from_bytes(messages[0][1], "big")
    ours = [frames for frames in messages if int.from_bytes(frames[1], "big") == publisher_id]
    samples = [decode_sample_message(frames, publisher_id) for frames in ours]
    newest = {one.dp_rank: one for one in samples if isinstance(one, Sample)}
    (worker_id,) = {one.worker_id for one in newest.values()}
    async with fake.RealPublisher() as publisher:
        loop.add(worker_id, publisher_id, publisher.port, ranks=2)
        await publisher.subscriber(TOPIC)
        for frames in ours:
            await publisher.publish(frames)
        last = max(one.sequence for one in newest.values())
        await loop.until(lambda: loop.of(SampleReceived) and loop.of(SampleReceived)[-1].sequence == last)
    for rank, sample in newest.items():
        held = loop.held(worker_id, rank)
        assert held is not None
        assert (held.sequence, held.kv_used_blocks) == (sample.sequence, sample.kv_used_blocks)
    assert set(loop.results()) == {FrameResult.APPLIED}


@pytest.mark.req("TST-03", "STORE-14", "LOAD-19")
@pytest.mark.field("B-066")
async def test_a_gap_drops_what_was_held_and_a_repeat_changes_nothing(loop: Loop) -> None:
    async with fake.FakePublisher() as publisher:
        loop.add(7, 5, publisher.port)
        await publisher.subscriber(TOPIC)
        await loop.until(lambda: loop.of(SubscriptionChanged)[-1].state == SubscriptionState.CONNECTED)
        for sequence, used in ((1, 10), (2, 20), (5, 50)):
            publisher.publish(load_of(sequence, used))
            await loop.until(functools.partial(loop.holds, 7, used))
        assert loop.results().count(FrameResult.GAP) == 1
        publisher.publish(load_of(4, 99))
        await loop.until(lambda: FrameResult.DUPLICATE in loop.results())
        held = loop.held(7)
        assert held is not None
        assert held.kv_used_blocks == 50


@pytest.mark.req("STORE-13")
@pytest.mark.field("B-066")
async def test_a_publisher_that_restarts_at_its_address_is_heard_again_from_nought(loop: Loop) -> None:
    async with fake.FakePublisher() as first:
        loop.add(7, 5, first.port)
        await first.subscriber(TOPIC)
        await loop.until(lambda: loop.of(SubscriptionChanged)[-1].state == SubscriptionState.CONNECTED)
        first.publish(load_of(1000, 10))
        await loop.until(lambda: loop.held(7))
        port = first.port
    await loop.until(lambda: loop.of(SubscriptionChanged)[-1].state == SubscriptionState.BACKOFF)
    async with fake.FakePublisher(port=port) as second:
        await second.subscriber(TOPIC)
        await loop.until(lambda: loop.of(SubscriptionChanged)[-1].state == SubscriptionState.CONNECTED)
        assert loop.held(7) is None  # the connect dropped it
        second.publish(load_of(0, 20))
        await loop.until(lambda: loop.held(7))
        held = loop.held(7)
        assert held is not None
        assert held.sequence == 0
    assert FrameResult.DUPLICATE not in loop.results()


@pytest.mark.req("ZMTP-09")
@pytest.mark.field("B-001")
@pytest.mark.parametrize(
    "script",
    [
        fake.PLAIN,
        fake.OLD_VERSION,
        fake.WRONG_TYPE,
        fake.GIANT_READY,
        fake.ERROR_COMMAND,
        fake.HUGE_FRAME,
        fake.ENDLESS_MULTIPART,
        fake.ENDLESS_BODY,
        fake.CUT_MID_FRAME,
        fake.SHORT_GREETING,
    ],
)
async def test_a_misbehaving_publisher_is_tried_again_and_its_neighbour_is_heard(
    loop: Loop, script: fake.Script
) -> None:
    async with fake.FakePublisher(script) as bad, fake.FakePublisher() as good:
        loop.add(8, 4, bad.port)
        loop.add(7, 5, good.port)
        await bad.until(lambda: len(bad.sessions) >= 3)
        await good.subscriber(TOPIC)
        await loop.until(
            lambda: any(
                fact.publisher_id == 5 and fact.state == SubscriptionState.CONNECTED
                for fact in loop.of(SubscriptionChanged)
            )
        )
        good.publish(load_of(1, 10))
        await loop.until(lambda: loop.held(7))
        assert loop.held(8) is None
        await loop.subscriptions.stop()  # before the publishers go: none must be dialled while it closes
        await bad.until(lambda: all(session.has_ended for session in bad.sessions))
        await settle()


@pytest.mark.req("TST-03")
@pytest.mark.field("B-146")
async def test_a_departed_publisher_leaves_no_socket_task_or_sample(loop: Loop) -> None:
    def standing() -> tuple[int, int]:
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

    async with contextlib.AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(fake.FakePublisher()) for _ in range(20)]
        before = standing()
        for number, publisher in enumerate(publishers, 1):
            loop.add(100 + number, number, publisher.port)
        for publisher in publishers:
            await publisher.subscriber(TOPIC)
        await loop.until(
            lambda: all(row.state is SubscriptionState.CONNECTED for row in loop.subscriptions.rows())
        )
        for number, publisher in enumerate(publishers, 1):
            publisher.publish(load_of(1, 10, 100 + number, number))
        await loop.until(lambda: len(loop.script.fold.state.load) == 20)
        for number in range(1, 21):
            loop.drop(number)
        for publisher in publishers:
            await publisher.until(lambda publisher=publisher: all(s.has_ended for s in publisher.sessions))
        await settle()  # the publishers' own ends close
        assert standing() == before
        assert len(loop.script.fold.state.load) == 0
        assert loop.subscriptions.rows() == []
