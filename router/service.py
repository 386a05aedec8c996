"""The router as a whole, behind two ports: the log that it picks from, and HTTP.

`PickLog` is what `app.wiring` gives: the view, log time, a place for picks and ends.
`RouterService` keeps what lasts longer than a request: settings and the tables made of
them, backends with their probes, rotations, models seen. What a request needs is captured
once, at its acceptance, as a `Frontage` (decision 28, PICK-13).
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from projections.bounds import ROTATIONS_MAX
from projections.events.control import KvPickSettings, PickSettings
from projections.events.held import SettingsHeld
from projections.events.picks import DispatchEnded, EndStatus, Outcome, PickMade, Question
from projections.notices import Notice
from projections.registry.fleet import Fleet
from projections.view import View
from router.dispatch.health import Prober
from router.dispatch.relay import PushRelay, Relay
from router.dispatch.shim_pools import PoolTable, Replica, next_replicas
from router.dispatch.usage import Usage
from router.ingress.keys import Keys
from router.metrics import RouterMetrics
from router.prompt.self_check import MatchState
from router.question import NO_PROMPT, PromptAsked, PromptFacts, cut_hashes, freeze_question, served_model
from router.rotations import Rotations
from router.settings import PromptSettings, RouterSettings

Picker = Callable[[View, Question, PickSettings, tuple[int, ...]], Outcome]
PICK_ID_BYTES = 16
PHASES = 2
_log = structlog.get_logger("router")


class PickLog(Protocol):
    """What the router needs of the log. No call blocks, awaits or raises."""

    @property
    def replica(self) -> bytes:
        """Id of this picking process for its whole life."""

    def view(self) -> View:
        """The projections as folded so far, plus this replica's own picks and ends."""

    def flags(self) -> tuple[int, ...]:
        """Numbered behaviours of the pick code by which the state of `view` knows this replica.

        A replay has no other source of them: before its ReplicaStarted is folded, and where that
        was lost, a replica picks as one that has none.
        """

    def settings(self) -> SettingsHeld:
        """The adopted settings in force."""

    def log_time(self) -> tuple[int, int]:
        """Log time now and the replica's lag, both microseconds (decision 3, 18)."""

    def next_own_seq(self) -> int:
        """Take the next number of this replica's picks and ends, from 1."""

    def append_pick(self, fact: PickMade, on_done: Callable[[bool], None]) -> None:
        """Queue the record and add it to the overlay, at once.

        on_done: called once on the event loop, perhaps before this returns: True when the
        record is durable, False when the log shed or lost it.
        """

    def append_end(self, fact: DispatchEnded) -> None:
        """Queue the record and add it to the overlay, at once."""

    def is_away(self) -> bool:
        """Whether the log does not answer: the outage rule is in force."""

    def is_suspect(self) -> bool:
        """Whether this replica's fold disagreed or has stopped (decisions 10, 16)."""


class PromptReader(Protocol):
    """What turns prompts into blocks: `router.prompt.prompts.Prompts`."""

    settings: PromptSettings

    async def read(self, asked: PromptAsked, fleet: Fleet) -> PromptFacts:
        """The facts of a prompt. Raises CancelledError only."""

    def served(
        self,
        pick: PickMade,
        facts: PromptFacts,
        kv: KvPickSettings,
        status: EndStatus,
        view: Callable[[], View],
    ) -> None:
        """A dispatch ended; never blocks, never raises."""

    def noticed(self, notices: Sequence[Notice], as_of: int) -> None:
        """A slice of the fold, which ends at offset `as_of`, told these."""

    def follow(self, fleet: Fleet) -> None:
        """A fleet was published: make ready for what it serves."""

    def match_states(self) -> list[MatchState]:
        """How well predictions matched, by model."""

    def reconfigure(self, settings: PromptSettings) -> None:
        """Other settings from now on."""

    async def close(self) -> None:
        """End what runs beside."""


class Frontage(NamedTuple):
    """Everything of one settings value that a request uses to its end."""

    settings: RouterSettings
    keys: Keys
    table: PoolTable


class RouterService:
    """What outlives a request. Calls are made on the event loop."""

    def __init__(
        self,
        pick_log: PickLog,
        picker: Picker,
        settings: RouterSettings,
        metrics: RouterMetrics,
        relay: Relay | None = None,
        prompts: Callable[[PromptSettings], PromptReader] | None = None,
    ) -> None:
        self.log = pick_log
        self.metrics = metrics
        self.relay: Relay = relay or PushRelay()
        self._picker = picker
        self._make_prompts = prompts
        self.prompts: PromptReader | None = None
        self._rotations = Rotations()
        self._probers: dict[Replica, asyncio.Task[None]] = {}
        self._followed: Fleet | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._running = False
        self._seen_models: dict[str, None] = {}
        self._seen_generation = -1
        self.frontage = self._frontage_of(settings, {})

    # life

    async def start(self) -> None:
        """Begin to probe backends and to read prompts."""
        self._running = True
        self._follow_prompt_settings(self.frontage.settings.prompt)
        self._follow_replicas()

    def reconfigure(self, settings: RouterSettings) -> None:
        """Let new settings hold for requests accepted from now on. Raises ValueError for a bad url."""
        before = self.frontage
        self.frontage = self._frontage_of(settings, before.table.replicas)
        if before.settings.health != settings.health:
            self._stop_probing(list(self._probers))
        kept = set(map(id, self.frontage.table.replicas.values()))
        gone = [replica for replica in before.table.replicas.values() if id(replica) not in kept]
        self._stop_probing(gone)
        for replica in gone:
            replica.upstream.retire()
        self._follow_replicas()
        self._follow_prompt_settings(settings.prompt)

    async def close(self) -> None:
        """Stop probing and close idle connections. Requests in flight are not touched."""
        self._running = False
        tasks = self._stop_probing(list(self._probers))
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)
        if self.prompts is not None:
            await self.prompts.close()
        for replica in self.frontage.table.replicas.values():
            replica.upstream.retire()

    @staticmethod
    def _frontage_of(settings: RouterSettings, held: dict[str, Replica]) -> Frontage:
        return Frontage(settings, Keys(settings), PoolTable(settings, next_replicas(settings, held)))

    def _follow_replicas(self) -> None:
        health = self.frontage.settings.health
        if not self._running or not health.enabled:
            return
        for replica in self.frontage.table.replicas.values():
            if replica.settings.enabled and replica not in self._probers:
                task = asyncio.get_running_loop().create_task(Prober(replica, health).run())
                task.add_done_callback(_say_how_it_ended)
                self._probers[replica] = task

    def _stop_probing(self, replicas: Iterable[Replica]) -> list[asyncio.Task[None]]:
        tasks = [self._probers.pop(replica) for replica in replicas if replica in self._probers]
        for task in tasks:
            task.cancel()
        return tasks

    # prompts

    def _follow_prompt_settings(self, settings: PromptSettings | None) -> None:
        """Read prompts from the first settings that ask for it until some do not."""
        if not self._running or self._make_prompts is None:
            return
        if settings is None:
            if self.prompts is not None:
                closing = asyncio.get_running_loop().create_task(self.prompts.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                self.prompts = None
        elif self.prompts is None:
            self.prompts = self._make_prompts(settings)
            self._followed = None
        elif self.prompts.settings != settings:
            self.prompts.reconfigure(settings)

    def follow_fleet(self, fleet: Fleet) -> None:
        """Call after each slice of the fold; cheap while the fleet is the same."""
        if self.prompts is not None and fleet is not self._followed:
            self._followed = fleet
            self.prompts.follow(fleet)

    def noticed(self, notices: Sequence[Notice], as_of: int) -> None:
        """Call with what each slice of the fold told; it ends at offset `as_of`."""
        if self.prompts is not None:
            self.prompts.noticed(notices, as_of)

    async def read_prompt(
        self,
        held: SettingsHeld,
        document: Mapping[str, Any],
        headers: Mapping[str, str],
        path: str,
        model: str,
        eligible: Sequence[str],
    ) -> PromptFacts:
        """The blocks of a prompt, or why there are none. Raises CancelledError only."""
        prompts = self.prompts
        if held.pick.kv is None or prompts is None or not eligible:
            return NO_PROMPT
        asked = PromptAsked(document, headers, path, served_model(model, held.pick), tuple(sorted(eligible)))
        return await prompts.read(asked, self.log.view().fleet)

    def served(
        self, pick: PickMade, prompt: PromptFacts, held: SettingsHeld, status: EndStatus, usage: Usage
    ) -> None:
        """A pinned dispatch ended: compare what was predicted with what is told."""
        outcome = pick.outcome
        if held.pick.kv is None or not prompt.hashes:
            return
        # of a pair the decode worker counts, which has not cached what the prefill worker has
        is_pair = outcome.prefill.chosen is not None
        if usage.cached_tokens is not None and outcome.block_size and not is_pair:
            predicted = min(outcome.overlap_blocks * outcome.block_size, prompt.isl_tokens)
            self.metrics.cached_compared(predicted, usage.cached_tokens)
        if self.prompts is not None:
            self.prompts.served(pick, prompt, held.pick.kv, status, self.log.view)

    # picking

    def pick(
        self,
        *,
        held: SettingsHeld,
        request_id: str,
        model: str,
        eligible: Iterable[str],
        absent: Iterable[tuple[str, int]],
        estimated_tokens: int,
        prompt: PromptFacts = NO_PROMPT,
    ) -> PickMade:
        """Question and pick, frozen in this one step without an await (decision 28).

        The caller appends the record before it awaits anything.
        """
        loop_time = asyncio.get_running_loop().time
        began_s = loop_time()
        log = self.log
        asked_at, lag_us = log.log_time()
        view = log.view()
        question = freeze_question(
            request_id=request_id,
            send=0,
            model=model,
            settings=held.pick,
            asked_at=asked_at,
            lag_us=lag_us,
            eligible=tuple(eligible),
            absent=tuple(absent),
            estimated_tokens=estimated_tokens,
            rotations=self._rotations,
            prompt=prompt,
            draws=_draws(held.pick),
        )
        question = self._recorded(question, view, held.pick)
        outcome = self._picker(view, question, held.pick, log.flags())
        self._rotations.advance(question.served_model, outcome, by_prefix=held.pick.kv is not None)
        fact = PickMade(
            pick_id=os.urandom(PICK_ID_BYTES),
            replica=log.replica,
            own_seq=log.next_own_seq() - 1,
            as_of=view.as_of,
            config_version=held.version,
            question=question,
            outcome=outcome,
            suspect=log.is_suspect(),
        )
        self._note_models(view)
        self.metrics.picked(fact, int((loop_time() - began_s) * 1_000_000), _input_age_us(view, fact))
        return fact

    def _recorded(self, question: Question, view: View, settings: PickSettings) -> Question:
        """The question with as many hashes as can matter: all of them where a side index is fed from it."""
        kv, prompt = settings.kv, self.frontage.settings.prompt
        if kv is None or not question.hashes or kv.predicted_ttl_us or kv.approximate_ttl_us:
            return question
        if prompt is not None and prompt.keeps_all_hashes:
            return question
        return cut_hashes(question, view.deepest(question, kv))

    # models

    def _note_models(self, view: View) -> None:
        """Remember which models the fleet has served, so that a gap reads no_worker (B-003)."""
        if view.fleet.generation == self._seen_generation:
            return
        self._seen_generation = view.fleet.generation
        for model in view.fleet.models():
            self._seen_models.pop(model, None)
            self._seen_models[model] = None
        while len(self._seen_models) > ROTATIONS_MAX:
            del self._seen_models[next(iter(self._seen_models))]

    def has_seen(self, served: str) -> bool:
        """Whether the fleet serves or has served this Dynamo name."""
        self._note_models(self.log.view())
        return served in self._seen_models


def _draws(settings: PickSettings) -> tuple[int, ...]:
    """One draw for each phase, where chance is asked for; 53 bits make a double in [0, 1)."""
    if settings.kv is None or settings.kv.temperature <= 0:
        return ()
    return tuple(int.from_bytes(os.urandom(7)) >> 3 for _ in range(PHASES))


def _input_age_us(view: View, fact: PickMade) -> int | None:
    chosen = fact.outcome.decode.chosen
    if chosen is None or fact.outcome.namespace is None:
        return None
    sample = view.load.sample(fact.outcome.namespace, chosen.instance_id, chosen.dp_rank)
    return None if sample is None else max(0, fact.question.asked_at - sample.received_at)


def _say_how_it_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        # as text: a pretty printer of tracebacks would show keys
        trace = "".join(traceback.format_exception(task.exception()))
        _log.error("probing a backend ended", trace=trace)
