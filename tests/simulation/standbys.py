"""Worlds whose log has no lock: two ingest processes, one of which owns it while the other waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from projections.bounds import SECOND_US
from projections.events.control import PickSettings
from tests.simulation.invariants import check_all
from tests.simulation.scenario import SETTINGS, Quiet
from tests.simulation.simulator import SETTLE_US, Simulator
from tests.simulation.world_process import Follower, Process, Replica
from tests.simulation.world_standby import StandbyProcess

ENSURE_US = 2 * SECOND_US
INGESTS = 2


class Standbys(Simulator):
    """A seeded history of such a world. Whoever ends is started again, as an orchestrator does."""

    def begin(self) -> None:
        """The first processes and workers."""
        for _ in range(self.chances.workers):
            self.join_worker()
        for number in range(INGESTS):
            self.start(StandbyProcess, f"ingest{number}")
        self.start(Follower, "follower")
        for number in range(self.chances.replicas):
            self.start(Replica, f"replica{number}")
        self._ensure()

    def _ensure(self) -> None:
        if sum(isinstance(one, StandbyProcess) and one.is_alive for one in self.processes) < INGESTS:
            self.start(StandbyProcess, f"ingest{len(self.processes)}")
        self.later(ENSURE_US, self._ensure)

    def _take_over(self) -> None:
        """The standby sees to it."""

    def _replace(self, kind: type[Process], name: str) -> None:
        if kind is not StandbyProcess:
            super()._replace(kind, name)

    def _ensure_owner(self) -> None:
        """The standby sees to it."""


class QuietStandbys(Quiet):
    """Nothing goes wrong but what the scenario says. first: who owns the log to begin with."""

    first: StandbyProcess
    second: StandbyProcess

    def _ensure_owner(self) -> None:
        if not any(isinstance(one, StandbyProcess) and one.is_alive for one in self.processes):
            self.start(StandbyProcess, f"ingest{len(self.processes)}")

    @property
    def owners(self) -> list[StandbyProcess]:
        """Processes that speak for the fleet now."""
        return [
            one for one in self.processes if isinstance(one, StandbyProcess) and one.is_alive and one.speaks
        ]


@contextmanager
def two_ingests(
    workers: int = 2, seed: int = 1, waits_us: int = 6 * SECOND_US, settings: PickSettings = SETTINGS
) -> Iterator[QuietStandbys]:
    """An owner, a standby that has connected to all, a follower, a replica; afterwards all is checked."""
    sim = QuietStandbys(seed)
    sim.settings = settings
    with sim.patched():
        for _ in range(workers):
            sim.add_worker("aggregated")
        sim.first = sim.start(StandbyProcess, "first")
        sim.start(Follower, "follower")
        sim.replica = sim.start(Replica, "replica")
        sim.wait(4 * SECOND_US)
        assert sim.first.speaks, "a lone ingest process owns the log within four seconds"
        sim.second = sim.start(StandbyProcess, "second")
        sim.wait(waits_us)
        yield sim
        sim.heal()
        sim.wait(SETTLE_US)
    check_all(sim)
