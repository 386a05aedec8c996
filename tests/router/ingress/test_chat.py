"""Chats through the whole front door: pins, answers, fallbacks, clients that leave."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from dataclasses import replace
from typing import Any

import pytest

from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.envelope import Record
from projections.events.kinds import KIND_OF_FACT
from projections.events.picks import EndStatus, Fault, KvResult, PickMade, PickReason
from projections.load.ledger import Ledger
from projections.notices import BlocksOrphaned
from projections.registry.fleet import Fleet, Role
from router.ingress import chat
from router.metrics import ErrorPhase, RoutingPath
from router.question import PromptFacts
from router.settings import BreakerSettings, DeadlineSettings, KeySettings, PromptSettings, RouterSettings
from tests.router.fake_frontend import FakeFrontend, Misbehaviour, running
from tests.router.rig import REPLICA, FakePrompts, Rig, fleet_of, rig, settings_for, until, worker

PAIR = fleet_of(worker(11, Role.PREFILL), worker(21, Role.DECODE))
ALONE = fleet_of(worker(31, Role.AGGREGATED))
ROUTES = ["/v1/chat/completions", "/v1/completions"]


def pair_frontend(**changes: Any) -> FakeFrontend:
    return FakeFrontend(prefill={11: 1, 12: 1}, decode={21: 1, 22: 1}, **changes)


def pair_settings(*frontends: FakeFrontend, **changes: Any) -> RouterSettings:
    return settings_for({"dynamo": list(frontends)}, **changes)


def code_of(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code


# pins and bodies


@pytest.mark.req("SHIM-02", "SHIM-06", "SHIM-08", "SHIM-16", "SHIM-26")
@pytest.mark.field("B-102")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
async def test_chat_is_pinned_to_the_picked_pair_and_answered(stream: bool, path: str) -> None:
    frontend = pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, body = await router.chat(stream=stream, path=path)
        (seen,) = frontend.chats
        assert answer.status == 200
        assert seen.steering == [
            ("x-dynamo-worker-instance-id", "21"),
            ("x-dynamo-prefill-instance-id", "11"),
        ]
        assert answer.headers["X-Continuum-Routing-Path"] == "prefill_then_decode"
        assert body == frontend.stream_body(seen) if stream else json.loads(body)["id"] == "chatcmpl-1"
        end = await router.ended()
        assert (end.status, end.fault, end.http_status, end.backend) == (EndStatus.OK, 0, 200, "dynamo-0")
        assert (end.prompt_tokens, end.completion_tokens, end.cached_tokens) == (39, 2, 16)
        assert end.first_byte_us is not None
        assert 0 < end.first_byte_us <= end.duration_us
        assert router.counts.paths == [RoutingPath.PAIR]
        assert router.in_flight() == 0
        (pick,) = router.log.picks
        assert (pick.own_seq, end.own_seq, pick.pick_id) == (0, 2, end.pick_id)
        assert seen.header("x-request-id") == pick.question.request_id == answer.headers["x-request-id"]


@pytest.mark.parametrize(("characters", "is_here"), [(100, True), (300_000, False)])
async def test_a_large_body_is_read_beside_the_event_loop(
    characters: int, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    for name in ("read_body", "estimate_tokens"):
        honest = getattr(chat, name)

        def spied(*given: Any, honest: Any = honest, **named: Any) -> Any:
            threads.append(threading.get_ident())
            return honest(*given, **named)

        monkeypatch.setattr(chat, name, spied)
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(ALONE, pair_settings(frontend)) as router:
        content = "x" * characters
        answer, _ = await router.chat(messages=[{"role": "user", "content": content}])
        assert answer.status == 200
        assert [thread == threading.get_ident() for thread in threads] == [is_here] * 2
        (pick,) = router.log.picks
        assert pick.question.estimated_tokens == characters // 4 + 4
        answer, _ = await router.chat(data=b'{"model": "x"' + b" " * characters)
        assert answer.status == 400


@pytest.mark.req("SHIM-07")
async def test_aggregated_worker_is_pinned_alone() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(ALONE, pair_settings(frontend)) as router:
        answer, _ = await router.chat()
        assert answer.status == 200
        assert frontend.chats[0].steering == [("x-dynamo-worker-instance-id", "31")]
        assert answer.headers["X-Continuum-Routing-Path"] == "unified"
        assert router.counts.paths == [RoutingPath.UNIFIED]


@pytest.mark.req("SHIM-09")
@pytest.mark.field("B-089")
async def test_declared_rank_zero_is_sent() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    fleet = fleet_of(worker(31, Role.AGGREGATED, declared=True))
    async with running(frontend), rig(fleet, pair_settings(frontend)) as router:
        await router.chat()
        assert frontend.chats[0].header("x-dynamo-dp-rank") == "0"


@pytest.mark.req("SHIM-10", "SHIM-11")
@pytest.mark.field("B-090", "B-100", "B-102")
@pytest.mark.parametrize("pinning", [True, False])
@pytest.mark.parametrize("path", ROUTES)
async def test_clients_pins_reach_no_upstream_on_any_route_and_configuration(
    path: str, pinning: bool
) -> None:
    plain = FakeFrontend(plain=True)
    frontend = FakeFrontend(aggregated={31: 1})
    headers = {
        "X-Dynamo-Worker-Instance-Id": "99",
        "x-worker-instance-id": "99",
        "X-Prefill-Instance-ID": "99",
        "x-dp-rank": "9",
        "x-data-parallel-rank": "9",
        "x-prefill-dp-rank": "9",
        "x-dynamo-request-priority": "1",
        "x-tenant-id": "t",
    }
    settings = replace(settings_for({"dynamo": [frontend]}, [plain]), pinning=pinning)
    async with running(frontend, plain), rig(ALONE, settings) as router:
        await router.chat(path=path, headers=headers, nvext={"decode_worker_id": 99, "token_data": [1]})
        seen = (frontend if pinning else plain).chats[0]
        assert seen.steering == ([("x-dynamo-worker-instance-id", "31")] if pinning else [])
        assert seen.header("x-tenant-id") == "t"
        assert "nvext" not in seen.document


@pytest.mark.req("SHIM-03")
async def test_body_keeps_the_clients_model_and_its_bytes() -> None:
    frontend = FakeFrontend(aggregated={31: 1}, models=("alias",))
    data = b' {"model":"alias", "messages":[] ,\t"temperature":1e0}\n'
    async with (
        running(frontend),
        rig(ALONE, pair_settings(frontend), model_map={"alias": "tiny-chat"}) as router,
    ):
        answer, _ = await router.chat(data=data)
        assert answer.status == 200
        assert frontend.chats[0].body == data
        assert frontend.chats[0].header("content-length") == str(len(data))
        assert router.log.picks[0].question.served_model == "tiny-chat"


@pytest.mark.req("SHIM-14", "SHIM-15")
@pytest.mark.parametrize("asks", [True, False])
async def test_who_served_is_told_only_to_those_who_ask(asks: bool) -> None:
    frontend = pair_frontend()
    frontend.answer_headers = [("x-dynamo-worker-instance-id", "21"), ("x-worker-instance-id", "21")]
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        headers = {"x-backend": ""} if asks else {}
        answer, body = await router.chat(headers=headers, nvext={"extra_fields": ["worker_id"]})
        told = {name for name in answer.headers if name.startswith("X-Continuum-")} - {
            "X-Continuum-Routing-Path"
        }
        assert not any("dynamo" in n.lower() or n.lower() == "x-worker-instance-id" for n in answer.headers)
        if asks:
            assert answer.headers["X-Continuum-Backend"] == "dynamo-0"
            assert answer.headers["X-Continuum-Decode-Worker"] == "dynamo/21"
            assert answer.headers["X-Continuum-Prefill-Worker"] == "dynamo/11"
            assert json.loads(body)["nvext"]["worker_id"]["decode_worker_id"] == 21
        else:
            assert told == set()
            assert "nvext" not in json.loads(body)
        assert frontend.chats[0].header("x-backend") is None


@pytest.mark.field("B-101")
async def test_backends_key_is_sent_and_the_callers_never_is() -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, keys=(KeySettings("k", "client-key"),), keys_required=True)
    backends = (replace(settings.backends[0], api_key="backend-key"),)
    async with running(frontend), rig(PAIR, replace(settings, backends=backends)) as router:
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (401, "invalid_api_key")
        answer, _ = await router.chat(
            headers={"Authorization": "Bearer client-key", "X-API-Key": "client-key"}
        )
        assert answer.status == 200
        (seen,) = frontend.chats
        assert seen.header("authorization") == "Bearer backend-key"
        assert b"client-key" not in str(seen.headers).encode()


@pytest.mark.field("B-101")
async def test_empty_key_of_a_backend_sends_no_header() -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend)
    backends = (replace(settings.backends[0], api_key=""),)
    async with running(frontend), rig(PAIR, replace(settings, backends=backends)) as router:
        await router.chat(headers={"Authorization": "Bearer x"})
        assert frontend.chats[0].header("authorization") is None


# what answers mean, with and without a fallback

STATUSES = [
    # status, body, end, fault, client's status and code, falls back, phase
    (529, None, EndStatus.REFUSED, Fault.BACKPRESSURE, 429, "rate_limited", True, "decode"),
    (429, None, EndStatus.REFUSED, Fault.BACKPRESSURE, 429, "rate_limited", True, "decode"),
    (408, None, EndStatus.REFUSED, Fault.BACKPRESSURE, 429, "rate_limited", True, "decode"),
    (500, None, EndStatus.FAILED, Fault.FAULT, 502, "disaggregated_decode_failed", True, "decode"),
    (503, None, EndStatus.FAILED, Fault.FAULT, 502, "disaggregated_decode_failed", True, "decode"),
    (502, None, EndStatus.FAILED, Fault.NONE, 502, "disaggregated_decode_failed", True, "decode"),
    (
        500,
        b'{"message":"Prefill worker ID required in Direct routing mode"}',
        EndStatus.REFUSED,
        Fault.NONE,
        503,
        "disaggregated_prefill_decode_unavailable",
        False,
        "orchestration",
    ),
    (
        400,
        b'{"message":"nvext.decode_worker_id=21 does not identify a known worker"}',
        EndStatus.REFUSED,
        Fault.NONE,
        503,
        "no_worker",
        True,
        "decode",
    ),
    (404, None, EndStatus.REFUSED, Fault.NONE, 503, "no_shim", True, "decode"),
]


@pytest.mark.req("SHIM-20", "SHIM-22", "SHIM-23", "SHIM-24", "MET-11")
@pytest.mark.field("B-091", "B-097")
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", STATUSES, ids=lambda case: f"{case[0]}-{case[5]}")
async def test_each_answer_of_a_frontend(case: Any, stream: bool, fallback: bool) -> None:
    status, error_body, end_status, fault, client_status, code, falls_back, phase = case
    frontend, plain = pair_frontend(), FakeFrontend(plain=True)
    frontend.status, frontend.error_body = status, error_body
    settings = settings_for({"dynamo": [frontend]}, [plain], fallback_to_unified=fallback)
    async with running(frontend, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat(stream=stream)
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (end_status, fault, status)
        assert router.counts.phases == [ErrorPhase(phase)]
        if fallback and falls_back:
            assert answer.status == 200
            assert answer.headers["X-Continuum-Routing-Path"] == "fallback"
            assert router.counts.paths == [RoutingPath.FALLBACK]
            assert plain.chats[0].steering == []
        else:
            assert (answer.status, code_of(body)) == (client_status, code)
            assert answer.headers["X-Continuum-Routing-Path"] == "prefill_then_decode"
            assert router.counts.paths == [RoutingPath.PAIR]
            assert plain.chats == []
        assert (len(router.log.picks), len(router.log.ends)) == (1, 1)
        assert router.in_flight() == 0


@pytest.mark.req("SHIM-24")
@pytest.mark.field("B-097")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 413, 422])
async def test_other_refusals_of_the_request_are_relayed(status: int, stream: bool) -> None:
    frontend, plain = pair_frontend(), FakeFrontend(plain=True)
    frontend.status, frontend.error_body = status, b'{"message":"Validation: no","type":"x","code":1}'
    settings = settings_for({"dynamo": [frontend]}, [plain], fallback_to_unified=True)
    async with running(frontend, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat(stream=stream)
        assert (answer.status, body) == (status, frontend.error_body)
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.REFUSED, Fault.NONE, status)
        assert plain.chats == []


@pytest.mark.req("SHIM-24", "SHIM-29")
async def test_bare_400_counts_as_a_lost_worker_only_if_the_worker_left() -> None:
    frontend = pair_frontend()
    frontend.status, frontend.error_body = 400, b'{"message":"Invalid request"}'
    frontend.delay_s = 0.05
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, _ = await router.chat()
        assert answer.status == 400
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 2)
        router.log.fleet = fleet_of(worker(11, Role.PREFILL), worker(22, Role.DECODE), generation=2)
        answer, body = await asking
        assert (answer.status, code_of(body)) == (503, "no_worker")


@pytest.mark.req("SHIM-21", "SHIM-29")
@pytest.mark.field("B-091")
@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        ("1.4.2", 502, "disaggregated_decode_failed"),
        ("1.5.0", 503, "no_worker"),
        ("1.6.1", 400, None),
    ],
)
async def test_pin_that_a_frontend_does_not_know(version: str, status: int, code: str | None) -> None:
    frontend = FakeFrontend(version=version, prefill={11: 1}, decode={77: 1})
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, body = await router.chat()
        assert answer.status == status
        if code is not None:
            assert code_of(body) == code


async def test_retry_after_of_a_frontend_is_passed_on() -> None:
    frontend = pair_frontend()
    frontend.status, frontend.answer_headers = 429, [("Retry-After", "7")]
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, _ = await router.chat()
        assert answer.headers["Retry-After"] == "7"
        frontend.answer_headers = [("Retry-After", "\u00b9\u00b2")]  # digits, but no number
        answer, _ = await router.chat()
        assert answer.headers["Retry-After"] == "1"
        frontend.answer_headers = [("Retry-After", "Wed, 21 Oct")]
        answer, _ = await router.chat()
        assert answer.headers["Retry-After"] == "1"


# replicas


@pytest.mark.req("SHIM-17", "SHIM-18")
@pytest.mark.field("B-086", "B-087")
async def test_dead_replica_costs_a_retry_with_the_same_pins() -> None:
    dead, alive = pair_frontend(), pair_frontend()
    fleet = fleet_of(
        *(worker(n, Role.PREFILL) for n in (11, 12)), *(worker(n, Role.DECODE) for n in (21, 22))
    )
    async with running(dead, alive), rig(fleet, pair_settings(dead, alive)) as router:
        await dead.stop()
        for number in range(4):
            answer, _ = await router.chat()
            assert answer.status == 200
            pick = router.log.picks[-1].outcome
            assert pick.decode.chosen is not None
            assert alive.chats[-1].header("x-dynamo-worker-instance-id") == str(
                pick.decode.chosen.instance_id
            )
            assert router.log.ends[-1].backend == "dynamo-1"
            assert len(router.log.picks) == number + 1
        assert router.counts.retries >= 1


@pytest.mark.req("SHIM-17")
@pytest.mark.field("B-016")
async def test_replica_that_lacks_the_model_is_left_for_another() -> None:
    without, good = pair_frontend(models=()), pair_frontend()
    async with running(without, good), rig(PAIR, pair_settings(without, good)) as router:
        for _ in range(3):
            answer, _ = await router.chat()
            assert answer.status == 200
        assert len(good.chats) == 3
        assert len(without.chats) <= 1
        assert router.counts.unusable == len(without.chats)


@pytest.mark.req("SHIM-01")
async def test_breaker_opens_on_a_dead_frontend_and_the_namespace_says_so() -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, breaker=BreakerSettings(failure_threshold=2))
    async with running(frontend), rig(PAIR, settings) as router:
        await frontend.stop()
        codes = [code_of((await router.chat())[1]) for _ in range(4)]
        assert codes == ["disaggregated_decode_failed"] * 2 + ["no_shim"] * 2
        assert len(router.log.picks) == 2
        assert [(end.status, end.backend, end.http_status) for end in router.log.ends] == [(3, "", 0)] * 2


@pytest.mark.req("MNS-01", "MNS-02")
async def test_each_namespace_is_reached_through_its_own_pool() -> None:
    blue, green = FakeFrontend(aggregated={31: 1}), FakeFrontend(aggregated={32: 1})
    fleet = fleet_of(
        worker(31, Role.AGGREGATED, namespace="blue"), worker(32, Role.AGGREGATED, namespace="green")
    )
    settings = settings_for({"blue": [blue], "green": [green]})
    keys = (KeySettings("g", "green-key", allowed_backends=frozenset({"green-0"})),)
    async with running(blue, green), rig(fleet, replace(settings, keys=keys)) as router:
        for _ in range(4):
            answer, _ = await router.chat()
            assert answer.status == 200
        assert {seen.header("x-dynamo-worker-instance-id") for seen in blue.chats} == {"31"}
        assert {seen.header("x-dynamo-worker-instance-id") for seen in green.chats} == {"32"}
        before = len(blue.chats)
        for _ in range(3):
            answer, _ = await router.chat(headers={"Authorization": "Bearer green-key"})
            assert answer.status == 200
        assert len(blue.chats) == before
        question = router.log.picks[-1].question
        assert (question.namespaces, question.absent) == (("green",), (("blue", 4),))


# nothing to pin


@pytest.mark.req("SHIM-04", "SHIM-05")
async def test_without_worker_or_frontend_an_ordinary_backend_serves() -> None:
    frontend, plain = pair_frontend(), FakeFrontend(plain=True, models=("tiny-chat", "other"))
    settings = settings_for({"dynamo": [frontend]}, [plain])
    keys = (KeySettings("p", "plain-key", allowed_backends=frozenset({"plain-0"})),)
    async with running(frontend, plain), rig(PAIR, replace(settings, keys=keys)) as router:
        answer, _ = await router.chat(model="other")
        assert (answer.status, answer.headers["X-Continuum-Routing-Path"]) == (200, "unified")
        answer, _ = await router.chat(headers={"Authorization": "Bearer plain-key"})
        assert answer.status == 200
        assert len(plain.chats) == 2
        assert frontend.chats == []
        assert [pick.outcome.decode.chosen for pick in router.log.picks] == [None]
        assert router.log.ends == []


@pytest.mark.field("B-003", "B-144")
async def test_unknown_model_no_worker_and_no_frontend_are_told_apart() -> None:
    frontend = pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, body = await router.chat(model="nobody")
        assert (answer.status, code_of(body)) == (404, "model_not_found")
        await router.chat()
        router.log.fleet = fleet_of(worker(11, Role.PREFILL), generation=2)
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (503, "no_worker")
        router.log.fleet = fleet_of(generation=3)
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (503, "no_worker")
        router.log.fleet = PAIR
        router.service.frontage.table.replicas["dynamo-0"].mark_unusable("tiny-chat")
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (503, "no_shim")


@pytest.mark.field("B-144")
async def test_a_frontend_that_pushes_back_reads_busy_once_every_worker_has_stalled() -> None:
    frontend = FakeFrontend(aggregated={31: 1})
    long = [{"role": "user", "content": "x" * 400}]  # requests of one block never stall
    async with running(frontend), rig(ALONE, pair_settings(frontend)) as router:
        frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
        stuck = asyncio.create_task(router.chat(messages=long))
        await until(lambda: len(frontend.chats) == 1)
        await asyncio.sleep(0)  # the frontend has begun not to answer it
        frontend.misbehaviour, frontend.status = None, 529
        answer, body = await router.chat(messages=long)
        assert (answer.status, code_of(body)) == (429, "rate_limited")
        router.log._time += 6_000_000
        answer, body = await router.chat(messages=long)
        assert (answer.status, code_of(body)) == (503, "all_workers_busy")
        assert answer.headers["Retry-After"] == "1"
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        await until(lambda: router.in_flight() == 0)


@pytest.mark.req("SHIM-02")
async def test_without_pinning_nothing_is_picked() -> None:
    frontend, plain = pair_frontend(), FakeFrontend(plain=True)
    settings = settings_for({"dynamo": [frontend]}, [plain], pinning=False)
    async with running(frontend, plain), rig(PAIR, settings) as router:
        answer, _ = await router.chat()
        assert answer.status == 200
        assert "X-Continuum-Routing-Path" not in answer.headers
        assert (router.log.picks, router.counts.paths) == ([], [])


async def test_ordinary_backends_errors_are_relayed_and_its_silence_is_told() -> None:
    plain = FakeFrontend(plain=True)
    settings = settings_for({}, [plain], deadlines=DeadlineSettings(first_byte_us=100_000))
    async with running(plain), rig(PAIR, settings) as router:
        plain.status = 503
        answer, body = await router.chat()
        assert (answer.status, json.loads(body)["code"]) == (503, 503)
        plain.status, plain.misbehaviour = None, Misbehaviour.CLOSES_BEFORE_ANSWER
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (502, "upstream_failed")
        plain.misbehaviour = Misbehaviour.NEVER_ANSWERS
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (504, "upstream_timeout")


# the log


async def test_first_byte_waits_for_the_picks_acknowledgement() -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=60_000_000))
    async with running(frontend), rig(PAIR, settings) as router:
        for stream in (False, True):
            router.log.mode = "holds"
            ended = len(router.log.ends)
            asking = asyncio.create_task(router.chat(stream=stream))
            await until(lambda: len(frontend.chats) > ended)  # noqa: B023
            await asyncio.wait({asking}, timeout=0.05)
            assert not asking.done()
            router.log.acknowledge()
            answer, _ = await asking
            assert answer.status == 200
            await router.ended(ended + 1)
        assert router.counts.unlogged == 0


@pytest.mark.parametrize("how", ["away", "sheds", "slow", "lost"])
async def test_outage_rule_lets_answers_out_and_counts_them(how: str) -> None:
    frontend = pair_frontend()
    wait_us = 30_000 if how == "slow" else 60_000_000
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=wait_us))
    async with running(frontend), rig(PAIR, settings) as router:
        router.log.away = how == "away"
        router.log.mode = "sheds" if how == "sheds" else "holds"
        asking = asyncio.create_task(router.chat(stream=True))
        if how == "lost":
            await until(lambda: bool(router.log.picks))
            router.log.acknowledge(durable=False)
        answer, _ = await asking
        assert answer.status == 200
        assert router.counts.unlogged == 1


async def test_errors_of_ours_wait_for_the_pick_too() -> None:
    frontend = pair_frontend()
    frontend.status = 500
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=60_000_000))
    async with running(frontend), rig(PAIR, settings) as router:
        router.log.mode = "holds"
        asking = asyncio.create_task(router.chat())
        await router.ended()
        await asyncio.wait({asking}, timeout=0.05)
        assert not asking.done()
        router.log.acknowledge()
        assert (await asking)[0].status == 502


@pytest.mark.req("PICK-13")
async def test_settings_that_change_in_between_hold_for_later_requests_only() -> None:
    frontend = pair_frontend()
    frontend.delay_s = 0.05
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 1)
        router.log.version, router.log.enabled = 2, False
        router.service.reconfigure(replace(pair_settings(), pools=(), backends=()))
        answer, _ = await asking
        assert answer.status == 200
        assert router.log.picks[0].config_version == 1
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (404, "model_not_found")


# clients that leave, frontends that break


async def leave(router: Rig, frontend: FakeFrontend, path: str, *, stream: bool, after_bytes: int) -> None:
    """Send a chat and close the connection after so many bytes of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    body = json.dumps({"model": "tiny-chat", "messages": [], "stream": stream}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body))
    writer.write(head + body)
    await until(lambda: len(frontend.chats) >= 1)
    if after_bytes:
        await reader.readexactly(after_bytes)
    writer.transport.abort()


@pytest.mark.req("SHIM-27", "STORE-11", "DYN-15")
@pytest.mark.field("B-092", "B-093", "B-094")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("stream", "after_bytes"), [(False, 0), (True, 0), (True, 400)])
async def test_client_that_leaves_closes_the_upstream_within_a_second(
    stream: bool, after_bytes: int, path: str
) -> None:
    frontend = pair_frontend()
    if after_bytes:
        frontend.events, frontend.event_delay_s = 1000, 0.01
    else:
        frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        await leave(router, frontend, path, stream=stream, after_bytes=after_bytes)
        seen = frontend.chats[0]
        async with asyncio.timeout(5):
            await seen.done.wait()
        assert seen.aborted
        end = await router.ended()
        assert (end.status, end.fault) == (EndStatus.CANCELLED, Fault.NONE)
        assert end.http_status == (200 if after_bytes else 0)
        await until(lambda: router.in_flight() == 0)
        assert len(router.log.ends) == 1
        overlay = router.log.view()
        assert not overlay.is_stalled(worker(21, Role.DECODE).key, 10**9)


@pytest.mark.req("DYN-18", "SHIM-19", "DYN-19")
@pytest.mark.field("B-097", "B-098")
@pytest.mark.parametrize("misbehaviour", [Misbehaviour.CLOSES_MID_STREAM, Misbehaviour.CLOSES_MID_EVENT])
async def test_stream_that_breaks_ends_with_an_error_event_and_is_not_sent_again(
    misbehaviour: Misbehaviour,
) -> None:
    first, second, plain = pair_frontend(), pair_frontend(), FakeFrontend(plain=True)
    for frontend in (first, second):
        frontend.misbehaviour, frontend.event_delay_s = misbehaviour, 0.02
    settings = settings_for({"dynamo": [first, second]}, [plain], fallback_to_unified=True)
    async with running(first, second, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat(stream=True, n=2, response_format={"type": "json_object"})
        assert answer.status == 200
        *begun, error, done, rest = body.split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
        assert (done, rest) == (b"data: [DONE]", b"")
        assert len(begun) >= 2
        assert b"127.0.0.1" not in error
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.FAILED, Fault.NONE, 200)
        assert len(first.chats) + len(second.chats) == 1
        assert plain.chats == []


@pytest.mark.parametrize(
    ("misbehaviour", "stream"),
    [
        (Misbehaviour.CLOSES_BEFORE_ANSWER, False),
        (Misbehaviour.CLOSES_BEFORE_ANSWER, True),
        (Misbehaviour.CLOSES_AFTER_HEAD, True),
        (Misbehaviour.CLOSES_MID_BODY, False),
        (Misbehaviour.NOT_HTTP, False),
        (Misbehaviour.TWO_LENGTHS, False),
        (Misbehaviour.BOTH_FRAMINGS, False),
    ],
)
@pytest.mark.req("DYN-14", "SHIM-24")
@pytest.mark.field("B-005", "B-086", "B-104")
async def test_connection_lost_before_any_byte_is_not_resent_and_makes_the_workers_suspect(
    misbehaviour: Misbehaviour, stream: bool
) -> None:
    first, second = pair_frontend(), pair_frontend()
    first.misbehaviour = second.misbehaviour = misbehaviour
    async with running(first, second), rig(PAIR, pair_settings(first, second)) as router:
        answer, body = await router.chat(stream=stream)
        assert (answer.status, code_of(body)) == (502, "disaggregated_decode_failed")
        assert len(first.chats) + len(second.chats) == 1
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.FAILED, Fault.FAULT, 0)
        now = router.log.log_time()[0]
        assert router.log.view().is_suspect(worker(21, Role.DECODE).key, now)


@pytest.mark.req("DYN-15")
@pytest.mark.field("B-032")
@pytest.mark.parametrize("drops", [False, True])
async def test_a_hundred_failures_leave_no_count_and_no_load_behind(drops: bool) -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, breaker=BreakerSettings(enabled=False))
    async with running(frontend), rig(PAIR, settings) as router:
        frontend.status = 500
        frontend.misbehaviour = Misbehaviour.CLOSES_BEFORE_ANSWER if drops else None
        for _ in range(100):
            answer, _ = await router.chat()
            assert answer.status == 502
        assert router.in_flight() == 0
        assert [end.pick_id for end in router.log.ends] == [pick.pick_id for pick in router.log.picks]
        ledger = Ledger()
        for fact in (*router.log.picks, *router.log.ends):
            record = Record(0, 0, KIND_OF_FACT[type(fact)], 1, REPLICA, 0, 1, fact)
            ledger.apply_pick(record, PAIR) if isinstance(fact, PickMade) else ledger.apply_end(record)
        assert ledger.running() == {}
        ledger.prune(10**9)
        assert len(ledger) == 0


@pytest.mark.req("DYN-17")
@pytest.mark.field("B-104", "B-106")
async def test_silent_frontend_is_given_up_by_the_inner_deadline() -> None:
    frontend, plain = pair_frontend(), FakeFrontend(plain=True)
    frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
    deadlines = DeadlineSettings(first_byte_us=80_000, total_us=60_000_000)
    settings = settings_for({"dynamo": [frontend]}, [plain], deadlines=deadlines, fallback_to_unified=True)
    async with running(frontend, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (504, "upstream_timeout")
        end = await router.ended()
        assert (end.status, end.fault) == (EndStatus.EXPIRED, Fault.NONE)
        assert plain.chats == []  # it may still be running
        async with asyncio.timeout(5):
            await frontend.chats[0].done.wait()
        assert frontend.chats[0].aborted


@pytest.mark.req("DYN-17")
@pytest.mark.parametrize(
    "deadlines", [DeadlineSettings(idle_us=80_000), DeadlineSettings(total_us=200_000)], ids=["idle", "total"]
)
async def test_stream_that_stalls_is_ended_by_its_deadline(deadlines: DeadlineSettings) -> None:
    frontend = pair_frontend()
    frontend.misbehaviour = Misbehaviour.STALLS_MID_STREAM
    async with running(frontend), rig(PAIR, pair_settings(frontend, deadlines=deadlines)) as router:
        answer, body = await router.chat(stream=True)
        assert answer.status == 200
        assert b"upstream_timeout" in body
        assert (await router.ended()).status == EndStatus.EXPIRED


@pytest.mark.field("B-099")
async def test_stream_of_single_bytes_arrives_byte_for_byte() -> None:
    frontend = pair_frontend()
    frontend.misbehaviour = Misbehaviour.BYTE_BY_BYTE
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        _, body = await router.chat(stream=True)
        assert body == frontend.stream_body(frontend.chats[0])
        assert (await router.ended()).prompt_tokens == 39


@pytest.mark.field("B-100")
@pytest.mark.parametrize("stream", [False, True])
async def test_compressed_answers_go_through_untouched(stream: bool) -> None:
    frontend = pair_frontend()
    body = b"\x1f\x8b\x08\x00 not really, but nobody looks"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
    frontend.raw_answer = head + b"content-length: %d\r\n\r\n" % len(body) + body
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, got = await router.chat(stream=stream)
        assert (got, answer.headers["Content-Encoding"]) == (body, "gzip")
        assert answer.headers["Content-Length"] == str(len(body))
        assert (await router.ended()).prompt_tokens is None


async def test_answer_that_ends_with_its_connection_is_whole() -> None:
    frontend = pair_frontend()
    frontend.raw_answer = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}"
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 1)
        await asyncio.wait({asking}, timeout=0.05)
        for writer in list(frontend._writers):
            writer.write_eof()
        answer, body = await asking
        assert (answer.status, body) == (200, b"{}")


@pytest.mark.field("B-106")
async def test_rubbish_routing_does_not_wait_for_a_slow_neighbour() -> None:
    """One frontend that accepts and never answers holds up its own requests only."""
    silent, good = FakeFrontend(aggregated={31: 1}), FakeFrontend(aggregated={32: 1}, models=("other",))
    silent.misbehaviour = Misbehaviour.NEVER_ANSWERS
    fleet = fleet_of(
        worker(31, Role.AGGREGATED, namespace="blue"),
        worker(32, Role.AGGREGATED, namespace="green", model="other"),
    )
    async with running(silent, good), rig(fleet, settings_for({"blue": [silent], "green": [good]})) as router:
        stuck = [asyncio.create_task(router.chat()) for _ in range(50)]
        await until(lambda: len(silent.chats) == 50)
        async with asyncio.timeout(10):
            answers = [await router.chat(model="other") for _ in range(5)]
        assert [answer.status for answer, _ in answers] == [200] * 5
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        await until(lambda: router.in_flight() == 0)
        assert len(router.log.ends) == 55


# prompts

TOKENS = struct.pack("<3I", 5, 6, 70_000)
HASHES = b"".join(number.to_bytes(8, "big") for number in range(1, 5))
FACTS = PromptFacts(KvResult.READY, 70, ((16, HASHES),), TOKENS)


@pytest.mark.req("KVP-14", "RND-11")
@pytest.mark.parametrize("path", ROUTES)
async def test_the_prompt_is_read_before_the_pick_and_recorded_with_it(path: str) -> None:
    prompts, frontend = FakePrompts(FACTS), FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(ALONE, pair_settings(frontend), prompts=prompts) as router:
        answer, _ = await router.chat(path=path, headers={"X-Tenant-Id": "t"}, model="tiny-chat")
        assert answer.status == 200
        [asked] = prompts.asked
        assert (asked.path, asked.served_model, asked.namespaces) == (path, "tiny-chat", ("dynamo",))
        assert asked.headers["x-tenant-id"] == "t" and asked.document["model"] == "tiny-chat"
        end = await router.ended()
        [pick] = router.log.picks
        question = pick.question
        assert (question.prompt_result, question.isl_tokens) == (KvResult.READY, 70)
        assert [(one.blocks, one.hashes) for one in question.hashes] == [(4, HASHES[:8])], (
            "cut to what matters"
        )
        assert pick.outcome.kv_result == KvResult.NO_OVERLAP
        assert [(made.pick_id, status) for made, status in prompts.ends] == [(pick.pick_id, EndStatus.OK)]
        assert router.counts.compared == [(0, 16)] and end.cached_tokens == 16
        assert "nvext" not in frontend.chats[0].document, "tokens stay here unless they are asked for"


def let_decode_prefill(router: Rig) -> None:
    """Settings under which every prompt of these tests goes to its decode worker alone."""
    always = ConditionalSettings("isl_bounding", 2_048, 1.01, None, None)
    kv = router.log.pick_settings.kv
    assert kv is not None
    router.log.pick_settings = router.log.pick_settings._replace(kv=kv._replace(conditional=always))


@pytest.mark.req("CDG-06")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bypass_pins_the_decode_worker_alone_and_reads_unified(stream: bool) -> None:
    # as a frontend that lets decode workers prefill would serve them; of none it is known (CDG-07)
    prompts, frontend = FakePrompts(FACTS), FakeFrontend(aggregated={21: 1})
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        let_decode_prefill(router)
        answer, _ = await router.chat(stream=stream, headers={"x-backend": "show"})
        assert answer.status == 200
        assert frontend.chats[0].steering == [("x-dynamo-worker-instance-id", "21")]
        assert answer.headers["X-Continuum-Routing-Path"] == "unified"
        assert answer.headers["X-Continuum-Decode-Worker"] == "dynamo/21"
        assert "X-Continuum-Prefill-Worker" not in answer.headers
        assert router.counts.paths == [RoutingPath.UNIFIED]
        [pick] = router.log.picks
        assert pick.outcome.kv_result == KvResult.BYPASS
        assert pick.outcome.prefill.reason == PickReason.CONDITIONAL_BYPASS


@pytest.mark.req("CDG-07", "SHIM-21", "SHIM-22")
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.4.2", "1.5.0", "1.6.1"])
async def test_frontends_refuse_a_bypass_which_is_a_decode_failure(
    version: str, stream: bool, fallback: bool
) -> None:
    prompts, frontend, plain = FakePrompts(FACTS), pair_frontend(version=version), FakeFrontend(plain=True)
    settings = settings_for({"dynamo": [frontend]}, [plain], fallback_to_unified=fallback)
    async with running(frontend, plain), rig(PAIR, settings, prompts=prompts) as router:
        let_decode_prefill(router)
        answer, body = await router.chat(stream=stream)
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.FAILED, Fault.FAULT, 500)
        assert router.counts.phases == [ErrorPhase.DECODE]
        assert len(frontend.chats) == 1, "it is sent once"
        if fallback:
            assert (answer.status, answer.headers["X-Continuum-Routing-Path"]) == (200, "fallback")
            assert plain.chats[0].steering == []
        else:
            assert (answer.status, code_of(body)) == (502, "disaggregated_decode_failed")
            assert answer.headers["X-Continuum-Routing-Path"] == "unified"
            assert plain.chats == []


@pytest.mark.req("KVP-13", "KVP-14", "RND-07")
@pytest.mark.parametrize(
    "result", [KvResult.RENDER_UNAVAILABLE, KvResult.ARTIFACT_UNPINNED, KvResult.MISMATCHED]
)
async def test_a_prompt_that_cannot_be_used_goes_out_by_load_and_the_pick_says_why(result: KvResult) -> None:
    prompts = FakePrompts(FACTS._replace(result=result))
    frontend = pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        answer, _ = await router.chat()
        assert answer.status == 200
        [pick] = router.log.picks
        assert (pick.question.prompt_result, pick.question.hashes) == (result, ())
        assert pick.outcome.kv_result == result
        await router.ended()
        assert router.counts.compared == []


async def test_of_a_pair_the_answer_tells_of_another_cache_and_is_not_compared() -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        await router.chat()
        await router.ended()
        assert len(prompts.ends) == 1 and router.counts.compared == []


async def test_where_prefix_aware_picks_are_off_no_prompt_is_read() -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        router.log.pick_settings = router.log.pick_settings._replace(kv=None)
        await router.chat()
        assert prompts.asked == []
        assert router.log.picks[0].question.prompt_result == KvResult.OFF
        router.log.enabled = False
        await router.chat()
        assert prompts.asked == []


@pytest.mark.req("NVX-01", "NVX-03", "NVX-05")
async def test_rendered_tokens_go_to_frontends_where_it_is_asked_for() -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    settings = pair_settings(frontend, prompt=PromptSettings(send_token_data=True))
    async with running(frontend), rig(PAIR, settings, prompts=prompts) as router:
        await router.chat(nvext={"cache_salt": "s", "token_data": [1]})
        assert frontend.chats[-1].document["nvext"] == {"cache_salt": "s", "token_data": [5, 6, 70_000]}
        prompts.facts = FACTS._replace(token_ids=b"")
        await router.chat()
        assert "nvext" not in frontend.chats[-1].document, "never an empty list"


@pytest.mark.req("NVX-02")
async def test_replicas_of_a_pool_get_one_body_so_tokens_fit_whichever_serves() -> None:
    """No replica has rewrites of its own here: what was rendered is what every one of them is sent."""
    prompts, lacking, serving = FakePrompts(FACTS), pair_frontend(models=()), pair_frontend()
    settings = pair_settings(lacking, serving, prompt=PromptSettings(send_token_data=True))
    async with running(lacking, serving), rig(PAIR, settings, prompts=prompts) as router:
        for _ in range(4):
            answer, _ = await router.chat()
            assert answer.status == 200
        bodies = {seen.body for frontend in (lacking, serving) for seen in frontend.chats}
        assert len(bodies) == 1 and b'"token_data":[5,6,70000]' in bodies.pop()


@pytest.mark.req("NVX-04")
async def test_a_fallback_to_an_ordinary_backend_carries_no_tokens() -> None:
    prompts, frontend, plain = FakePrompts(FACTS), pair_frontend(), FakeFrontend(plain=True)
    frontend.status = 503
    settings = settings_for(
        {"dynamo": [frontend]},
        [plain],
        fallback_to_unified=True,
        prompt=PromptSettings(send_token_data=True),
    )
    async with running(frontend, plain), rig(PAIR, settings, prompts=prompts) as router:
        answer, _ = await router.chat()
        assert answer.status == 200
        assert "token_data" in frontend.chats[-1].document["nvext"]
        assert "nvext" not in plain.chats[-1].document


@pytest.mark.req("KVP-06")
async def test_draws_are_recorded_where_chance_is_asked_for() -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        await router.chat()
        assert router.log.picks[-1].question.draws == ()
        kv = KvPickSettings(1.0, 1.0, 0.5)
        router.log.pick_settings = router.log.pick_settings._replace(kv=kv)
        await router.chat()
        await router.chat()
        one, two = (pick.question.draws for pick in router.log.picks[-2:])
        assert len(one) == len(two) == 2 and one != two
        assert all(0 <= draw < 1 << 53 for draw in (*one, *two))


@pytest.mark.parametrize("kept", ["predicted", "full"])
async def test_all_hashes_are_recorded_where_a_side_index_or_the_log_wants_them(kept: str) -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    settings = pair_settings(frontend, prompt=PromptSettings(keeps_all_hashes=kept == "full"))
    async with running(frontend), rig(PAIR, settings, prompts=prompts) as router:
        if kept == "predicted":
            kv = KvPickSettings(1.0, 1.0, 0.0, predicted_ttl_us=1_000_000)
            router.log.pick_settings = router.log.pick_settings._replace(kv=kv)
        await router.chat()
        assert router.log.picks[-1].question.hashes[0].hashes == HASHES


@pytest.mark.req("REL-14")
async def test_prompts_are_read_from_the_settings_that_ask_for_it_until_some_do_not() -> None:
    prompts, frontend = FakePrompts(FACTS), pair_frontend()
    async with running(frontend), rig(PAIR, pair_settings(frontend), prompts=prompts) as router:
        service, settings = router.service, router.service.frontage.settings
        service.follow_fleet(PAIR)
        service.follow_fleet(PAIR)
        assert prompts.fleets == [PAIR], "once a fleet"
        news = BlocksOrphaned("dynamo", 7, 0)
        service.noticed([news], 12)
        assert prompts.notices == [((news,), 12)]
        other = replace(settings, prompt=PromptSettings(engine="jinja2"))
        service.reconfigure(other)
        assert prompts.settings.engine == "jinja2"
        service.reconfigure(replace(settings, prompt=None))
        await until(lambda: prompts.closed)
        await router.chat()
        assert prompts.asked == [] and service.prompts is None
        service.reconfigure(settings)
        await router.chat()
        assert len(prompts.asked) == 1


def test_fleets_of_these_tests_serve_one_model() -> None:
    assert isinstance(PAIR, Fleet)
    assert PAIR.models() == ALONE.models() == ("tiny-chat",)
