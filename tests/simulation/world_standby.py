"""An ingest process of a log that several may own: it stands by, and takes over what it heard.

Wired as `app.owner_side` and `app.ingest_side` do it.
"""

from __future__ import annotations

from typing import Any

from ingest.log.appends import Importance
from ingest.subscriptions.held_frames import HeldFact, HeldFrames
from ingest.subscriptions.takeover import take_over
from projections.events.signals import Family, FrameRefused, SampleReceived
from projections.fold import Fold
from tests.simulation.world_owner import OwnerProcess

WATCH_US = 100_000


class StandbyProcess(OwnerProcess):
    """Owns the log once nobody else does."""

    stands_by = True

    def begin(self) -> None:
        """Read all of the log; nothing is said of the fleet before the own claim."""
        self.held: HeldFrames | None = None
        self._heard: set[tuple[str, int, int, int]] = set()
        self._has_started = False
        self.took_over_at: int | None = None
        super().begin()
        self.reading.on_batches = self.ownership.on_batches
        self.later(0, self._watch)

    def _watch(self) -> None:
        self.ownership.on_tick()
        self.later(WATCH_US, self._watch)

    def on_folded(self) -> None:
        """As `app.wiring` does after each slice."""
        super().on_folded()
        tail = self.reading.tail
        if not self._has_started and tail.readiness(self.clock()).ready:
            self._has_started = True
            self.say_started()
            if not self.speaks:
                self.held = HeldFrames()
                self.subscribe(tail.fold)

    def become_owner(self, fold: Fold) -> None:
        """What was heard and the log does not know is told first."""
        self.took_over_at = self.sim.now
        if self.held is not None:
            self._take_over(fold, self.held)
        super().become_owner(fold)

    def _take_over(self, fold: Fold, held: HeldFrames) -> None:
        assert self.subscriptions is not None and self.blocks is not None
        self.follow(fold)
        now, heard_at = self.clock(), self.ownership.owner_heard_at
        rows = [*self.subscriptions.rows(), *self.blocks.rows()]
        said = take_over(held, rows, fold.state, now if heard_at is None else heard_at, now)
        self.held = None
        self.sim.count("taken over with frames" if said.facts else "taken over")
        for (family, space, publisher), shift in said.shifts.items():
            running = self.subscriptions if family == Family.LOAD else self.blocks
            running.renumber((space, publisher), shift)
        shifts = {key[1:]: shift for key, shift in said.shifts.items() if key[0] == Family.LOAD}
        for space, publisher, connection, sequence in self._heard:
            number = connection + shifts.get((space, publisher), 0)
            self.sim.delivered.add((space, publisher, number, sequence))
        for one in said.facts:
            self._tell(one)

    def _tell(self, one: HeldFact) -> None:
        light = isinstance(one.fact, SampleReceived | FrameRefused)
        importance = Importance.SAMPLE if light else Importance.CONTROL
        self.writer.do(self.appender.on_submitted(one.heard_at, one.fact, importance))

    def say_ingest(self, fact: Any) -> None:
        """Held as long as another process speaks."""
        if self.held is not None:
            self.held.hold(self.clock(), fact)
        else:
            super().say_ingest(fact)

    def heard(self, place: tuple[str, int, int, int]) -> None:
        """Counts under the number that the log will know."""
        if self.held is not None:
            self._heard.add(place)
        else:
            super().heard(place)

    def tick(self) -> None:
        """Four times a second."""
        super().tick()
        if self.held is not None:
            self.held.expire(self.clock())
            heard_at = self.ownership.owner_heard_at
            if heard_at is not None:
                self.held.settle(self.reading.tail.fold.state, heard_at)
