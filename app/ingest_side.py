"""The bringing-in half of an owner: discovery and subscriptions, driven by the log itself.

Discovery is started once the fold holds this owner's own claim, with what the fold holds;
subscriptions follow the folded fleet, not what discovery has just said. So what is dialled
is what the log says, in a replay too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from ingest.discovery.pass_effects import StateChanged
from ingest.discovery.runner import DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings
from ingest.log.appends import Importance, Receipt, Status
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import RawFrames, raw_digest
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.supervisor import SubscriptionRow, Subscriptions
from ingest.wire.zmtp_frames import Message, encode_message
from projections.events.signals import FrameRefused, SampleReceived
from projections.fold import Fold
from projections.notices import DiscoveryNotice, Notice

log = structlog.get_logger("picklog.ingest")

RAW_PENDING_MAX = 4096  # raw frames whose sample is not acknowledged yet, oldest out
STOP_S_MAX = 10.0

Fact = tuple[Any, ...]


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
        raw: RawFrames | None,
        *,
        on_state: Callable[[StateChanged], None] = lambda _: None,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._discovery_settings = discovery
        self._subscription_settings = subscriptions
        self._raw = raw
        self._raw_pending: OrderedDict[int, bytes] = OrderedDict()
        self._on_state = on_state
        self._runner: DiscoveryRunner | None = None
        self._subscriptions: Subscriptions | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._followed = -1

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
        self._subscriptions = Subscriptions(
            self._append,
            self._subscription_settings,
            held=fold.state.status.subscriptions.values(),
            keep_raw=self._keep_raw if self._raw is not None else None,
            is_shedding=self._is_shedding,
            on_notice=self._metrics.noticed,
        )
        self._tasks.append(asyncio.create_task(self._supervised(self._runner.run(), "discovery")))
        self.follow(fold)

    def follow(self, fold: Fold) -> None:
        """Let subscriptions follow the fleet; cheap when its generation is the same."""
        generation = fold.state.registry.generation
        if self._subscriptions is not None and generation != self._followed:
            self._followed = generation
            self._subscriptions.follow(fold.state.registry.fleet)

    def reconfigure(self, discovery: DiscoverySettings, subscriptions: SubscriptionSettings) -> None:
        """Other settings are in force; what did not change goes on undisturbed (REL-02..08)."""
        self._discovery_settings = discovery
        if self._runner is not None:
            self._runner.replace(discovery)
        if subscriptions != self._subscription_settings:
            self._subscription_settings = subscriptions
            if self._subscriptions is not None:
                self._subscriptions.replace(subscriptions)

    def repeat_pass(self, fold: Fold) -> None:
        """The fold holds other keys than discovery believes: read everything again."""
        if self._runner is not None:
            self._runner.repeat_pass(fold.state.registry.keyspaces.held_digests(()))

    def subscription_rows(self) -> list[SubscriptionRow]:
        """Where each subscription stands now."""
        return self._subscriptions.rows() if self._subscriptions is not None else []

    @property
    def is_connected(self) -> bool:
        """Whether a discovery pass stands and is being folded (ETCD-15)."""
        return self._runner is not None and self._runner.state.connected

    async def stop(self) -> None:
        """End discovery and all subscriptions, within STOP_S_MAX (REL-12)."""
        if self._runner is not None:
            self._runner.stop()
        if self._subscriptions is not None:
            await self._subscriptions.stop()
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

    def _append(self, fact: Fact) -> None:
        kind = type(fact)
        if kind is not SampleReceived:
            importance = Importance.SAMPLE if kind is FrameRefused else Importance.CONTROL
            self._writer.append(fact, importance=importance)
            return
        digest = fact[-1]
        frames = self._raw_pending.pop(digest, None) if digest is not None else None
        if frames is None or self._raw is None:
            self._writer.append(fact, importance=Importance.SAMPLE)
            return
        raw, kept, writer = self._raw, frames, self._writer

        def done(receipt: Receipt) -> None:
            if receipt.status is Status.ACKNOWLEDGED and receipt.offset is not None:
                raw.put(receipt.offset, kept, writer.log_time_now())

        self._writer.append(fact, importance=Importance.SAMPLE, on_done=done)

    def _is_shedding(self) -> bool:
        return self._writer.is_shedding

    def _keep_raw(self, message: Message) -> int | None:
        """Hold the frames until their sample has an offset; the digest that links both."""
        packed = encode_message(message)
        digest = raw_digest(packed)
        self._raw_pending[digest] = packed
        while len(self._raw_pending) > RAW_PENDING_MAX:
            self._raw_pending.popitem(last=False)
        return digest
