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
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import structlog

from projections.bounds import ROTATIONS_MAX
from projections.events.control import PickSettings
from projections.events.held import SettingsHeld
from projections.events.picks import DispatchEnded, Outcome, PickMade, Question
from projections.view import View
from router.dispatch.health import Prober
from router.dispatch.relay import PushRelay, Relay
from router.dispatch.shim_pools import PoolTable, Replica, next_replicas
from router.ingress.keys import Keys
from router.metrics import RouterMetrics
from router.question import freeze_question
from router.rotations import Rotations
from router.settings import RouterSettings

Picker = Callable[[View, Question, PickSettings], Outcome]
PICK_ID_BYTES = 16
_log = structlog.get_logger("router")


class PickLog(Protocol):
    """What the router needs of the log. No call blocks, awaits or raises."""

    @property
    def replica(self) -> bytes:
        """Id of this picking process for its whole life."""

    def view(self) -> View:
        """The projections as folded so far, plus this replica's own picks and ends."""

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
    ) -> None:
        self.log = pick_log
        self.metrics = metrics
        self.relay: Relay = relay or PushRelay()
        self._picker = picker
        self._rotations = Rotations()
        self._probers: dict[Replica, asyncio.Task[None]] = {}
        self._running = False
        self._seen_models: dict[str, None] = {}
        self._seen_generation = -1
        self.frontage = self._frontage_of(settings, {})

    # life

    async def start(self) -> None:
        """Begin to probe backends."""
        self._running = True
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

    async def close(self) -> None:
        """Stop probing and close idle connections. Requests in flight are not touched."""
        self._running = False
        tasks = self._stop_probing(list(self._probers))
        await asyncio.gather(*tasks, return_exceptions=True)
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
        )
        outcome = self._picker(view, question, held.pick)
        self._rotations.advance(question.served_model, outcome)
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
