"""From a request to the facts of its prompt: which files, which block sizes, and is it true?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from projections.events.control import KvPickSettings
from projections.events.picks import Chosen, EndStatus, KvResult, Outcome, PhaseOutcome, PickMade
from projections.identity import WorkerKey
from projections.kv.prefixes import RankPrefix
from projections.notices import BlocksOrphaned, KvEventResult, KvNotice, Notice
from projections.registry.artifacts import Artifact, ArtifactKind, CardArtifacts
from projections.registry.fleet import Fleet, Role, Worker
from router.metrics import NoMetrics
from router.prompt.artifact_set import ArtifactResult, ArtifactSet, LoadedFiles, Pending, Refused
from router.prompt.prompt_blocks import PromptRequest, PromptResult
from router.prompt.prompts import CHECK_AFTER_S, CHECKS_WAITING_MAX, Prompts, plan_of
from router.prompt.self_check import CHECKS_MIN
from router.question import PromptAsked, PromptFacts, freeze_question
from router.rotations import Rotations
from router.settings import PromptSettings
from tests.router.rig import fleet_of, pick_settings_for, settings_for, worker

KV = KvPickSettings(1.0, 1.0, 0.0)
FILES = CardArtifacts(Artifact(ArtifactKind.HF_TOKENIZER_JSON, "/m/tokenizer.json", "blake3:" + "0" * 64))
HASHES = b"".join(number.to_bytes(8, "big") for number in range(1, 11))
PUBLISHER = 70
STORED = KvNotice(KvEventResult.APPLIED, "dynamo", PUBLISHER)
READY = PromptResult(KvResult.READY, 163, ((16, HASHES),), b"\1\0\0\0")


class Counts(NoMetrics):
    def __init__(self) -> None:
        self.artifacts: list[ArtifactResult] = []
        self.checks: list[tuple[int, int]] = []

    def artifact(self, result: ArtifactResult) -> None:
        self.artifacts.append(result)

    def prediction_checked(self, predicted: int, held: int) -> None:
        self.checks.append((predicted, held))


class Store:
    """Answers with what a test puts there."""

    def __init__(self) -> None:
        self.answer: LoadedFiles | Pending | Refused = LoadedFiles(b"{}", None, None, "key")
        self.asked: list[ArtifactSet] = []
        self.settings: Any = None
        self.closed = False

    def files_of(self, wanted: ArtifactSet) -> LoadedFiles | Pending | Refused:
        self.asked.append(wanted)
        return self.answer

    def reconfigure(self, settings: Any) -> None:
        self.settings = settings

    async def close(self) -> None:
        self.closed = True


class Blocks:
    """Renders nothing."""

    def __init__(self) -> None:
        self.answer: PromptResult | Exception = READY
        self.asked: list[PromptRequest] = []
        self.engine = ""
        self.closed = False

    async def blocks_of(self, request: PromptRequest) -> PromptResult:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def reconfigure(self, engine: str) -> None:
        self.engine = engine

    async def close(self) -> None:
        self.closed = True


class Seen:
    """The parts of a view that a check reads."""

    def __init__(self, fleet: Fleet, depth: int | None, publishes: bool = True) -> None:
        self.fleet = fleet
        self.depth = depth
        self.is_heard = publishes
        self.asked: list[Any] = []

    def feeder(self, namespace: str, instance_id: int, dp_rank: int) -> int | None:
        return PUBLISHER if self.is_heard else None

    def prefixes(self, question: Any, kv: KvPickSettings) -> Mapping[tuple[str, int, int], RankPrefix]:
        self.asked.append((question, kv))
        return {} if self.depth is None else {("dynamo", 7, 0): RankPrefix(self.depth, 0, 0, 0)}


class Bench:
    """A reader of prompts between fakes, and a fleet of one worker."""

    def __init__(self, *workers: Worker, ratio_min: float = 0.5) -> None:
        self.counts, self.store, self.blocks = Counts(), Store(), Blocks()
        self.fleet = fleet_of(*(workers or (a_worker(7),)))
        self.as_of = 0
        settings = PromptSettings(match_ratio_min=ratio_min)
        self.prompts = Prompts(settings, self.store, self.blocks, self.counts)  # type: ignore[arg-type]

    async def read(self, model: str = "tiny-chat") -> PromptFacts:
        asked = PromptAsked(
            {"messages": []}, {"x-tenant-id": "t"}, "/v1/chat/completions", model, ("dynamo",)
        )
        return await self.prompts.read(asked, self.fleet)

    def pick(self, facts: PromptFacts, prefill: Chosen | None = None) -> PickMade:
        question = freeze_question(
            request_id="r",
            send=0,
            model="tiny-chat",
            settings=pick_settings_for(settings_for({"dynamo": []})),
            asked_at=5,
            lag_us=0,
            eligible=("dynamo",),
            absent=(),
            estimated_tokens=1,
            rotations=Rotations(),
            prompt=facts,
        )
        none = PhaseOutcome(1, None, 0, None, b"")
        decode = none._replace(chosen=Chosen(7 if prefill is None else 8, 0, False, 1, 1))
        outcome = Outcome("dynamo", none._replace(chosen=prefill), decode, 0, 0, b"")
        return PickMade(b"p", b"r", 0, 0, 1, question, outcome)

    async def check(
        self, facts: PromptFacts, seen: Seen, status: EndStatus = EndStatus.OK, told: Notice = STORED
    ) -> None:
        """One prompt from its pick, after which its rank tells of blocks, to its check."""
        self.as_of += 1
        pick = self.pick(facts)._replace(as_of=self.as_of)
        self.as_of += 1
        self.prompts.noticed((told,), self.as_of)
        self.prompts.served(pick, facts, KV, status, lambda: seen)  # type: ignore[arg-type, return-value]
        await asyncio.sleep(CHECK_AFTER_S * 2)


def a_worker(number: int, role: Role = Role.AGGREGATED, **changes: Any) -> Worker:
    return worker(number, role)._replace(artifacts=FILES, **changes)


# Reading ------------------------------------------------------------------------------


async def test_a_readable_prompt_gives_hashes_length_and_tokens() -> None:
    bench = Bench()
    assert await bench.read() == PromptFacts(KvResult.READY, 163, ((16, HASHES),), b"\1\0\0\0")
    [request] = bench.blocks.asked
    assert (request.block_sizes, request.path) == ((16,), "/v1/chat/completions")
    assert request.headers["x-tenant-id"] == "t" and request.files is bench.store.answer


@pytest.mark.req("KVP-13", "ART-10", "ART-15")
@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Refused(KvResult.ARTIFACT_UNPINNED, "not pinned"), KvResult.ARTIFACT_UNPINNED),
        (Refused(KvResult.TOKENIZER_UNAVAILABLE, "failed"), KvResult.TOKENIZER_UNAVAILABLE),
        (Pending(), KvResult.TOKENIZER_UNAVAILABLE),
    ],
)
async def test_without_files_nothing_is_rendered(answer: Any, result: KvResult) -> None:
    bench = Bench()
    bench.store.answer = answer
    assert await bench.read() == PromptFacts(result)
    assert not bench.blocks.asked


@pytest.mark.req("ART-15")
async def test_workers_that_do_not_agree_have_no_tokenizer() -> None:
    other = CardArtifacts(FILES.tokenizer._replace(checksum="blake3:" + "1" * 64))  # type: ignore[union-attr]
    bench = Bench(a_worker(7), a_worker(8)._replace(artifacts=other))
    assert (await bench.read()).result is KvResult.TOKENIZER_UNAVAILABLE
    assert not bench.store.asked


@pytest.mark.req("RND-07", "KVP-14")
@pytest.mark.field("B-116", "B-117")
@pytest.mark.parametrize(
    "result",
    [KvResult.PROMPT_TOO_LARGE, KvResult.RENDER_UNAVAILABLE, KvResult.UNSUPPORTED],
)
async def test_what_cannot_be_rendered_is_told_once_a_model_and_never_raised(result: KvResult) -> None:
    bench = Bench()
    bench.blocks.answer = PromptResult(result, 3, detail="why")
    with capture_logs() as lines:
        assert await bench.read() == PromptFacts(result, 3)
        assert await bench.read() == PromptFacts(result, 3)
    assert [(line["why"], line["detail"]) for line in lines] == [(result.label, "why")]


@pytest.mark.req("KVP-14")
async def test_a_fault_of_ours_costs_the_term_and_not_the_request() -> None:
    bench = Bench()
    bench.blocks.answer = RuntimeError("a fault")
    with capture_logs() as lines:
        assert await bench.read() == PromptFacts(KvResult.RENDER_UNAVAILABLE)
    assert lines[0]["log_level"] == "error"


@pytest.mark.req("RND-07")
async def test_a_card_with_eagle_has_no_prefix_term() -> None:
    assert await Bench(a_worker(7, enable_eagle=True)).read() == PromptFacts(KvResult.UNSUPPORTED)


async def test_a_model_that_nobody_serves_has_no_prefix_term() -> None:
    assert (await Bench().read("nobody")).result is KvResult.UNSUPPORTED


# Before anybody asks ------------------------------------------------------------------


@pytest.mark.looptime
async def test_files_of_what_the_fleet_serves_are_loaded_and_tried_before_anybody_asks() -> None:
    bench = Bench()
    loaded, bench.store.answer = bench.store.answer, Pending()
    bench.prompts.follow(bench.fleet)
    await asyncio.sleep(1.2)
    assert len(bench.store.asked) == 3 and not bench.blocks.asked, "asked again while they are on their way"
    bench.store.answer = loaded
    await asyncio.sleep(1.2)
    assert [request.files for request in bench.blocks.asked] == [loaded]
    asked = len(bench.store.asked)
    await asyncio.sleep(5)
    assert len(bench.store.asked) == asked, "nothing more to look for"
    bench.prompts.follow(fleet_of(a_worker(7), a_worker(8)))
    await asyncio.sleep(0)
    assert len(bench.blocks.asked) == 1, "tried once"
    await bench.prompts.close()


@pytest.mark.looptime
async def test_a_fleet_without_files_is_not_looked_at_again() -> None:
    bench = Bench(worker(7, Role.AGGREGATED))
    bench.prompts.follow(bench.fleet)
    await asyncio.sleep(5)
    assert bench.store.asked == [] and bench.blocks.asked == []
    refused = Bench()
    refused.store.answer = Refused(KvResult.ARTIFACT_UNPINNED, "not pinned")
    refused.prompts.follow(refused.fleet)
    await asyncio.sleep(5)
    assert len(refused.store.asked) == 1
    refused.store.answer = LoadedFiles(b"{}", None, None, "key")
    refused.prompts.reconfigure(PromptSettings())
    await asyncio.sleep(0)
    assert len(refused.blocks.asked) == 1, "a new pin is followed at once"


# Block sizes --------------------------------------------------------------------------


@pytest.mark.req("RND-13")
@pytest.mark.field("B-060")
def test_up_to_two_sizes_of_workers_that_prefill_are_hashed_and_the_rest_is_unusable() -> None:
    def sizes(*found: int | None, role: Role = Role.AGGREGATED) -> tuple[tuple[int, ...], tuple[int, ...]]:
        fleet = fleet_of(*(a_worker(n + 1, role, block_size=size) for n, size in enumerate(found)))
        plan = plan_of(fleet, "tiny-chat", ("dynamo",))
        return plan.block_sizes, plan.unusable

    assert sizes(16) == ((16,), ())
    assert sizes(16, 8) == ((16,), (8,))
    assert sizes(128, 64, 128, 16, 16, 16) == ((16, 128), (64,))
    assert sizes(64, 32, 16) == ((16, 32), (64,)), "the smaller ones, where nothing else decides"
    assert sizes(65_536, 65_537, None) == ((65_536,), (65_537,))
    assert sizes(None) == ((), ())
    mixed = fleet_of(a_worker(1, Role.PREFILL, block_size=32), a_worker(2, Role.DECODE, block_size=16))
    assert plan_of(mixed, "tiny-chat", ("dynamo",)).block_sizes == (32,)
    assert plan_of(mixed, "tiny-chat", ("elsewhere",)).block_sizes == ()


@pytest.mark.req("RND-13")
async def test_an_unusable_size_is_counted_and_told_once() -> None:
    bench = Bench(a_worker(7), a_worker(8, block_size=8))
    with capture_logs() as lines:
        await bench.read()
        await bench.read()
    assert bench.counts.artifacts == [ArtifactResult.UNSUPPORTED]
    assert [line["block_size"] for line in lines] == [8]


# Checking -----------------------------------------------------------------------------


@pytest.mark.field("B-059", "B-065")
@pytest.mark.looptime
async def test_predictions_that_workers_do_not_confirm_take_the_term_away_until_they_do() -> None:
    bench = Bench()
    facts = await bench.read()
    with capture_logs() as lines:
        for _ in range(CHECKS_MIN):
            await bench.check(facts, Seen(bench.fleet, None))
    assert bench.counts.checks == [(10, 0)] * CHECKS_MIN
    assert [line["log_level"] for line in lines] == ["warning"] and lines[0]["ratio"] == 0.0
    distrusted = await bench.read()
    assert distrusted == facts._replace(result=KvResult.MISMATCHED), "hashes stay, for further checks"
    with capture_logs() as lines:
        for _ in range(CHECKS_MIN):
            await bench.check(distrusted, Seen(bench.fleet, 10))
    assert (await bench.read()).result is KvResult.READY
    assert [line["log_level"] for line in lines] == ["info"]
    [state] = bench.prompts.match_states()
    assert (state.model, state.ratio) == ("tiny-chat", 0.5)


@pytest.mark.req("KVX-10")
@pytest.mark.looptime
@pytest.mark.parametrize(
    "told", [BlocksOrphaned("dynamo", 7, 0), KvNotice(KvEventResult.APPLIED, "dynamo", PUBLISHER + 1)]
)
async def test_a_rank_that_was_warm_before_its_blocks_were_known_does_not_speak_against_a_model(
    told: Notice,
) -> None:
    """Blocks under what it cached before are orphans, and of what it has in whole nothing comes."""
    bench = Bench()
    facts = await bench.read()
    for _ in range(2 * CHECKS_MIN):
        await bench.check(facts, Seen(bench.fleet, None), told=told)
    assert bench.counts.checks == [] and bench.prompts.match_states() == []
    assert (await bench.read()).result is KvResult.READY
    await bench.check(facts, Seen(bench.fleet, 4), told=told)
    assert bench.counts.checks == [(10, 4)], "blocks that are held confirm themselves"


@pytest.mark.looptime
async def test_a_model_that_begins_to_drift_on_a_rank_that_was_warm_is_found() -> None:
    bench = Bench()
    facts = await bench.read()
    for _ in range(CHECKS_MIN):
        await bench.check(facts, Seen(bench.fleet, None), told=BlocksOrphaned("dynamo", 7, 0))
    for _ in range(CHECKS_MIN):
        await bench.check(facts, Seen(bench.fleet, None))
    assert bench.counts.checks == [(10, 0)] * CHECKS_MIN
    assert (await bench.read()).result is KvResult.MISMATCHED


@pytest.mark.looptime
async def test_a_check_asks_for_the_whole_prompt_and_events_alone() -> None:
    bench = Bench()
    facts = await bench.read()
    seen = Seen(bench.fleet, 4)
    await bench.check(facts, seen)
    [(question, kv)] = seen.asked
    assert [(one.block_size, one.hashes) for one in question.hashes] == [(16, HASHES)]
    assert (kv.predicted_ttl_us, kv.approximate_ttl_us) == (0, 0)
    assert bench.counts.checks == [(10, 4)]


@pytest.mark.looptime
async def test_what_cannot_be_checked_says_nothing() -> None:
    bench = Bench()
    facts = await bench.read()
    await bench.check(facts, Seen(bench.fleet, 0), EndStatus.FAILED)
    await bench.check(facts, Seen(bench.fleet, 0, publishes=False))
    await bench.check(PromptFacts(KvResult.READY), Seen(bench.fleet, 0))
    await bench.check(facts, Seen(fleet_of(), 0))
    await bench.check(facts._replace(hashes=((64, HASHES),)), Seen(bench.fleet, 0))
    assert bench.counts.checks == []


@pytest.mark.looptime
@pytest.mark.field("B-058")
async def test_a_worker_that_reports_no_blocks_of_a_prompt_it_served_is_named_once() -> None:
    bench = Bench()
    facts = await bench.read()
    with capture_logs() as lines:
        await bench.check(facts._replace(hashes=((16, b""),)), Seen(bench.fleet, None, publishes=False))
        assert lines == [], "of a prompt without a whole block there is nothing to report"
        for _ in range(2):
            await bench.check(facts, Seen(bench.fleet, None, publishes=False))
    [line] = lines
    assert (line["log_level"], line["model"], line["worker"], line["rank"]) == (
        "warning",
        "tiny-chat",
        WorkerKey("dynamo", 7).to_text(),
        0,
    )
    assert bench.counts.checks == [] and (await bench.read()).result is KvResult.READY


@pytest.mark.looptime
async def test_of_a_pair_the_rank_that_prefills_is_asked() -> None:
    bench = Bench(a_worker(7, Role.PREFILL), a_worker(8, Role.DECODE))
    facts = await bench.read()
    pick = bench.pick(facts, Chosen(7, 0, False, 1, 1))
    seen: Any = Seen(bench.fleet, 6)
    bench.prompts.served(pick, facts, KV, EndStatus.OK, lambda: seen)
    await asyncio.sleep(CHECK_AFTER_S * 2)
    assert bench.counts.checks == [(10, 6)]


@pytest.mark.looptime
async def test_checks_that_wait_are_bounded() -> None:
    bench = Bench()
    facts = await bench.read()
    seen: Any = Seen(bench.fleet, 10)
    for _ in range(CHECKS_WAITING_MAX + 5):
        bench.prompts.served(bench.pick(facts), facts, KV, EndStatus.OK, lambda: seen)
    await asyncio.sleep(CHECK_AFTER_S * 2)
    assert len(bench.counts.checks) == CHECKS_WAITING_MAX
    await bench.check(facts, seen)
    assert len(bench.counts.checks) == CHECKS_WAITING_MAX + 1


@pytest.mark.looptime
async def test_other_files_of_a_model_begin_anew() -> None:
    bench = Bench()
    facts = await bench.read()
    for _ in range(CHECKS_MIN):
        await bench.check(facts, Seen(bench.fleet, 0))
    assert (await bench.read()).result is KvResult.MISMATCHED
    bench.store.answer = LoadedFiles(b"{}", None, None, "another key")
    assert (await bench.read()).result is KvResult.READY


# Life ---------------------------------------------------------------------------------


async def test_other_settings_reach_every_part() -> None:
    bench = Bench()
    settings = PromptSettings(engine="jinja2", match_ratio_min=0.0)
    bench.prompts.reconfigure(settings)
    assert bench.store.settings is settings.artifacts and bench.blocks.engine == "jinja2"
    assert bench.prompts.settings is settings
    await bench.prompts.close()
    assert bench.store.closed and bench.blocks.closed
