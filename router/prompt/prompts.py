"""Everything between a request's body and the hashes that its question records.

    body, headers -> is the model readable? files -> rendered, encoded, hashed -> PromptFacts

Whatever goes wrong is a KvResult in the facts, never an error of the request (KVP-14): it then
goes out by load, and the pick says why. Nothing here blocks the event loop (RND-08).

After a request was served its prediction is checked once against what its rank reports, see
`self_check`; what that costs is one look at the index, CHECK_AFTER_S after the end. Where the
rank could not confirm any block, see `rank_news`, nothing is learned.

Sources: requirement rows ART-10, ART-15, RND-07, RND-13, KVP-13, KVP-14; decision 40.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from projections.bounds import ARTIFACT_SETS_MAX
from projections.events.control import KvPickSettings
from projections.events.picks import EndStatus, KvResult, PickMade
from projections.identity import WorkerKey
from projections.notices import Notice
from projections.registry.fleet import Fleet, Role, Worker
from projections.view import View
from router.metrics import RouterMetrics
from router.prompt.artifact_set import (
    ArtifactResult,
    ArtifactSet,
    LoadedFiles,
    Pending,
    Refused,
    artifacts_of_model,
)
from router.prompt.artifacts import ArtifactStore
from router.prompt.prompt_blocks import PromptBlocks, PromptRequest, PromptResult
from router.prompt.rank_news import RankNews
from router.prompt.self_check import MatchState, SelfCheck
from router.question import PromptAsked, PromptFacts, block_hashes_of
from router.settings import PromptSettings

BLOCK_SIZE_MIN: Final = 16
BLOCK_SIZE_MAX: Final = 65_536
BLOCK_SIZES_MAX: Final = 2  # of one model and request
CHECK_AFTER_S: Final = 1.0  # a worker's events of a prompt are here long before
CHECKS_WAITING_MAX: Final = 256  # further ends are not checked
LOOK_AGAIN_S: Final = 0.5  # while files are being loaded
MODELS_TOLD_MAX: Final = 1024  # models of which something was said once
_log = structlog.get_logger("router.prompt")


class Plan(NamedTuple):
    """What the workers of a model say about its prompts. block_sizes: () where none can be used."""

    block_sizes: tuple[int, ...]
    unusable: tuple[int, ...]
    is_eagle: bool
    lora_name: str | None


class Prompts:
    """The prompts of one router. Calls are made on its event loop."""

    def __init__(
        self,
        settings: PromptSettings,
        store: ArtifactStore,
        blocks: PromptBlocks,
        metrics: RouterMetrics,
    ) -> None:
        self.settings = settings
        self._store = store
        self._blocks = blocks
        self._metrics = metrics
        self._check = SelfCheck(settings.match_ratio_min)
        self._news = RankNews()
        self._keys: dict[str, str] = {}  # served model -> key of the files that its checks are of
        self._told: dict[tuple[str, str], None] = {}
        self._waiting = 0
        self._fleet: Fleet | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._warmed: dict[str, None] = {}  # keys of files that were tried
        self._tasks: set[asyncio.Task[PromptResult]] = set()

    # reading

    async def read(self, asked: PromptAsked, fleet: Fleet) -> PromptFacts:
        """The facts of a prompt. Raises CancelledError only."""
        try:
            return await self._read(asked, fleet)
        except Exception as problem:  # a fault of ours must not cost a request (KVP-14)
            _log.error("reading a prompt failed", model=asked.served_model, exc_info=problem)
            return PromptFacts(KvResult.RENDER_UNAVAILABLE)

    async def _read(self, asked: PromptAsked, fleet: Fleet) -> PromptFacts:
        model = asked.served_model
        plan = plan_of(fleet, model, asked.namespaces)
        for size in plan.unusable:
            if self._is_news(model, f"block size {size}"):
                self._metrics.artifact(ArtifactResult.UNSUPPORTED)
                _log.warning("blocks of this size are not predicted", model=model, block_size=size)
        if plan.is_eagle or not plan.block_sizes:
            return PromptFacts(KvResult.UNSUPPORTED)
        wanted = artifacts_of_model(fleet, model)
        if isinstance(wanted, Refused):
            return self._refused(model, wanted)
        files = self._store.files_of(wanted)
        if isinstance(files, Refused):
            return self._refused(model, files)
        if isinstance(files, Pending):
            return PromptFacts(KvResult.TOKENIZER_UNAVAILABLE)
        self._note_key(model, files)
        result = await self._blocks.blocks_of(
            PromptRequest(
                body=asked.document,
                headers=asked.headers,
                path=asked.path,
                files=files,
                block_sizes=plan.block_sizes,
                lora_name=plan.lora_name,
            )
        )
        if result.result is not KvResult.READY:
            if self._is_news(model, f"{result.result.label} {result.detail}"):
                _log.warning(
                    "a prompt has no blocks", model=model, why=result.result.label, detail=result.detail
                )
            return PromptFacts(result.result, result.isl_tokens)
        facts = PromptFacts(KvResult.READY, result.isl_tokens, result.hashes, result.token_ids)
        return facts if self._check.is_trusted(model) else facts._replace(result=KvResult.MISMATCHED)

    def _refused(self, model: str, refused: Refused) -> PromptFacts:
        is_told_by_store = refused.reason is KvResult.ARTIFACT_UNPINNED
        if not is_told_by_store and self._is_news(model, refused.detail):
            _log.info("prompts of a model are not read", model=model, why=refused.detail)
        return PromptFacts(refused.reason)

    def _note_key(self, model: str, files: LoadedFiles) -> None:
        """Checks are of the files that they were made with."""
        if self._keys.get(model) != files.key:
            self._check.forget(model)
            if len(self._keys) >= MODELS_TOLD_MAX:
                self._keys.clear()
            self._keys[model] = files.key

    def _is_news(self, model: str, what: str) -> bool:
        """Whether this was not said of the model yet."""
        if (model, what) in self._told:
            return False
        if len(self._told) >= MODELS_TOLD_MAX:
            self._told.clear()
        self._told[model, what] = None
        return True

    # before anybody asks

    def follow(self, fleet: Fleet) -> None:
        """Load the files of what a fleet serves, so that its first prompts need not wait for them.

        Call it for every published fleet; cheap where nothing is new. Each set of files is tried
        with one short prompt, which starts processes and loads the tokenizer there.
        """
        self._fleet = fleet
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        is_waiting = False
        for model in fleet.models()[:ARTIFACT_SETS_MAX]:
            wanted = artifacts_of_model(fleet, model)
            files = self._store.files_of(wanted) if isinstance(wanted, ArtifactSet) else None
            is_waiting = is_waiting or isinstance(files, Pending)
            if isinstance(files, LoadedFiles) and files.key not in self._warmed:
                self._warm(model, files)
        if is_waiting:
            self._looking = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.follow, fleet)

    def _warm(self, model: str, files: LoadedFiles) -> None:
        if len(self._warmed) >= MODELS_TOLD_MAX:
            self._warmed.clear()
        self._warmed[files.key] = None
        body = {"model": model, "messages": [{"role": "user", "content": "."}]}
        request = PromptRequest(body, {}, "/v1/chat/completions", files, (BLOCK_SIZE_MIN,))
        task = asyncio.get_running_loop().create_task(self._blocks.blocks_of(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # checking

    def noticed(self, notices: Sequence[Notice], as_of: int) -> None:
        """A slice of the fold, which ends at offset `as_of`, told these."""
        self._news.noticed(notices, as_of)

    def served(
        self,
        pick: PickMade,
        facts: PromptFacts,
        kv: KvPickSettings,
        status: EndStatus,
        view: Callable[[], View],
    ) -> None:
        """A dispatch ended. Its prediction is checked a little later, where it can be."""
        if status is not EndStatus.OK or not facts.hashes or self._waiting >= CHECKS_WAITING_MAX:
            return
        self._waiting += 1
        asyncio.get_running_loop().call_later(CHECK_AFTER_S, self._compare, pick, facts, kv, view)

    def _compare(
        self, pick: PickMade, facts: PromptFacts, kv: KvPickSettings, view: Callable[[], View]
    ) -> None:
        self._waiting -= 1
        outcome = pick.outcome
        chosen = outcome.prefill.chosen or outcome.decode.chosen
        if chosen is None or outcome.namespace is None:
            return
        seen = view()
        rank = (outcome.namespace, chosen.instance_id, chosen.dp_rank)
        question = pick.question._replace(hashes=block_hashes_of(facts))
        worker = seen.fleet.workers.get(WorkerKey(*rank[:2]))
        size = worker.block_size if worker is not None else None
        predicted = next((one.blocks for one in question.hashes if one.block_size == size), 0)
        publisher_id = seen.feeder(*rank)
        if predicted and publisher_id is None:
            self._tell_silent(question.served_model, rank)
        elif predicted and publisher_id is not None:
            events_alone = kv._replace(predicted_ttl_us=0, approximate_ttl_us=0)
            held = seen.prefixes(question, events_alone).get(rank)
            depth = min(held.device, predicted) if held is not None else 0
            if not depth and not self._news.could_confirm(rank, publisher_id, pick.as_of):
                return
            was_trusted = self._check.is_trusted(question.served_model)
            self._check.note(question.served_model, predicted, depth)
            self._metrics.prediction_checked(predicted, depth)
            self._tell_change(question.served_model, was_trusted)

    def _tell_silent(self, model: str, rank: tuple[str, int, int]) -> None:
        """A rank has served whole blocks of a prompt, and nobody tells of any of its blocks (B-058)."""
        if self._is_news(model, "no block events"):
            _log.warning(
                "a worker that served a prompt reports no blocks: it has no credit but what picks predict",
                model=model,
                worker=WorkerKey(*rank[:2]).to_text(),
                rank=rank[2],
            )

    def _tell_change(self, model: str, was_trusted: bool) -> None:
        is_trusted = self._check.is_trusted(model)
        if is_trusted is was_trusted:
            return
        ratio = round(self._check.ratio(model) or 0.0, 3)
        if is_trusted:
            _log.info("predicted blocks match again: picks are prefix-aware", model=model, ratio=ratio)
        else:
            _log.warning(
                "predicted blocks do not match the workers' events: picks go by load",
                model=model,
                ratio=ratio,
                ratio_min=self._check.ratio_min,
            )

    def match_states(self) -> list[MatchState]:
        """Match ratios by model, for metrics and admin."""
        return self._check.states()

    # life

    def reconfigure(self, settings: PromptSettings) -> None:
        """Other settings from now on; a pin that went takes its files along at once (ART-12)."""
        self.settings = settings
        self._check.ratio_min = settings.match_ratio_min
        self._store.reconfigure(settings.artifacts)
        self._blocks.reconfigure(settings.engine)
        if self._fleet is not None:
            self.follow(self._fleet)

    async def close(self) -> None:
        """End loads and render processes."""
        if self._looking is not None:
            self._looking.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()
        await self._blocks.close()


def plan_of(fleet: Fleet, model: str, namespaces: tuple[str, ...]) -> Plan:
    """What the eligible workers of a model say about its prompts; worked out once for a fleet.

    Block sizes of workers that prefill come first, then the more frequent, then the smaller.
    """
    key = ("prompt plan", model, namespaces)
    found: Plan | None = fleet.derived.get(key)
    if found is None:
        workers = [worker for worker in fleet.workers_of(model) if worker.key.namespace in namespaces]
        found = fleet.derived[key] = _plan(workers)
    return found


def _plan(workers: Iterable[Worker]) -> Plan:
    known = list(workers)
    prefilling = [worker for worker in known if worker.role is not Role.DECODE] or known
    sizes = Counter(worker.block_size for worker in prefilling if worker.block_size is not None)
    usable = [size for size in sizes if BLOCK_SIZE_MIN <= size <= BLOCK_SIZE_MAX]
    usable.sort(key=lambda size: (-sizes[size], size))
    kept = tuple(sorted(usable[:BLOCK_SIZES_MAX]))
    names = {worker.lora_name for worker in prefilling}
    return Plan(
        kept,
        tuple(sorted(size for size in sizes if size not in kept)),
        any(worker.enable_eagle for worker in prefilling),
        names.pop() if len(names) == 1 else None,
    )
