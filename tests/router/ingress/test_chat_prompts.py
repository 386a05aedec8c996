"""Chats whose prompt is read before the pick."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.picks import EndStatus, Fault, KvResult, PickReason
from projections.notices import BlocksOrphaned
from router.metrics import ErrorPhase, RoutingPath
from router.question import PromptFacts
from router.settings import PromptSettings
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.ingress.chats import ALONE, PAIR, ROUTES, code_of, pair_frontend, pair_settings
from tests.router.rig import FakePrompts, Rig, rig, settings_for, until

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
