"""The owner of a simulation: claim, ticks, discovery and subscriptions beside a router.

Wired as `app.wiring` does it: nothing is said of the fleet before the own claim was folded,
discovery begins with what the fold holds, subscriptions follow the folded fleet.
"""

from __future__ import annotations

from typing import Any

from app.owner import Owner
from app.tail import Seen, Tail
from ingest.discovery.discovery_pass import DiscoveryPass
from ingest.discovery.pass_effects import (
    Append,
    Close,
    Connect,
    Effect,
    ListNames,
    OpenWatches,
    Phase,
    ReadValues,
    SleepUntil,
)
from ingest.discovery.source import EndReason, SourceEvent
from ingest.log.appends import Importance
from ingest.log.ownership import Ownership
from ingest.subscriptions.continuity import Continuity
from ingest.wire.publisher_frames import Sample
from projections.bounds import SECOND_US
from projections.events.control import (
    ConfigAdopted,
    ConfigProposed,
    FoldModeAdopted,
    PickSettings,
    RecordCondemned,
)
from projections.events.discovery import KeysDropped, PassSettled
from projections.events.signals import (
    Family,
    FrameRefused,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.fold_modes import wanted_modes
from projections.notices import FrameResult
from projections.registry.fleet import Fleet
from tests.simulation.world_blocks import SimBlockSubscriptions
from tests.simulation.world_fleet import NAMESPACES, StoreSession
from tests.simulation.world_process import Replica

STILL_US = 1 * SECOND_US
MERGE_US = 2_000


class OwnerProcess(Replica):
    """Owner and one router in one process."""

    is_owner = True

    @staticmethod
    def watched() -> frozenset[type]:
        """As the main process watches."""
        return frozenset((ConfigAdopted, ConfigProposed, PassSettled))

    def begin(self) -> None:
        """Claim the log; the rest begins once the claim was folded."""
        self._speaks = False
        self._modes: tuple[int, ...] | None = None
        self.fenced = False
        self.discovery: SimDiscovery | None = None
        self.subscriptions: SimSubscriptions | None = None
        self.blocks: SimBlockSubscriptions | None = None
        self.reading.on_seen = self._seen
        self.reading.on_condemn = lambda offset, detail: self.say(RecordCondemned(offset, detail[:200]))
        self.ownership = Ownership(
            self.eye,
            self.appender,
            now_us=self.clock,
            wall_us=self.wall,
            do=self.writer.do,
            fail=lambda problem: self._lost_it(),
            on_still=None,
        )
        self.writer.on_committed = self.ownership.on_committed
        self.writer.on_reclaim = lambda: self.ownership.begin("restart")
        self.owner = Owner(
            self.reading.tail, self.say, checkpoint_every_us=self.sim.checkpoint_every_us, now_us=self.clock()
        )
        self._last_loop = self.clock()
        self.ownership.begin("restart")

    def say(self, fact: Any) -> None:
        """An owner's fact."""
        self.writer.append(fact)

    def say_ingest(self, fact: Any) -> None:
        """A fact of ingest, with its place in the shedding order."""
        light = isinstance(fact, SampleReceived | FrameRefused)
        self.writer.append(fact, Importance.SAMPLE if light else Importance.CONTROL)

    def woke(self) -> None:
        """Whatever the loop does first after a pause: subscriptions are cut before they are read."""
        now = self.clock()
        if now - self._last_loop > STILL_US and self.subscriptions is not None:
            self.subscriptions.cut("stalled")
            assert self.blocks is not None
            self.blocks.cut("stalled")
        self._last_loop = now

    def on_folded(self) -> None:
        """As `app.wiring` does after each slice."""
        super().on_folded()
        fold = self.reading.tail.fold
        if not self._speaks:
            if fold.state.intake.owner == (self.appender.writer, self.appender.epoch):
                self._become_owner(fold)
            return
        assert self.subscriptions is not None
        if self.subscriptions.followed != fold.state.registry.generation:
            self.subscriptions.followed = fold.state.registry.generation
            self.subscriptions.follow(fold.state.registry.fleet)
            assert self.blocks is not None
            self.blocks.follow(fold.state.registry.fleet)

    def _become_owner(self, fold: Fold) -> None:
        self._speaks = True
        self.say_started()
        if self.reading.incomplete:
            self.say(KeysDropped((), "all"))
        self.adopt(self.sim.settings)
        passes = fold.state.registry.passes
        self.discovery = SimDiscovery(
            self, fold, max((held.pass_number for held in passes.values()), default=0)
        )
        self.subscriptions = SimSubscriptions(self, fold)
        self.subscriptions.follow(fold.state.registry.fleet)
        self.blocks = SimBlockSubscriptions(self, fold)
        self.blocks.follow(fold.state.registry.fleet)

    def adopt(self, settings: PickSettings) -> None:
        """Adopt these settings if they differ from what holds."""
        if self._speaks:
            self._adopt_modes(settings)
            self.owner.adopt("file", repr(settings).encode()[-32:], "{}", settings, True)

    def _adopt_modes(self, settings: PickSettings) -> None:
        modes = wanted_modes(settings)
        if modes != self._modes:
            self._modes = modes
            self.say(FoldModeAdopted(modes))

    def tick(self) -> None:
        """Four times a second."""
        super().tick()
        self.ownership.on_tick()
        if self.is_alive and self._speaks:
            self.owner.on_tick(self.clock(), self.wall())
        if self.discovery is not None:
            self.discovery.tick()

    def on_replaced(self, tail: Tail) -> None:
        """Picks are made on another fold from now on."""
        super().on_replaced(tail)
        self.owner.tail = tail

    def _seen(self, seen: Seen) -> None:
        fact = seen.fact
        if isinstance(fact, PassSettled) and self.discovery is not None:
            held = self.reading.newest.fold.state.registry.passes.get(fact.namespaces[0])
            if held is not None and not held.settled:
                self.sim.count("pass repeated")
                self.discovery.repeat(self.reading.newest.fold)

    def _lost_it(self) -> None:
        self.fenced = True
        self.sim.count("fenced")
        self.die()

    def die(self) -> None:
        """Its connections end."""
        super().die()
        if self.discovery is not None:
            self.discovery.close()


class SimDiscovery:
    """The shell of the pass machine on the simulated store."""

    def __init__(self, process: OwnerProcess, fold: Fold, pass_number: int) -> None:
        self._process = process
        self._session: StoreSession | None = None
        self._due: int | None = None
        self.machine = DiscoveryPass(
            "etcd",
            NAMESPACES,
            fold.state.registry.keyspaces.held_digests(()),
            200_000,
            2_000_000,
            pass_number,
        )
        self._do(self.machine.start(process.clock()))

    def close(self) -> None:
        """The process died."""
        if self._session is not None:
            self._session.close()

    def end(self, reason: EndReason = EndReason.STREAM) -> None:
        """The session breaks."""
        if self._session is not None:
            self._session.end(reason)

    def tick(self) -> None:
        """Look at the time."""
        if self._due is not None and self._process.clock() >= self._due:
            self._due = None
            self._do(self.machine.tick(self._process.clock()))

    def repeat(self, fold: Fold) -> None:
        """The fold holds other keys."""
        held = fold.state.registry.keyspaces.held_digests(())
        self._do(self.machine.repeat(held, self._process.clock()))

    @property
    def is_watching(self) -> bool:
        """Whether it follows the store."""
        return self.machine.phase is Phase.WATCHING

    def _receive(self, event: SourceEvent) -> None:
        self._do(self.machine.receive(event, self._process.clock()))

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append(fact):
                    self._process.say_ingest(fact)
                case SleepUntil(at_us):
                    self._due = at_us
                case Connect():
                    process = self._process
                    self._session = StoreSession(
                        process.sim.store, process.sim.rng, process.later, self._receive
                    )
                    self._session.connect()
                case ListNames(watched) if self._session is not None:
                    self._session.names(watched)
                case ReadValues(listed) if self._session is not None:
                    self._session.values(listed)
                case OpenWatches(listed) if self._session is not None:
                    self._session.watches(listed)
                case Close():
                    self.close()
                    self._session = None


class SimSubscriptions:
    """Subscriptions as the supervisor keeps them, each with the real `Continuity`."""

    def __init__(self, process: OwnerProcess, fold: Fold) -> None:
        self._process = process
        self.followed = -1
        self._connections: dict[tuple[str, int], int] = {}
        self._held = {}
        for key, held in fold.state.status.subscriptions.items():
            if key[0] == Family.LOAD:
                self._held[key[1:]] = held.component
                self._connections[key[1:]] = held.connection
        self.lines: dict[tuple[str, int], SimLine] = {}

    def follow(self, fleet: Fleet) -> None:
        """Start and end lines as the folded fleet says."""
        wanted = {(*one.key,) for one in fleet.publishers if one.topic == "kv_metrics"}
        held, self._held = self._held, {}
        for key in sorted(held):
            if key not in wanted:
                self._say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(set(self.lines) - wanted):
            self.lines.pop(key).close()
            self._say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(wanted - set(self.lines)):
            self._say(key, SubscriptionState.CONNECTING, "started")
            self.lines[key] = SimLine(self, self._process, key)

    def next_connection(self, key: tuple[str, int]) -> int:
        """A number that never comes back."""
        self._connections[key] = self._connections.get(key, 0) + 1
        return self._connections[key]

    def cut(self, reason: str) -> None:
        """All connections end."""
        for line in self.lines.values():
            line.cut(reason)

    def _say(self, key: tuple[str, int], state: SubscriptionState, reason: str) -> None:
        connection = self._connections.get(key, 0)
        self._process.say_ingest(
            SubscriptionChanged(
                int(Family.LOAD), *key, "", int(state), connection, int(Transport.DIRECT), reason
            )
        )

    def connected(self, key: tuple[str, int]) -> None:
        """Tell the log."""
        self._say(key, SubscriptionState.CONNECTED, "connected")

    def backed_off(self, key: tuple[str, int], reason: str) -> None:
        """Tell the log."""
        self._say(key, SubscriptionState.BACKOFF, reason)


class SimLine:
    """One publisher's subscription: connect, listen, wait, again."""

    def __init__(self, owner: SimSubscriptions, process: OwnerProcess, key: tuple[str, int]) -> None:
        self._owner, self._process, self.key = owner, process, key
        self._continuity = Continuity()
        self.connection = 0
        self.is_connected = False
        self._is_closed = False
        self._is_planned = False
        self._dial()

    def close(self) -> None:
        """Silent at once."""
        self._is_closed, self.is_connected = True, False

    def cut(self, reason: str) -> None:
        """The connection ends; samples that wait are told unless they are old."""
        if not self.is_connected:
            return
        if reason == "stalled":
            self._continuity = Continuity()
        self._tell()
        self.is_connected = False
        self._continuity = Continuity()
        self._owner.backed_off(self.key, reason)
        self._dial()

    def frame(self, connection: int, sample: Sample | None, sequence: int) -> None:
        """A message arrived; None: one that is refused."""
        if not self.is_connected or connection != self.connection:
            return
        self._process.sim.delivered.add((*self.key, connection, sequence))
        result: FrameResult | None = FrameResult.MALFORMED
        if sample is None:
            self._continuity.fill(sequence)
        else:
            result = self._continuity.take(sample)
        if result is not None:
            self._process.say_ingest(
                FrameRefused(int(Family.LOAD), *self.key, self.connection, int(result), 1)
            )
        if self._continuity.waiting and not self._is_planned:
            self._is_planned = True
            self._process.later(self._process.sim.rng.choice((0, MERGE_US, 60_000)), self._planned)

    def _dial(self) -> None:
        self._process.later(self._process.sim.rng.choice((1_000, 50_000, 1_500_000)), self._connect)

    def _connect(self) -> None:
        if self._is_closed or self.is_connected:
            return
        if not self._process.sim.is_listening(self.key):
            self._dial()
            return
        self._continuity = Continuity()
        self.connection = self._owner.next_connection(self.key)
        self.is_connected = True
        self._owner.connected(self.key)

    def _planned(self) -> None:
        self._is_planned = False
        if self._process.appender.is_shedding and self.is_connected:
            self._is_planned = True
            self._process.later(50_000, self._planned)
            return
        self._tell()

    def _tell(self) -> None:
        if not self.is_connected:
            return
        for covers_from, sample, _ in self._continuity.drain():
            self._process.say_ingest(
                SampleReceived(
                    *self.key,
                    self.connection,
                    covers_from,
                    sample.sequence,
                    sample.worker_id,
                    sample.dp_rank,
                    sample.active_decode_blocks,
                    sample.active_prefill_tokens,
                    sample.kv_used_blocks,
                    sample.published_at_ms,
                )
            )
