"""Chats through the whole front door: pins, what answers mean, replicas, fallbacks."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from projections.events.picks import EndStatus, Fault
from projections.registry.fleet import Fleet, Role
from router.ingress import chat
from router.metrics import ErrorPhase, RoutingPath
from router.settings import BreakerSettings, DeadlineSettings, KeySettings
from tests.router.fake_frontend import FakeFrontend, Misbehaviour, running
from tests.router.ingress.chats import ALONE, PAIR, ROUTES, code_of, pair_frontend, pair_settings
from tests.router.rig import fleet_of, rig, settings_for, until, worker

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


def test_fleets_of_these_tests_serve_one_model() -> None:
    assert isinstance(PAIR, Fleet)
    assert PAIR.models() == ALONE.models() == ("tiny-chat",)
