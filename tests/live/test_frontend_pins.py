"""The front door before real direct-mode frontends: pins are honoured, answers mean what the table says.

The router's view is made of the fleet's own list of workers; who served a chat is the frontend's word
(`nvext.worker_id`). What a frontend of each release answers to a bad pin is compared with the table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import (
    AGGREGATED_MODEL,
    PAIRED_MODEL,
    RELEASES,
    aggregated_plan,
    pair_plan,
)
from projections.events.picks import EndStatus, Fault
from projections.identity import WorkerKey
from projections.registry.fleet import Fleet as PublishedFleet
from projections.registry.fleet import Role
from router.settings import BackendSettings, HealthSettings, PoolSettings, RouterSettings
from tests.live.conftest import FleetMaker
from tests.router.rig import Rig, fleet_of, rig, until, worker

ROLES = {
    "prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "agg": Role.AGGREGATED,
    "aggregated": Role.AGGREGATED,
}
TELL: dict[str, Any] = {"nvext": {"extra_fields": ["worker_id"]}, "max_tokens": 4}
CHAT = "/v1/chat/completions"


def published(fleet: Fleet, **changes: Any) -> PublishedFleet:
    """The fleet as a registry would publish it."""
    return fleet_of(
        *(
            worker(int(row["instance_id"]), ROLES[str(row["role"])], model=row["model"], **changes)
            for row in fleet.workers()
        )
    )


@asynccontextmanager
async def before(fleet: Fleet, published_fleet: PublishedFleet, **changes: Any) -> AsyncIterator[Rig]:
    """A router before the fleet's frontend."""
    settings = RouterSettings(
        backends=(BackendSettings("frontend", fleet.frontend_url("frontend-1")),),
        pools=(PoolSettings("dynamo", ("frontend",)),),
        pinning=True,
        health=HealthSettings(interval_us=500_000, warmup_interval_us=200_000),
        **changes,
    )
    async with rig(published_fleet, settings) as router:
        replica = router.service.frontage.table.replicas["frontend"]
        await until(lambda: replica.is_ready and bool(replica.models), 60)
        yield router


def served(stream: bool, body: bytes) -> dict[str, int]:
    """Who served, in the frontend's words."""
    text = body.split(b"\n\n")[0].removeprefix(b"data: ") if stream else body
    found: dict[str, int] = json.loads(text)["nvext"]["worker_id"]
    return found


@pytest.mark.live("dynamo")
@pytest.mark.req("SHIM-02", "SHIM-06", "SHIM-07", "SHIM-08", "SHIM-14", "SHIM-15")
@pytest.mark.field("B-089")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_picked_workers_serve_every_chat(demo_fleet: Fleet, stream: bool, path: str) -> None:
    async with before(demo_fleet, published(demo_fleet)) as router:
        pairs = set()
        for number in range(8):
            model = (PAIRED_MODEL, AGGREGATED_MODEL)[number % 2]
            answer, body = await router.chat(
                path=path, stream=stream, model=model, headers={"x-backend": ""}, **TELL
            )
            assert answer.status == 200, body
            outcome = router.log.picks[-1].outcome
            told = served(stream, body)
            assert outcome.decode.chosen is not None
            assert told["decode_worker_id"] == outcome.decode.chosen.instance_id
            if outcome.prefill.chosen is not None:
                assert told["prefill_worker_id"] == outcome.prefill.chosen.instance_id
                pairs.add((told["prefill_worker_id"], told["decode_worker_id"]))
            assert answer.headers["X-Continuum-Decode-Worker"] == f"dynamo/{told['decode_worker_id']}"
            end = await router.ended(number + 1)
            assert (end.status, end.backend) == (EndStatus.OK, "frontend")
            if not stream:
                assert end.prompt_tokens
        assert len(pairs) >= 2, "four chats rotate over the pairs"
        answer, body = await router.chat(path=path, **TELL)
        assert b"worker_id" not in body


@pytest.fixture(scope="module", params=RELEASES)
def released_pair(request: pytest.FixtureRequest, make_fleet: FleetMaker) -> Fleet:
    """One prefill and one decode worker of each release, in turn."""
    return make_fleet(pair_plan(1, 1), release=request.param)


@pytest.mark.live("dynamo")
@pytest.mark.req("SHIM-09")
@pytest.mark.parametrize("declared", [(), ("prefill",), ("decode",), ("prefill", "decode")])
async def test_ranks_of_a_pair_are_taken_whoever_declares_them(
    released_pair: Fleet, declared: tuple[str, ...]
) -> None:
    fleet = fleet_of(
        *(
            worker(int(row["instance_id"]), ROLES[row["role"]], declared=ROLES[row["role"]].label in declared)
            for row in released_pair.workers()
        )
    )
    async with before(released_pair, fleet) as router:
        answer, body = await router.chat(headers={"x-backend": ""}, **TELL)
        assert answer.status == 200, body
        outcome = router.log.picks[-1].outcome
        assert outcome.decode.chosen is not None
        assert served(False, body)["decode_worker_id"] == outcome.decode.chosen.instance_id


@pytest.mark.live("dynamo")
@pytest.mark.req("SHIM-21", "SHIM-24", "SHIM-29")
@pytest.mark.parametrize("unknown", ["prefill", "decode"])
async def test_unknown_worker_in_each_release(released_pair: Fleet, unknown: str) -> None:
    """500 in 1.4.2, a 400 that names the worker in 1.5.0, a bare 400 from 1.6.1 on."""
    fleet = fleet_of(
        *(
            worker(
                1234567 if ROLES[row["role"]].label == unknown else int(row["instance_id"]),
                ROLES[row["role"]],
            )
            for row in released_pair.workers()
        )
    )
    wanted = {
        "1.4.2": (502, "disaggregated_decode_failed", 500),
        "1.5.0": (503, "no_worker", 400),
        "1.6.1": (400, None, 400),
    }[released_pair.release]
    async with before(released_pair, fleet) as router:
        answer, body = await router.chat()
        code = json.loads(body).get("error", {}).get("code")
        assert (answer.status, code, (await router.ended()).http_status) == wanted


@pytest.mark.live("dynamo")
@pytest.mark.req("SHIM-10", "SHIM-11", "SHIM-12")
async def test_clients_pins_do_not_reach_the_frontend(demo_fleet: Fleet) -> None:
    async with before(demo_fleet, published(demo_fleet)) as router:
        decodes = [
            str(row["instance_id"]) for row in demo_fleet.workers() if ROLES[str(row["role"])] is Role.DECODE
        ]
        for wanted in decodes * 2:
            headers = {"x-dynamo-worker-instance-id": wanted, "x-worker-instance-id": wanted, "x-backend": ""}
            nvext = {"extra_fields": ["worker_id"], "decode_worker_id": int(wanted), "dp_rank": 7}
            answer, body = await router.chat(headers=headers, nvext=nvext, max_tokens=2)
            assert answer.status == 200, body
            outcome = router.log.picks[-1].outcome
            assert outcome.decode.chosen is not None
            assert served(False, body)["decode_worker_id"] == outcome.decode.chosen.instance_id


@pytest.mark.live("dynamo")
async def test_request_at_fault_is_relayed_in_the_frontends_words(demo_fleet: Fleet) -> None:
    async with before(demo_fleet, published(demo_fleet)) as router:
        answer, body = await router.chat(some_unknown_field=1)
        assert answer.status == 400
        assert b"Unsupported parameter" in body or b"Invalid request" in body
        assert (await router.ended()).status == EndStatus.REFUSED


@pytest.mark.live("dynamo")
@pytest.mark.req("SHIM-24", "SHIM-29", "SHIM-21")
@pytest.mark.parametrize("stream", [False, True])
async def test_pin_of_a_worker_that_is_not_there(demo_fleet: Fleet, stream: bool) -> None:
    """1.6.1 hides why: as long as the worker stands in the registry, its 400 is the client's."""
    ghosts = fleet_of(worker(11, Role.PREFILL), worker(1234567, Role.DECODE))
    async with before(demo_fleet, ghosts) as router:
        answer, body = await router.chat(stream=stream)
        assert answer.status == 400, body
        router.log.after_pick = lambda: setattr(router.log, "fleet", fleet_of(generation=2))
        answer, body = await router.chat(stream=stream)
        assert answer.status == 503, body
        assert json.loads(body)["error"]["code"] == "no_worker"


@pytest.mark.live("dynamo")
async def test_client_that_leaves_frees_the_frontend(demo_fleet: Fleet) -> None:
    async with before(demo_fleet, published(demo_fleet)) as router:
        body = json.dumps({"model": PAIRED_MODEL, "stream": True, "max_tokens": 4000, "messages": [
            {"role": "user", "content": "go on"}]}).encode()  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(
            b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        end = await router.ended()
        assert end.status == EndStatus.CANCELLED
        await until(lambda: router.in_flight() == 0)


@pytest.mark.live("dynamo")
@pytest.mark.req("DYN-14", "SHIM-22")
@pytest.mark.field("B-005")
async def test_killed_worker_costs_its_requests_and_is_avoided_before_its_lease_ends(
    make_fleet: FleetMaker,
) -> None:
    fleet = make_fleet(aggregated_plan(2))
    view = published(fleet)
    victim = next(row for row in fleet.workers() if row["name"] == "agg-1")
    async with before(fleet, view) as router:
        model = victim["model"]
        answers = [await router.chat(model=model, max_tokens=2) for _ in range(4)]
        assert [answer.status for answer, _ in answers] == [200] * 4
        await asyncio.to_thread(fleet.kill, "agg-1")
        failed = 0
        for _ in range(12):
            answer, body = await router.chat(model=model, max_tokens=2)
            failed += answer.status != 200
            if answer.status != 200:
                assert answer.status == 502, body
                end = router.log.ends[-1]
                assert (end.status, end.fault) == (EndStatus.FAILED, Fault.FAULT)
        assert failed == 1, "after the first failure the worker is left out"
        key = WorkerKey("dynamo", int(victim["instance_id"]))
        assert router.log.view().is_suspect(key, router.log.log_time()[0])


@pytest.mark.live("dynamo")
async def test_frontend_that_stops_is_down_and_comes_back(make_fleet: FleetMaker) -> None:
    fleet = make_fleet(pair_plan(1, 1))
    async with before(fleet, published(fleet)) as router:
        assert (await router.chat(max_tokens=2))[0].status == 200
        await asyncio.to_thread(fleet.kill, "frontend-1")
        _, body = await router.chat(max_tokens=2)
        assert json.loads(body)["error"]["code"] in ("disaggregated_decode_failed", "no_shim"), body
        replica = router.service.frontage.table.replicas["frontend"]
        await until(lambda: not replica.is_ready, 30)
        _, body = await router.chat(max_tokens=2)
        assert json.loads(body)["error"]["code"] == "no_shim"
        await asyncio.to_thread(fleet.start, "frontend-1")
        await until(lambda: replica.is_ready and PAIRED_MODEL in replica.models, 60)
        assert (await router.chat(max_tokens=2))[0].status == 200
