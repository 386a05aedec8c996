"""Prefix-aware picks by a real router over real fleets: predicted, found by workers, switched, repeated.

Workers say what they found cached in `usage.prompt_tokens_details.cached_tokens` (releases from 1.5 on; of a
pair it is the decode worker's word). Weights are the defaults where a test names none. Mock prefill workers
report their load once and then no more, so what was sent to one weighs for 30 s: conversations stay with
theirs because a pick charges only what is left to compute (docs/adr/0014).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.demo import chats, conversation, fleet_plan
from deploy.demo.chats import Chat
from deploy.demo.conversation import Turn, talk
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL
from deploy.demo.pins import pins_of
from router.prompt.self_check import CHECKS_MIN
from tests.live.conftest import FleetMaker
from tests.live.router_process import RouterProcess, picklog, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.timeout(300)]
BLOCK = 16
TELLS_CACHED = {"1.6.1": True, "1.4.2": False}
WORDS = "The harbour opens at six and the market on Tuesdays, unless the flag on the mole is red. "


KV = {"enabled": True, "pinned_artifacts": list(pins_of())}


PHASES = ("decode", "prefill", "orchestration")
PHASES_COUNTED = {phase: f'disaggregated_errors_total{{phase="{phase}"}}' for phase in PHASES}
BURSTS_MAX = 6  # until two prompts of one are read within their 20 ms


@pytest.fixture(scope="module", params=list(TELLS_CACHED))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fleet(release: str, make_fleet: FleetMaker) -> Fleet:
    return make_fleet(fleet_plan.demo_plan(), release=release)


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(fleet, tmp_path_factory.mktemp("router"), kv=KV)
    try:
        router.start(models=2)
        until(lambda: blocks_heard(router), "block events of workers")
        for model in (AGGREGATED_MODEL, PAIRED_MODEL):
            until(partial(knows_prompts, router, model), f"prompts of {model} can be read")
        yield router
    finally:
        router.close()


@pytest.fixture
def changing(router: RouterProcess) -> Iterator[Callable[..., None]]:
    """Call it with keys of `dynamo.kv`; waits until they are in force. Put back behind the test."""

    def change(**kv: Any) -> None:
        config = copy.deepcopy(router.config)
        config["dynamo"]["kv"].update(kv)
        put_in_force(router, config)

    yield change
    put_in_force(router, router.config)


def put_in_force(router: RouterProcess, config: dict[str, Any]) -> None:
    """Write a configuration and wait until picks are made under it."""
    told = len(router.log_lines("settings are in force"))
    router.write(config)
    until(lambda: len(router.log_lines("settings are in force")) > told, router.log_tail)
    version = router.log_lines("settings are in force")[-1].partition("version=")[2].split()[0]

    def is_picked_under() -> bool:
        assert router.chat("which-settings", AGGREGATED_MODEL).status == 200
        return int(explained(router, "which-settings")["pick"]["config_version"]) >= int(version)

    until(is_picked_under, f"a pick under settings version {version}")
    until(lambda: blocks_heard(router) == config["dynamo"]["kv"]["enabled"], "block events")


def blocks_heard(router: RouterProcess) -> bool:
    """Whether all subscriptions to block events that there are, and at least one, are connected."""
    rows = router.document("/admin/dynamo/workers")["subscriptions"]
    states = {row["state"] for row in rows if row["family"] == "kv-events"}
    return states == {"connected"}


def knows_prompts(router: RouterProcess, model: str) -> bool:
    """Whether a chat's prompt was read; files are loaded when the first one asks."""
    assert router.chat("warm", model).status == 200
    return bool(explained(router, "warm")["question"]["prompt"] == "ready")


def explained(router: RouterProcess, identifier: str) -> dict[str, Any]:
    """The newest pick of a request id, once the log has it."""
    return router.document(f"/admin/picks/{identifier}")


def converse(router: RouterProcess, name: str, model: str) -> list[Turn]:
    """A conversation nobody had before; each turn was answered by the picked workers."""
    turns = talk(router.url, name, model, name, lambda identifier: explained(router, identifier))
    assert [turn.verdict.complaint for turn in turns] == [""] * len(conversation.TURNS)
    return turns


def ask(router: RouterProcess, name: str, text: str, model: str = AGGREGATED_MODEL) -> chats.Answer:
    answer = chats.send(router.url, Chat(name, model, text, streamed=False))
    assert answer.status == 200, answer
    return answer


def ranks(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Ranks of an index that hold anything, by decimal worker id."""
    return {row["worker_id"]: row for row in document["index"]["ranks"] if row["blocks"]}


@pytest.mark.req("KVX-01", "KVX-02", "KVP-01", "KVP-10", "DYN-01")
def test_turns_go_where_their_beginning_is_held_and_the_worker_found_what_was_predicted(
    router: RouterProcess, release: str
) -> None:
    turns = converse(router, "baker", AGGREGATED_MODEL)
    assert conversation.is_stuck(turns)
    for turn in turns[1:]:
        pick = turn.explained["pick"]
        assert (pick["decode_reason"], pick["kv_result"], pick["block_size"]) == (
            "kv_aware",
            "overlap",
            BLOCK,
        )
        assert pick["isl_tokens"] == turn.answer.prompt_tokens
        assert turn.explained["repeated"] == "equal"
        if TELLS_CACHED[release]:
            assert pick["overlap_blocks"] * BLOCK == turn.answer.cached_tokens
        else:
            assert turn.answer.cached_tokens is None
    before = turns[-2].answer.prompt_tokens or 0
    assert turns[-1].explained["pick"]["overlap_blocks"] >= before // BLOCK


@pytest.mark.req("KVP-08", "KVP-09", "KVP-11", "DYN-20")
def test_turns_of_a_pair_stay_with_their_prefill_worker(router: RouterProcess) -> None:
    turns = converse(router, "sailor", PAIRED_MODEL)
    assert conversation.is_stuck(turns)
    for turn in turns[1:]:
        pick = turn.explained["pick"]
        assert (pick["prefill_reason"], pick["kv_result"]) == ("kv_aware", "overlap")
        assert pick["decode_reason"] in ("load", "round_robin_stale")
        assert pick["overlap_blocks"] > 0


@pytest.mark.req("KVX-08", "EVS-13")
def test_index_of_the_log_is_that_of_the_router_and_every_pick_is_repeated_elsewhere(
    router: RouterProcess, tmp_path: Path
) -> None:
    converse(router, "miller", AGGREGATED_MODEL)
    lives = until(lambda: ranks(router.document("/admin/state")), "blocks in the index")
    assert set(lives) <= set(router.workers())
    copied = router.copy_log(tmp_path / "copy")
    said = picklog("replay", "state", "--at", "end", "--json", "--log", str(copied))
    assert said.returncode == 0, said.stderr
    assert ranks(json.loads(said.stdout)) == lives
    found = router.verify(copied)
    assert found["picks"] == found["equal"] > 0
    checked = picklog("log", "verify", "--log", str(copied))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.req("KVX-08", "KVX-09")
def test_a_lone_prompt_is_held_block_by_block(router: RouterProcess) -> None:
    held = {key: row["blocks"] for key, row in ranks(router.document("/admin/state")).items()}
    answer = ask(router, "lone", "Nobody else asks this. " * 40)
    pin = chats.judge(answer, is_paired=False).decode
    assert pin is not None
    tokens = answer.prompt_tokens or 0

    def gained() -> int:
        rows = ranks(router.document("/admin/state"))
        row = rows.get(pin.instance_id)
        return 0 if row is None else int(row["blocks"]) - int(held.get(pin.instance_id, 0))

    # the template's first words are shared with other chats, the last block may hold answered tokens
    until(
        lambda: tokens // BLOCK - 1 <= gained() <= (tokens + BLOCK) // BLOCK + 1,
        lambda: f"{gained()} of {tokens}",
    )
    assert explained(router, "lone")["pick"]["overlap_blocks"] <= 1


@pytest.mark.req("RND-01")
def test_all_predicted_blocks_are_confirmed_by_workers(router: RouterProcess) -> None:
    for number in range(10):
        ask(router, f"check-{number}", f"Question {number}. " + WORDS * 6)
    until(lambda: router.metrics().get("picklog_kv_match_ratio") == 1.0, lambda: str(kv_metrics(router)))
    assert router.metrics()["picklog_kv_models_mismatched"] == 0


def kv_metrics(router: RouterProcess) -> dict[str, float]:
    return {name: value for name, value in router.metrics().items() if "kv" in name and value}


def test_report_metric_and_answers_agree_on_cached_tokens(router: RouterProcess, release: str) -> None:
    name = 'picklog_cached_tokens_total{said_by="%s"}'
    before = {who: router.metrics().get(name % who, 0) for who in ("pick", "answer")}
    turns = converse(router, "gardener", AGGREGATED_MODEL)
    predicted = sum(turn.explained["pick"]["overlap_blocks"] * BLOCK for turn in turns)
    answered = sum(turn.answer.cached_tokens or 0 for turn in turns)
    told = {"pick": predicted, "answer": answered} if TELLS_CACHED[release] else {"pick": 0, "answer": 0}
    until(
        lambda: {who: router.metrics().get(name % who, 0) - before[who] for who in told} == told,
        lambda: f"{before} {told} {kv_metrics(router)} {router.metrics().get(name % 'pick')}",
    )

    def rows_of(*command: str) -> list[dict[str, Any]]:
        said = picklog("audit", *command, "--json", "--log", str(router.data))
        assert said.returncode == 0, said.stderr
        rows: list[dict[str, Any]] = json.loads(said.stdout)
        return rows

    # tables hold log time and an explanation wall time: the first turn is looked up where it is asked for
    sql = "SELECT asked_at FROM picks WHERE request_id = 'gardener-1'"
    first = until(lambda: rows_of("query", sql), "the first turn in the database")[0]["asked_at"]

    def reported() -> list[dict[str, Any]]:
        rows = rows_of("report", "overlap", "--from", first)
        return [row for row in rows if row["model"] == AGGREGATED_MODEL]

    wanted = [(len(turns), predicted, answered)] if TELLS_CACHED[release] else []
    until(
        lambda: [(r["answers"], r["predicted_tokens"], r["cached_tokens"]) for r in reported()] == wanted,
        lambda: f"{reported()} is not {wanted}",
    )


@pytest.mark.req("KVX-20", "REL-01")
def test_switching_off_empties_the_index_and_picks_go_by_load_until_it_is_on_again(
    router: RouterProcess, changing: Callable[..., None]
) -> None:
    changing(enabled=False)
    turns = converse(router, "carpenter", AGGREGATED_MODEL)
    assert {turn.explained["pick"]["kv_result"] for turn in turns} <= {None, "off"}
    assert "kv_aware" not in {turn.explained["pick"]["decode_reason"] for turn in turns}
    assert len({turn.prefiller for turn in turns}) == 2
    assert ranks(router.document("/admin/state")) == {}
    changing(enabled=True)
    again = converse(router, "fisher", AGGREGATED_MODEL)
    assert conversation.is_stuck(again)
    assert again[-1].explained["pick"]["decode_reason"] == "kv_aware"
    router.verify()


@pytest.mark.req("KVX-10", "KVX-20")
def test_a_fleet_that_was_warm_before_its_blocks_were_known_keeps_the_term(
    router: RouterProcess, changing: Callable[..., None]
) -> None:
    changing(enabled=False)
    before = ({"role": "system", "content": "You know this from before anybody listened. " + WORDS * 6},)

    def under(name: str) -> chats.Answer:
        text = f"Question {name}: " + WORDS * 2
        answer = chats.send(router.url, Chat(name, AGGREGATED_MODEL, text, False, 16, before))
        assert answer.status == 200, answer
        return answer

    pins = {chats.judge(under(f"cold-{number}"), is_paired=False).decode for number in range(8)}
    assert len(pins) == 2, "both workers have cached the system prompt"
    changing(enabled=True)
    until(lambda: knows_prompts(router, AGGREGATED_MODEL), "prompts can be read")
    orphans = 'continuum_dynamo_kv_events_total{result="orphan"}'
    confirmed = 'picklog_kv_checked_blocks_total{result="confirmed"}'
    before_them = router.metrics()
    for number in range(2 * CHECKS_MIN):
        under(f"under-{number}")
    turns = converse(router, "cooper", AGGREGATED_MODEL)
    assert "overlap" in {turn.explained["pick"]["kv_result"] for turn in turns}, "what is known counts"
    until(lambda: router.metrics()[confirmed] > before_them[confirmed], "a check of a later prompt")
    assert router.metrics()[orphans] > before_them[orphans], "blocks under a parent from before"
    under("later")
    results = [explained(router, f"under-{number}")["pick"]["kv_result"] for number in range(2 * CHECKS_MIN)]
    results.append(explained(router, "later")["pick"]["kv_result"])
    assert "mismatched" not in results, results
    assert router.metrics()["picklog_kv_models_mismatched"] == 0
    assert not router.log_lines("predicted blocks do not match")


@pytest.mark.req("ART-01", "KVP-13", "KVP-14")
def test_files_that_are_not_pinned_leave_picks_to_load_and_each_pick_says_so(
    router: RouterProcess, changing: Callable[..., None]
) -> None:
    counted = 'continuum_dynamo_kv_selection_total{result="artifact_unpinned"}'
    before = router.metrics()[counted]
    changing(pinned_artifacts=[])
    ask(router, "unpinned", WORDS * 5)
    pick = explained(router, "unpinned")["pick"]
    assert pick["kv_result"] == "artifact_unpinned"
    assert pick["decode_reason"] in ("load", "round_robin_stale")
    assert router.metrics()[counted] >= before + 1
    assert router.log_lines("not pinned")


@pytest.mark.req("KVP-05", "KVP-06", "DYN-06")
def test_drawn_picks_are_repeated_from_their_recorded_draws(
    router: RouterProcess, changing: Callable[..., None]
) -> None:
    changing(router_temperature=100.0)  # next to even: one in 8,000 that all of 14 go to one worker
    models = [PAIRED_MODEL, PAIRED_MODEL, *[AGGREGATED_MODEL] * 14]
    for number, model in enumerate(models):
        ask(router, f"warmth-{number}", WORDS * 4, model)
    documents = [explained(router, f"warmth-{number}") for number in range(len(models))]
    assert all(document["question"]["draws"] for document in documents)
    assert {document["repeated"] for document in documents} == {"equal"}
    assert len({document["pick"]["decode_worker"] for document in documents[2:]}) == 2
    router.verify()


@pytest.mark.req("DYN-04")
def test_a_burst_with_one_beginning_lands_together_before_any_worker_reports_it(
    release: str, make_fleet: FleetMaker, tmp_path: Path
) -> None:
    slow = make_fleet(
        fleet_plan.pair_plan(decode=1, speedup=0.05), release=release
    )  # half a second to prefill
    # those of a burst that are not read in time weigh in full wherever they went, which the credit outweighs
    kv = {**KV, "predicted_ttl": "5s", "overlap_score_credit": 1000.0}
    router = RouterProcess.before(slow, tmp_path / "router", kv=kv)
    try:
        router.start()
        until(lambda: knows_prompts(router, PAIRED_MODEL), "prompts can be read")
        at_once(router, "Other words, so that render processes run.", 4)
        for burst in range(BURSTS_MAX):
            beginning = f"All {burst} at once, and before anybody has heard of it. " * 20
            sent, answers = at_once(router, beginning, 20 + burst)
            assert all(chats.judge(answer, is_paired=True).complaint == "" for answer in answers)
            if lands_together([explained(router, chat.identifier) for chat in sent]):
                break
        else:
            raise AssertionError(f"of {BURSTS_MAX} bursts none had two prompts that were read in time")
        router.verify()
    finally:
        router.close()
        slow.down()


def lands_together(found: list[dict[str, Any]]) -> bool:
    """Whether at least two of a burst knew what was predicted of another, and went where that went.

    A prompt that gets no permit within 20 ms, because others are being read, goes by load (RND-03).
    """
    read = [document for document in found if document["question"]["prompt"] == "ready"]
    others = {document["pick"]["kv_result"] for document in found if document not in read}
    assert others <= {"render_unavailable", "tokenizer_unavailable"}
    winners = [document["phases"]["prefill"]["winner"] for document in read]
    assert sum(not winner["overlap_blocks"] for winner in winners) <= 1, "the first alone knows nothing"
    early = [winner for winner in winners if winner["prefix"]["predicted_blocks"]]
    assert len({winner["worker"] for winner in early}) <= 1
    return len(early) >= 2


def at_once(router: RouterProcess, beginning: str, count: int) -> tuple[list[Chat], list[chats.Answer]]:
    """So many chats of the paired model with one beginning, sent together."""
    before = ({"role": "system", "content": beginning},)
    sent = [Chat(f"burst-{count}-{n}", PAIRED_MODEL, f"Go, {n}.", False, 16, before) for n in range(count)]
    with ThreadPoolExecutor(count) as threads:
        return sent, list(threads.map(lambda chat: chats.send(router.url, chat), sent))


@pytest.mark.req("NVX-01")
@pytest.mark.parametrize("model", [AGGREGATED_MODEL, PAIRED_MODEL])
def test_a_frontend_takes_rendered_tokens_for_the_prompt(
    router: RouterProcess, changing: Callable[..., None], release: str, model: str
) -> None:
    text = f"Tokens for {model}. " + WORDS * 20
    plain = ask(router, "plain", text, model)
    changing(send_token_data=True)
    ready = ask(router, "tokens", text, model)
    assert chats.judge(ready, is_paired=model == PAIRED_MODEL).complaint == ""
    assert ready.prompt_tokens == plain.prompt_tokens == explained(router, "tokens")["pick"]["isl_tokens"]
    if model == AGGREGATED_MODEL:
        assert ready.headers[chats.DECODE_HEADER] == plain.headers[chats.DECODE_HEADER]
        if TELLS_CACHED[release]:  # the worker found the blocks of the text: these are the same tokens
            assert ready.cached_tokens == (plain.prompt_tokens or 0) // BLOCK * BLOCK
    streamed = chats.send(router.url, Chat("tokens-streamed", model, text, streamed=True))
    assert (streamed.status, streamed.prompt_tokens) == (200, plain.prompt_tokens)


@pytest.mark.req("KVX-18")
def test_what_a_killed_worker_held_counts_no_more(router: RouterProcess, fleet: Fleet) -> None:
    turns = converse(router, "smith", AGGREGATED_MODEL)
    assert turns[0].prefiller is not None
    gone = turns[0].prefiller.instance_id
    assert gone in ranks(router.document("/admin/state"))
    name = next(row["name"] for row in fleet.workers() if row["instance_id"] == gone)
    fleet.kill(name)
    try:
        until(lambda: gone not in router.workers(), "the killed worker leaves")
        assert gone not in ranks(router.document("/admin/state"))
        before = tuple(turns[-1].chat.before)
        answer = chats.send(router.url, Chat("orphan", AGGREGATED_MODEL, "And now?", False, 16, before))
        assert answer.status == 200
        pick = explained(router, "orphan")["pick"]
        assert pick["decode_worker"] != gone
        assert pick["overlap_blocks"] <= 1
    finally:
        fleet.start(name)
        until(lambda: len(router.workers()) == len(fleet.plan.models()) * 3, "the worker is back")
    router.verify()


@pytest.mark.req("CDG-06", "CDG-07", "SHIM-21")
def test_a_frontend_refuses_a_decode_worker_that_is_to_prefill(
    router: RouterProcess, changing: Callable[..., None]
) -> None:
    # mock decode workers report no blocks, so what makes a bypass is a prefill worker with anything to do
    busy = {"enabled": True, "policy": "prefill_load", "prefill_busy_threshold": 0.0}
    changing(conditional_disaggregation=busy)
    counted = 'continuum_dynamo_kv_selection_total{result="bypass"}'
    before = router.metrics()
    text = "May the decode worker do it alone? " * 20

    def refused() -> chats.Answer | None:
        answer = chats.send(router.url, Chat("bypass", PAIRED_MODEL, text, streamed=False))
        return answer if answer.status != 200 else None

    answer = until(refused, "a bypass")
    assert answer.status == 502 and "disaggregated_decode_failed" in answer.problem, answer
    headers = {name.lower(): said for name, said in answer.headers.items()}
    assert headers["x-continuum-routing-path"] == "unified"
    document = until(lambda: (found := explained(router, "bypass"))["end"] and found, "the dispatch's end")
    assert document["pick"]["kv_result"] == "bypass"
    assert document["pick"]["prefill_reason"] == "conditional_bypass"
    assert (document["end"]["status"], document["end"]["http_status"]) == ("failed", 500)
    after = router.metrics()
    assert after[counted] >= before[counted] + 1
    changed = {phase: after[name] - before[name] for phase, name in PHASES_COUNTED.items()}
    assert changed["decode"] >= 1 and changed["prefill"] == changed["orchestration"] == 0, changed
    router.verify()
