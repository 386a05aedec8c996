"""The bringing-in half of an owner: discovery and subscriptions, driven by the log itself.

Discovery is started once the fold holds this owner's own claim, with what the fold holds;
subscriptions follow the folded fleet, not what discovery has just said. So what is dialled
is what the log says, in a replay too. Block events are subscribed to while the fold is in the
mode that indexes them, and in no other (KVX-20). Engines that do not name their worker find it
among the workers that the fold holds (`EngineBindings`).

A standby subscribes like an owner and says nothing: what it hears is held, and told when it takes
over (`HeldFrames`). Its discovery begins only then, with a full pass that logs differences alone:
that takes a moment, and a pass kept up all the time would have to be compared with the log again
all the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from app.log_tail import monotonic_us
from ingest.discovery.pass_effects import StateChanged
from ingest.discovery.runner import DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings
from ingest.log.appends import Importance, Receipt, Status
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import FrameKeeper, raw_digest
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.engine_bindings import EngineBindings, EngineRow
from ingest.subscriptions.families import LOAD_FAMILY, FamilyPlan, kv_family
from ingest.subscriptions.held_frames import HeldFrames
from ingest.subscriptions.supervisor import SubscriptionRow, Subscriptions
from ingest.subscriptions.takeover import said_again, take_over
from ingest.subscriptions.worker_places import WorkerPlaces
from ingest.wire.zmtp_frames import Message, encode_message
from projections.bounds import MIB
from projections.events.signals import Family, FrameRefused, KvBatchReceived, SampleReceived
from projections.fold import Fold
from projections.fold_modes import KV_INDEX
from projections.identity import PublisherKey
from projections.notices import DiscoveryNotice, Notice

log = structlog.get_logger("picklog.ingest")

RAW_PENDING_MAX = 4096  # raw frames whose fact is not acknowledged yet, oldest out
RAW_PENDING_BYTES_MAX = 32 * MIB  # as much as may be pending before the log sheds
RAW_APPENDED_BYTES_MAX = 32 * MIB  # raw frames whose fact waits for the log, which may spool for hours
RAW_APPENDED_COST = 512  # bytes that each of them takes beside its own
STOP_S_MAX = 10.0
PLACING_REST = 9  # times as long as engines looked for their workers, before they do again

Fact = tuple[Any, ...]


_IMPORTANCE = {
    SampleReceived: Importance.SAMPLE,
    FrameRefused: Importance.SAMPLE,
    KvBatchReceived: Importance.KV,
}


class IngestMetrics(Protocol):
    """What is counted at ingest and never reaches the fold."""

    def discovery_refused(self, notice: DiscoveryNotice) -> None:
        """A key or value that was not logged, or a restart."""

    def noticed(self, notice: Notice) -> None:
        """What people should read."""


class IngestSide:
    """Runs discovery and subscriptions for one owner. Call from the event loop."""

    def __init__(
        self,
        writer: LogWriter,
        metrics: IngestMetrics,
        discovery: DiscoverySettings,
        subscriptions: SubscriptionSettings,
        raw: FrameKeeper | None,
        *,
        on_state: Callable[[StateChanged], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._discovery_settings = discovery
        self._subscription_settings = subscriptions
        self._raw = raw
        self._raw_pending: OrderedDict[int, bytes] = OrderedDict()
        self._raw_pending_bytes = 0
        self._raw_appended_bytes = 0
        self._on_state = on_state
        self._runner: DiscoveryRunner | None = None
        self._subscriptions: Subscriptions | None = None
        self._kv_subscriptions: Subscriptions | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._followed: tuple[int, bool] | None = None
        self._places = WorkerPlaces()
        self._placed: int | None = None  # digest of the keys that workers' places were made of
        self._place_again_at = 0  # own time
        self._bindings = EngineBindings(metrics.noticed, monotonic_us)
        self._bindings.replace(subscriptions.engine_sources)
        self._kv_family = kv_family(self._bindings)
        self.held: HeldFrames | None = None  # while another process owns the log

    @property
    def is_running(self) -> bool:
        """Whether `start` has been called."""
        return self._runner is not None

    def start(self, fold: Fold) -> None:
        """Begin, with what the fold holds. The fold must hold this owner's claim."""
        passes = fold.state.registry.passes
        self._runner = DiscoveryRunner(
            self._discovery_settings,
            self._append,
            fold.state.registry.keyspaces.held_digests(()),
            self._metrics.discovery_refused,
            self._on_state,
            on_notice=self._metrics.noticed,
            pass_number=max((held.pass_number for held in passes.values()), default=0),
            is_shedding=self._is_shedding,
        )
        self._subscribe(fold)
        self._tasks.append(asyncio.create_task(self._supervised(self._runner.run(), "discovery")))
        self.follow(fold)

    def stand_by(self, fold: Fold) -> None:
        """Listen, and hold what is heard. The fold must have caught up with the log."""
        self.held = HeldFrames()
        self._subscribe(fold)
        self.follow(fold)
        log.info("standing by for the log")

    def tick(self, fold: Fold) -> None:
        """Call each second or so."""
        if self._followed is not None and self._followed[1]:
            self._place(fold)
            self._bindings.tick()
        heard_at = self._writer.owner_heard_at
        if self.held is not None:
            self.held.expire(monotonic_us())
            if heard_at is not None:
                self.held.settle(fold.state, heard_at)

    def take_over(self, fold: Fold) -> None:
        """Tell what was held and the log does not know. The fold has just read the own claim."""
        if self.held is None:
            return
        self.follow(fold)
        now = monotonic_us()
        heard_at = self._writer.owner_heard_at
        silent_since = now if heard_at is None else heard_at
        said = take_over(self.held, self.subscription_rows(), fold.state, silent_since, now)
        dropped = {"too_old": self.held.aged, "too_many": self.held.crowded}
        log.info("the log is taken over", held=len(self.held), told=len(said.facts), **dropped)
        self.held = None
        for plan, running in self._families():
            shifts = {
                PublisherKey(namespace, publisher_id): shift
                for (family, namespace, publisher_id), shift in said.shifts.items()
                if family == plan.family
            }
            running.renumber(shifts)
        for one in said.facts:
            self._append(one.fact, one.heard_at)

    def say_again(self) -> None:
        """The owner had to claim the log anew; the fold has just read that claim."""
        for fact in said_again(self.subscription_rows()):
            self._append(fact)

    def _subscribe(self, fold: Fold) -> None:
        """Begin with subscriptions, unless they run already."""
        if self._subscriptions is None:
            self._subscriptions = self._subscriptions_of(LOAD_FAMILY, fold)
            self._kv_subscriptions = self._subscriptions_of(self._kv_family, fold)

    def follow(self, fold: Fold) -> None:
        """Let subscriptions follow the fleet and the fold's mode; cheap when both are the same."""
        subscriptions, kv_subscriptions = self._subscriptions, self._kv_subscriptions
        if subscriptions is None or kv_subscriptions is None:
            return
        followed = fold.state.registry.generation, KV_INDEX in fold.state.intake.fold_mode
        if followed[1]:
            self._place(fold)
        if followed != self._followed:
            self._followed = followed
            subscriptions.follow(fold.state.registry.fleet)
            kv_subscriptions.follow(fold.state.registry.fleet, is_wanted=followed[1])

    def _place(self, fold: Fold) -> None:
        """Let engines find their workers. A host may change where the fleet does not: keys are compared.

        That is a walk over all workers, which rests for as long as keeps it below a tenth of the time.
        """
        if not self._bindings.is_looking:
            return
        registry, began_at = fold.state.registry, monotonic_us()
        if registry.keyspaces.digest != self._placed and began_at >= self._place_again_at:
            self._placed = registry.keyspaces.digest
            self._bindings.follow(self._places.of(registry))
            now = monotonic_us()
            self._place_again_at = now + PLACING_REST * (now - began_at)

    def _subscriptions_of(self, plan: FamilyPlan, fold: Fold) -> Subscriptions:
        return Subscriptions(
            self._append,
            _settings_of(plan, self._subscription_settings),
            plan,
            held=fold.state.status.subscriptions.values(),
            keep_raw=self._keep_raw if self._raw is not None else None,
            is_shedding=self._is_shedding,
            on_notice=self._metrics.noticed,
        )

    def reconfigure(self, discovery: DiscoverySettings, subscriptions: SubscriptionSettings) -> None:
        """Other settings are in force; what did not change goes on undisturbed (REL-02..08)."""
        self._discovery_settings = discovery
        if self._runner is not None:
            self._runner.replace(discovery)
        if subscriptions != self._subscription_settings:
            self._subscription_settings = subscriptions
            self._bindings.replace(subscriptions.engine_sources)
            for plan, running in self._families():
                running.replace(_settings_of(plan, subscriptions))

    def repeat_pass(self, fold: Fold) -> None:
        """The fold holds other keys than discovery believes: read everything again."""
        if self._runner is not None:
            self._runner.repeat_pass(fold.state.registry.keyspaces.held_digests(()))

    def subscription_rows(self) -> list[SubscriptionRow]:
        """Where each subscription stands now."""
        return [row for _, running in self._families() for row in running.rows()]

    def engine_rows(self) -> list[EngineRow]:
        """Which worker each engine of the configuration belongs to."""
        return self._bindings.rows()

    @property
    def is_connected(self) -> bool:
        """Whether a discovery pass stands and is being folded (ETCD-15)."""
        return self._runner is not None and self._runner.state.connected

    async def stop(self) -> None:
        """End discovery and all subscriptions, within STOP_S_MAX (REL-12)."""
        if self._runner is not None:
            self._runner.stop()
        await asyncio.gather(*(running.stop() for _, running in self._families()))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_S_MAX)
            for task in late:
                task.cancel()

    async def _supervised(self, running: Any, what: str) -> None:
        """A task that ends by a fault of ours is said loudly; the process goes on serving."""
        try:
            await running
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a task ended by a fault", task=what)

    def _families(self) -> list[tuple[FamilyPlan, Subscriptions]]:
        """What has been started."""
        both = ((LOAD_FAMILY, self._subscriptions), (self._kv_family, self._kv_subscriptions))
        return [(plan, running) for plan, running in both if running is not None]

    def _append(self, fact: Fact, heard_at: int | None = None) -> None:
        if self.held is not None:
            self.held.hold(monotonic_us(), fact)
            return
        importance = _IMPORTANCE.get(type(fact), Importance.CONTROL)
        frames = self._taken_raw(fact) if isinstance(fact, SampleReceived | KvBatchReceived) else None
        if frames is None or self._raw is None:
            self._writer.append(fact, importance=importance, heard_at=heard_at)
            return
        raw, kept, writer = self._raw, frames, self._writer
        cost = len(kept) + RAW_APPENDED_COST
        if self._raw_appended_bytes + cost > RAW_APPENDED_BYTES_MAX:
            raw.drop()
            writer.append(fact, importance=importance, heard_at=heard_at)
            return
        self._raw_appended_bytes += cost

        def done(receipt: Receipt) -> None:
            self._raw_appended_bytes -= cost
            if receipt.status is Status.ACKNOWLEDGED and receipt.offset is not None:
                raw.put(receipt.offset, kept, writer.log_time_now())

        self._writer.append(fact, importance=importance, on_done=done, heard_at=heard_at)

    def _is_shedding(self) -> bool:
        return self.held is None and self._writer.is_shedding

    def _keep_raw(self, message: Message) -> int | None:
        """Hold the frames until their fact is appended; the digest that links both."""
        packed = encode_message(message)
        digest = raw_digest(packed)
        self._raw_pending_bytes += len(packed) - len(self._raw_pending.pop(digest, b""))
        self._raw_pending[digest] = packed
        while len(self._raw_pending) > RAW_PENDING_MAX or self._raw_pending_bytes > RAW_PENDING_BYTES_MAX:
            self._raw_pending_bytes -= len(self._raw_pending.popitem(last=False)[1])
        return digest

    def _taken_raw(self, fact: SampleReceived | KvBatchReceived) -> bytes | None:
        """The frames that were held for a fact, which now go with it."""
        frames = self._raw_pending.pop(fact.raw_digest, None) if fact.raw_digest is not None else None
        self._raw_pending_bytes -= len(frames or b"")
        return frames


def _settings_of(plan: FamilyPlan, settings: SubscriptionSettings) -> SubscriptionSettings:
    """A family's own: engines publish block events alone, and a change of them restarts no other."""
    return settings if plan.family is Family.KV else dataclasses.replace(settings, engine_sources=())
