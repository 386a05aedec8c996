"""Tries of one send: the head on the wire, kept connections, permits, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.dispatch.breaker import BreakerState
from router.dispatch.refusals import NO_REPLICA
from router.dispatch.shim_client import Begun, NotServed, Order, Tries, request_head
from router.dispatch.shim_pools import Health, PoolTable, next_replicas
from router.ingress.errors import ErrorCode
from router.ingress.keys import ANYBODY
from router.ingress.pin_headers import Pins
from router.settings import DeadlineSettings, RouterSettings
from tests.router.fake_frontend import FakeFrontend, Misbehaviour, running
from tests.router.rig import Counts, settings_for, until

PINS = Pins("dynamo", ((b"x-dynamo-worker-instance-id", b"31"),), 31, None, "dynamo/31", None)
DATA = b'{"model":"tiny-chat","messages":[]}'


def order(**changes: Any) -> Order:
    made = Order(
        path="/v1/chat/completions",
        request_id="r-1",
        headers=((b"Accept", b"*/*"),),
        data=DATA,
        model="tiny-chat",
        caller=ANYBODY,
        deadlines=DeadlineSettings(),
        due_s=asyncio.get_running_loop().time() + 60,
    )
    return made._replace(**changes)


def table_of(settings: RouterSettings) -> PoolTable:
    replicas = next_replicas(settings, {})
    for replica in replicas.values():
        replica.health = Health.READY
        replica.take_models(["tiny-chat"])
    return PoolTable(settings, replicas)


async def pinned(table: PoolTable, counts: Counts | None = None, **changes: Any) -> Begun | NotServed:
    tries = Tries(table, order(**changes), counts or Counts())
    return await tries.pinned(PINS, lambda: False, lambda: True)


async def whole(begun: Begun | NotServed) -> bytes:
    assert isinstance(begun, Begun)
    body = begun.first
    while not begun.connection.is_drained:
        body += await begun.connection.read()
    begun.close()
    return body


@pytest.mark.req("SHIM-10")
async def test_head_on_the_wire_holds_our_pins_alone() -> None:
    table = table_of(settings_for({"dynamo": [FakeFrontend()]}))
    replica = table.replicas["dynamo-0"]
    headers = ((b"X-Dynamo-Dp-Rank", b"9"), (b"x-dp-rank", b"9"), (b"Host", b"evil"), (b"X-Trace", b"t"))
    head = request_head(replica, order(headers=headers), PINS.headers)
    assert head.split(b"\r\n") == [
        b"POST /v1/chat/completions HTTP/1.1",
        b"host: " + replica.upstream.address.authority,
        b"content-type: application/json",
        b"content-length: %d" % len(DATA),
        b"x-request-id: r-1",
        b"X-Trace: t",
        b"x-dynamo-worker-instance-id: 31",
        b"",
        b"",
    ]


async def test_url_prefix_stands_before_the_path() -> None:
    settings = settings_for({"dynamo": [FakeFrontend()]})
    replica = table_of(settings).replicas["dynamo-0"]
    replica.upstream.address = replica.upstream.address._replace(prefix="/inner")
    assert request_head(replica, order(), ()).startswith(b"POST /inner/v1/chat/completions HTTP/1.1\r\n")


async def test_connection_is_kept_and_used_again() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend):
        table = table_of(settings_for({"dynamo": [frontend]}))
        for _ in range(3):
            assert b"chatcmpl-1" in await whole(await pinned(table))
        assert frontend.connections == 1
        assert table.replicas["dynamo-0"].in_flight == 0
        table.replicas["dynamo-0"].upstream.retire()


@pytest.mark.field("B-103")
async def test_kept_connection_that_died_costs_a_fresh_one_and_no_retry() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend):
        table, counts = table_of(settings_for({"dynamo": [frontend]})), Counts()
        await whole(await pinned(table, counts))
        for writer in list(frontend._writers):
            writer.close()
        await until(lambda: frontend.open_connections == 0)
        await whole(await pinned(table, counts))
        assert (frontend.connections, counts.retries, len(frontend.chats)) == (2, 0, 2)
        table.replicas["dynamo-0"].upstream.retire()


@pytest.mark.req("SHIM-17")
@pytest.mark.parametrize(("retries_max", "served"), [(0, False), (1, False), (2, True)])
async def test_retries_stay_within_their_budget(retries_max: int, served: bool) -> None:
    dead, dying, alive = FakeFrontend(), FakeFrontend(), FakeFrontend(aggregated={31: 1})
    async with running(dead, dying, alive):
        await dead.stop()
        await dying.stop()
        table, counts = table_of(settings_for({"dynamo": [dead, dying, alive]})), Counts()
        table._turn = -1  # the order of equal replicas: alive last
        table.replicas["dynamo-2"].in_flight = 1
        result = await pinned(table, counts, deadlines=DeadlineSettings(retries_max=retries_max))
        assert isinstance(result, Begun) is served
        assert counts.retries == min(retries_max, 2)
        if isinstance(result, NotServed):
            assert (result.backend, result.http_status) == ("", 0)
        else:
            await whole(result)
        table.replicas["dynamo-2"].upstream.retire()


@pytest.mark.field("B-087")
async def test_a_retry_sends_the_very_same_request() -> None:
    dead, alive = FakeFrontend(), FakeFrontend(aggregated={31: 1})
    headers = ((b"X-Session", b"s-1"), (b"x-tenant-id", b"t"), (b"traceparent", b"00-1"))
    async with running(dead, alive):
        await dead.stop()
        table, counts = table_of(settings_for({"dynamo": [dead, alive]})), Counts()
        table.replicas["dynamo-1"].in_flight = 1  # so that the dead one is tried first
        await whole(await pinned(table, counts, headers=headers))
        assert counts.retries == 1
        head = request_head(table.replicas["dynamo-1"], order(headers=headers), PINS.headers)
        lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:-2]]
        assert [(n.encode(), v.encode()) for n, v in alive.chats[0].headers] == [(n, v) for n, _, v in lines]
        assert alive.chats[0].body == DATA
        table.replicas["dynamo-1"].upstream.retire()


async def test_no_replica_is_told() -> None:
    table = table_of(settings_for({"dynamo": []}))
    assert await pinned(table) == NotServed(NO_REPLICA, 0, "")
    assert await Tries(table, order(), Counts()).unified() == NotServed(NO_REPLICA, 0, "")


async def test_only_failures_of_the_connection_count_for_the_breaker() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend):
        table = table_of(settings_for({"dynamo": [frontend]}))
        breaker = table.replicas["dynamo-0"].breaker
        now = int(asyncio.get_running_loop().time() * 1e6)
        frontend.status = 500
        for _ in range(6):
            assert isinstance(await pinned(table), NotServed)
        assert breaker.state(now) is BreakerState.CLOSED
        frontend.status, frontend.misbehaviour = None, Misbehaviour.CLOSES_BEFORE_ANSWER
        for _ in range(5):
            assert isinstance(await pinned(table), NotServed)
        assert breaker.state(now) is BreakerState.OPEN


@pytest.mark.req("DYN-15")
@pytest.mark.field("B-032", "B-108")
@pytest.mark.parametrize(
    "misbehaviour",
    [Misbehaviour.NEVER_ANSWERS, Misbehaviour.STALLS_MID_STREAM, Misbehaviour.CLOSES_AFTER_HEAD],
)
@pytest.mark.parametrize("after_turns", [0, 1, 5, 200])
async def test_cancelling_at_any_point_gives_everything_back(
    misbehaviour: Misbehaviour, after_turns: int
) -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    frontend.misbehaviour = misbehaviour
    async with running(frontend):
        table = table_of(settings_for({"dynamo": [frontend]}))
        data = b'{"model":"tiny-chat","messages":[],"stream":true}'

        async def go() -> None:
            result = await pinned(table, data=data)
            try:
                await whole(result)
            finally:
                if isinstance(result, Begun):
                    result.close()

        task = asyncio.create_task(go())
        for _ in range(after_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert table.replicas["dynamo-0"].in_flight == 0
        await until(lambda: frontend.open_connections == 0)


async def test_ordinary_backend_that_is_down_gives_way_to_the_next() -> None:
    dead, alive = FakeFrontend(plain=True), FakeFrontend(plain=True)
    async with running(dead, alive):
        await dead.stop()
        table = table_of(settings_for({}, [dead, alive]))
        for _ in range(2):
            result = await Tries(table, order(), Counts()).unified()
            assert isinstance(result, Begun)
            assert result.replica.name == "plain-1"
            result.close()
        alive.misbehaviour = Misbehaviour.CLOSES_BEFORE_ANSWER
        lost = await Tries(table, order(), Counts()).unified()
        assert isinstance(lost, NotServed)
        assert lost.row.code is ErrorCode.UPSTREAM_FAILED
