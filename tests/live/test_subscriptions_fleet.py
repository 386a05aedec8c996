"""Load and blocks of a real Dynamo fleet reach the fold from its own workers, and a killed worker leaves."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from ingest.discovery.runner import DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings, FileStore, SourceKind
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.families import KV_FAMILY
from ingest.subscriptions.supervisor import Subscriptions
from projections.events.codec import encode_record
from projections.events.control import FoldModeAdopted, LaneOpened
from projections.events.signals import (
    KV_EVENT_HEAD,
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.fold import Fold
from projections.fold_modes import KV_INDEX
from projections.notices import KvNotice, Notice, SampleNotice
from tests.live.conftest import FleetMaker

pytestmark = pytest.mark.live("dynamo")

PATIENCE_S = 60.0
OWNER = b"owner-----------"


class LiveLoad:
    """Discovery, fold and subscriptions in one closed loop on a real fleet.

    Use as `async with LiveLoad(settings) as load`; `allow` as in SubscriptionSettings.
    """

    def __init__(self, settings: DiscoverySettings, allow: tuple[str, ...] | None = None) -> None:
        self.fold = Fold()
        self.facts: list[Any] = []
        self.notices: list[Notice] = []
        self._changed = asyncio.Event()
        self.subscriptions = Subscriptions(self._append, SubscriptionSettings(allow=allow))
        self.kv_subscriptions = Subscriptions(self._append, SubscriptionSettings(allow=allow), KV_FAMILY)
        self.runner = DiscoveryRunner(settings, self._append, {}, lambda notice: None, lambda state: None)
        self._append(LaneOpened(1, 0, b"", "new"))

    async def __aenter__(self) -> LiveLoad:
        self._task = asyncio.ensure_future(self.runner.run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.runner.stop()
        await asyncio.wait_for(self._task, PATIENCE_S)
        await self.subscriptions.stop()
        await self.kv_subscriptions.stop()

    def adopt(self, *flags: int) -> None:
        """The fold's mode from here on."""
        self._append(FoldModeAdopted(flags))

    def _append(self, fact: Any) -> None:
        number = len(self.facts)
        data = encode_record(time.monotonic_ns() // 1000, OWNER, 1, number + 1, fact)
        self.facts.append(fact)
        self.fold.apply(number, data, self.notices)
        self._changed.set()
        # as a tail would: what is folded moves the subscriptions, in a turn of its own
        asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        state = self.fold.state
        self.subscriptions.follow(state.registry.fleet)
        self.kv_subscriptions.follow(state.registry.fleet, KV_INDEX in state.intake.fold_mode)

    async def until(self, holds: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError("\n".join(map(repr, self.facts[-12:]))) from None

    @property
    def connected(self) -> int:
        return sum(row.state is SubscriptionState.CONNECTED for row in self.subscriptions.rows())

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def sampled(self) -> set[int]:
        """Workers whose samples were taken."""
        return {fact.worker_id for fact in self.of(SampleReceived)}

    def results(self) -> set[str]:
        return {notice.result.label for notice in self.notices if isinstance(notice, SampleNotice)}


async def settings_of(fleet: Fleet) -> DiscoverySettings:
    rows = await asyncio.to_thread(fleet.workers)
    namespaces = tuple(sorted({row["namespace"] for row in rows}))
    return DiscoverySettings(SourceKind.FILE, namespaces, file=FileStore(os.fspath(fleet.file_store or "")))


def chat(frontend: str, worker_id: int, model: str | None, words: int) -> None:
    """One chat pinned to a worker; what the frontend answers is not our matter here."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{worker_id} " + "word " * words}],
        "max_tokens": 16,
    }
    request = urllib.request.Request(
        f"{frontend}/v1/chat/completions", json.dumps(body).encode(), method="POST"
    )
    request.add_header("content-type", "application/json")
    request.add_header("x-dynamo-worker-instance-id", str(worker_id))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=10).read()
    except OSError:
        pass


async def chat_until(load: LiveLoad, fleet: Fleet, holds: Callable[[], object]) -> None:
    """Chats of different lengths with all workers, so that usage changes and they speak of it."""

    async def keep_chatting() -> None:
        for number in range(1000):
            for key, worker in list(load.fold.state.registry.fleet.workers.items()):
                words = 50 + 40 * (number % 7)
                await asyncio.to_thread(chat, fleet.frontend_url(), key.instance_id, worker.model, words)

    chatting = asyncio.ensure_future(keep_chatting())
    try:
        await load.until(holds)
    finally:
        chatting.cancel()
        await asyncio.gather(chatting, return_exceptions=True)


@pytest.fixture(scope="module")
def agg_fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(dp=2))


@pytest.mark.req("LOAD-01", "LOAD-03", "LOAD-27")
async def test_real_samples_reach_the_fold_and_a_killed_worker_backs_off_and_leaves(agg_fleet: Fleet) -> None:
    async with LiveLoad(await settings_of(agg_fleet)) as load:
        workers = {int(row["instance_id"]) for row in await asyncio.to_thread(agg_fleet.workers)}
        await load.until(lambda: load.connected == len(workers))
        await chat_until(load, agg_fleet, lambda: load.sampled() == workers)

        # every frame of a real worker was taken, and the store holds what it said
        assert load.results() == {"applied"}
        assert load.of(FrameRefused) == []
        newest = load.of(SampleReceived)[-1]
        held = load.fold.state.load.sample(newest.namespace, newest.worker_id, newest.dp_rank)
        assert held is not None
        assert (held.publisher_id, held.sequence) == (newest.publisher_id, newest.sequence)
        assert all(fact.kv_used_blocks is not None for fact in load.of(SampleReceived))
        publishers = {row.key.publisher_id for row in load.subscriptions.rows()}
        assert publishers.isdisjoint(workers)  # a publisher's id is its own

        killed = {int(number) for number in await asyncio.to_thread(agg_fleet.instance_ids, "agg-1")}
        (publisher,) = {fact.publisher_id for fact in load.of(SampleReceived) if fact.worker_id in killed}
        await asyncio.to_thread(agg_fleet.kill, "agg-1")
        try:

            def said() -> list[int]:
                changes = [fact for fact in load.of(SubscriptionChanged) if fact.publisher_id == publisher]
                return [fact.state for fact in changes]

            await load.until(lambda: said()[-1] == SubscriptionState.ENDED)
            assert SubscriptionState.BACKOFF in said()  # its connection went long before its records
            assert publisher not in {row.key.publisher_id for row in load.subscriptions.rows()}
            assert load.fold.state.load.last_sequence(newest.namespace, publisher) is None
        finally:
            await asyncio.to_thread(agg_fleet.start, "agg-1")
        # it comes back as another worker with another publisher, and is heard again
        await load.until(lambda: load.connected == len(workers))
        await chat_until(load, agg_fleet, lambda: len(load.sampled()) > len(workers))


@pytest.mark.req("KVX-02", "KVX-05", "KVX-20")
async def test_blocks_of_a_real_fleet_are_heard_while_the_fold_indexes_them(agg_fleet: Fleet) -> None:
    async with LiveLoad(await settings_of(agg_fleet)) as load:
        workers = {int(row["instance_id"]) for row in await asyncio.to_thread(agg_fleet.workers)}
        await load.until(lambda: load.connected == len(workers))
        assert load.kv_subscriptions.rows() == []
        load.adopt(KV_INDEX)

        def heard() -> set[int]:
            heads = [
                head for fact in load.of(KvBatchReceived) for head in KV_EVENT_HEAD.iter_unpack(fact.heads)
            ]
            return {head[0] for head in heads if head[6]}

        await chat_until(load, agg_fleet, lambda: heard() == workers)
        results = {notice.result.label for notice in load.notices if isinstance(notice, KvNotice)}
        # chats of other tests went to this fleet before anybody listened: their blocks may be parents
        assert "applied" in results and results <= {"applied", "orphan"}
        assert load.of(FrameRefused) == []
        connected = {row.key.publisher_id for row in load.kv_subscriptions.rows()}
        assert {fact.publisher_id for fact in load.of(KvBatchReceived)} <= connected
        load.adopt()
        await load.until(lambda: load.kv_subscriptions.rows() == [])
        ended = [fact for fact in load.of(SubscriptionChanged) if fact.state == SubscriptionState.ENDED]
        assert {fact.publisher_id for fact in ended} == connected


@pytest.mark.req("LOAD-25")
async def test_a_policy_without_loopback_keeps_a_loopback_fleet_undialled(agg_fleet: Fleet) -> None:
    async with LiveLoad(await settings_of(agg_fleet), allow=("10.0.0.0/8",)) as load:
        await load.until(lambda: load.fold.state.registry.fleet.publishers)
        await load.until(
            lambda: (
                load.of(SubscriptionChanged)
                and load.of(SubscriptionChanged)[-1].state == SubscriptionState.BACKOFF
            )
        )
        assert load.connected == 0
        assert {fact.reason for fact in load.of(SubscriptionChanged)} == {"started", "denied_address"}
