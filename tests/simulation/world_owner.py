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
from ingest.subscriptions.takeover import said_again
from projections.bounds import SECOND_US
from projections.events.control import (
    ConfigAdopted,
    ConfigProposed,
    PickSettings,
    RecordCondemned,
)
from projections.events.discovery import KeysDropped, PassSettled
from projections.events.signals import FrameRefused, SampleReceived
from projections.fold import Fold
from tests.simulation.world_blocks import SimBlockSubscriptions
from tests.simulation.world_fleet import NAMESPACES, StoreSession
from tests.simulation.world_process import Replica
from tests.simulation.world_subscriptions import SimSubscriptions

STILL_US = 1 * SECOND_US


class OwnerProcess(Replica):
    """Owner and one router in one process."""

    is_owner = True

    @staticmethod
    def watched() -> frozenset[type]:
        """As the main process watches."""
        return frozenset((ConfigAdopted, ConfigProposed, PassSettled))

    def begin(self) -> None:
        """Claim the log; the rest begins once the claim was folded."""
        self.speaks = False
        self._claim: tuple[bytes, int] | None = None
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
            stands_by=self.stands_by,
            replica=self.id if self.stands_by else None,
        )
        self.writer.on_committed = self.ownership.on_committed
        self.writer.on_reclaim = lambda: self.ownership.begin("restart")
        self.owner = Owner(
            self.reading.tail, self.say, checkpoint_every_us=self.sim.checkpoint_every_us, now_us=self.clock()
        )
        self._last_loop = self.clock()
        if not self.stands_by:
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
        claim = self.appender.writer, self.appender.epoch
        if claim == fold.state.intake.owner != self._claim:
            self._claim = claim
            if self.speaks:
                self._say_again()
            else:
                self.become_owner(fold)
        if self.subscriptions is not None:
            self.follow(fold)

    def _say_again(self) -> None:
        """The process had to claim anew."""
        assert self.subscriptions is not None and self.blocks is not None
        for fact in said_again([*self.subscriptions.rows(), *self.blocks.rows()]):
            self.say_ingest(fact)

    def follow(self, fold: Fold) -> None:
        """Subscriptions follow the folded fleet."""
        assert self.subscriptions is not None
        if self.subscriptions.followed != fold.state.registry.generation:
            self.subscriptions.followed = fold.state.registry.generation
            self.subscriptions.follow(fold.state.registry.fleet)
            assert self.blocks is not None
            self.blocks.follow(fold.state.registry.fleet)

    def become_owner(self, fold: Fold) -> None:
        """The own claim has been folded."""
        self.speaks = True
        self.say_started()
        if self.reading.incomplete:
            self.say(KeysDropped((), "all"))
        self.adopt(self.sim.settings)
        passes = fold.state.registry.passes
        self.discovery = SimDiscovery(
            self, fold, max((held.pass_number for held in passes.values()), default=0)
        )
        self.subscribe(fold)

    def subscribe(self, fold: Fold) -> None:
        """Begin with subscriptions, unless they run already."""
        if self.subscriptions is None:
            self.subscriptions = SimSubscriptions(self, fold)
            self.subscriptions.follow(fold.state.registry.fleet)
            self.blocks = SimBlockSubscriptions(self, fold)
            self.blocks.follow(fold.state.registry.fleet)

    def heard(self, place: tuple[str, int, int, int]) -> None:
        """A message arrived: namespace, publisher, connection, sequence."""
        self.sim.delivered.add(place)

    def adopt(self, settings: PickSettings) -> None:
        """Adopt these settings if they differ from what holds."""
        if self.speaks:
            self.owner.adopt("file", repr(settings).encode()[-32:], "{}", settings, True)

    def tick(self) -> None:
        """Four times a second."""
        super().tick()
        self.ownership.on_tick()
        if self.is_alive and self.speaks:
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
