"""Seeded histories of two ingest processes over one log: no promise is broken, no block lost or doubled.

A story is told twice to the same fleet: once nothing happens to the owner, once owners are killed
or cut off, or the log stands still. What is held in the end must be the same: every frame was
heard by one of the two. Times, writers, epochs and offsets differ, of course.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from projections.bounds import SECOND_US
from projections.events.control import LaneOpened
from projections.events.held import KeyHeld, KvPublisherHeld
from projections.events.signals import StorageTier
from projections.fold import Fold
from projections.fold_state import State
from projections.kv.held_state import held_facts
from tests.simulation.invariants import check_all
from tests.simulation.scenario import MS, SETTINGS
from tests.simulation.standbys import QuietStandbys, Standbys, two_ingests
from tests.simulation.world_blocks import SimEngine, a_prompt, kv_settings
from tests.simulation.world_fleet import SimWorker
from tests.simulation.world_standby import StandbyProcess

SETTLED_US = 6 * SECOND_US  # until a standby has connected to all, and stands where the log stands


@pytest.mark.req("EVS-03", "EVS-15", "EVS-16", "EVS-17")
def test_a_seeded_history_of_two_ingests_breaks_no_promise(seed: int) -> None:
    sim = Standbys(seed)
    try:
        sim.run()
        check_all(sim)
    except Exception as problem:
        again = f"python -m pytest tests/simulation/test_standby_seeds.py --seed {seed} -x"
        pytest.fail(
            f"seed {seed}: {type(problem).__name__}: {problem}\nrepeat it: {again}\n{dict(sim.counts)}"
        )


@pytest.mark.req("EVS-15", "EVS-16")
@pytest.mark.parametrize(
    "history",
    [
        pytest.param(1411, id="a pick lands again after its worker left and came back"),
        pytest.param(3922, id="an engine starts anew where everything is told to settle"),
    ],
)
def test_a_history_that_was_told_wrongly_once_breaks_no_promise(history: int) -> None:
    sim = Standbys(history)
    sim.run()
    check_all(sim)


@pytest.mark.req("EVS-16")
def test_a_takeover_changes_nothing_of_what_is_held(seed: int) -> None:
    undisturbed, one_owner = Story(seed, is_disturbed=False).told()
    disturbed, several = Story(seed, is_disturbed=True).told()
    assert one_owner == 1
    for what, held in undisturbed.items():
        assert disturbed[what] == held, f"seed {seed}: {what} differ, {several} epochs"


class Story:
    """Samples and block events of a fleet at drawn times, and what happens to its owners meanwhile."""

    def __init__(self, seed: int, is_disturbed: bool) -> None:
        self._seed = seed
        self._rng = Random(f"story {seed}")  # the same frames, whatever happens
        self._is_disturbed = is_disturbed
        self._engines: list[SimEngine] = []
        self._talkers: list[SimWorker] = []

    def told(self) -> tuple[dict[str, Any], int]:
        """What the log's fold holds in the end, and how many epochs it had."""
        kv = kv_settings(Random(f"kv {self._seed}"))._replace(predicted_ttl_us=0, approximate_ttl_us=0)
        with two_ingests(workers=3, seed=self._seed, settings=SETTINGS._replace(kv=kv)) as sim:
            self._open_engines(sim)
            self._replace_the_standby(sim)
            if self._is_disturbed:
                self._plan_trouble(sim, Random(f"trouble {self._seed}"))
            for _ in range(self._rng.randint(60, 160)):
                self._frame(sim)
                sim.wait(self._rng.choice((1, 20, 80, 300)) * MS)
            sim.wait(8 * SECOND_US)
        fold = Fold()
        for offset, data in sim.log.records():
            fold.apply(offset, data, [])
        return dict(held_of(fold.state)), len({record.fact.epoch for record in sim.said(LaneOpened)})  # type: ignore[attr-defined]

    def _open_engines(self, sim: QuietStandbys) -> None:
        for number, worker in enumerate(sim.workers.values()):
            engine = SimEngine(worker, worker.first_rank, 0, StorageTier.DEVICE, Random(f"{number}"))
            worker.engines = [engine]
            self._engines.append(engine)
            for key, value in engine.records():
                sim.store.put(key, value)

    def _replace_the_standby(self, sim: QuietStandbys) -> None:
        """The one that waits has not heard what was said so far."""
        quiet, *talkers = sim.workers.values()
        sim.say(quiet, 7)
        self._talkers = [quiet, *talkers] if self._seed % 2 else talkers
        sim.wait(SECOND_US)
        sim.second.die()
        sim.second = sim.start(StandbyProcess, "another")
        sim.wait(SETTLED_US)

    def _frame(self, sim: QuietStandbys) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            sim.say(rng.choice(self._talkers), rng.randint(0, 50), rng.randint(0, 900))
            return
        engine = rng.choice(self._engines)
        events = engine.forgets() if rng.random() < 0.3 else engine.stores(a_prompt(rng))
        if not events:
            return
        sequence, engine.sequence = engine.sequence, engine.sequence + 1
        for process in sim.processes:
            if isinstance(process, StandbyProcess) and process.is_alive and process.blocks is not None:
                line = process.blocks.lines.get(engine.key)
                if line is not None:
                    process.later(200, partial(line.frame, line.session, sequence, events))

    def _plan_trouble(self, sim: QuietStandbys, rng: Random) -> None:
        """One thing after another, each when a standby has had the time to connect to all."""
        at = rng.randint(0, 4 * SECOND_US)
        for number in range(rng.randint(1, 2)):
            kind = rng.choice((self._kill, self._kill, self._cut_owner_off, self._stall))
            sim.later(at, partial(kind, sim, rng, f"later{number}"))
            at += 6 * SECOND_US + SETTLED_US + rng.randint(0, 2 * SECOND_US)

    def _kill(self, sim: QuietStandbys, rng: Random, name: str) -> None:
        for owner in sim.owners[-1:]:
            owner.die()
        sim.start(StandbyProcess, name)

    def _cut_owner_off(self, sim: QuietStandbys, rng: Random, name: str) -> None:
        for owner in sim.owners[-1:]:
            owner.cut_until = sim.now + rng.randint(1, 6) * SECOND_US
        sim.start(StandbyProcess, name)

    def _stall(self, sim: QuietStandbys, rng: Random, name: str) -> None:
        until = sim.now + rng.randint(300, 5_000) * MS
        for process in sim.processes:
            process.cut_until = max(process.cut_until, until)


def held_of(state: State) -> Iterator[tuple[str, Any]]:
    """All that is held of fleet, load and blocks, without times and numbers of connections."""
    yield "keys", [fact._replace(put_at=0) for fact in state.registry.held() if isinstance(fact, KeyHeld)]
    yield "samples", [fact._replace(received_at=0) for fact in state.load.held()]
    yield (
        "numbers",
        [(space, one, state.load.last_sequence(space, one)) for space, one in state.load.publishers()],
    )
    yield "blocks", [*map(_timeless, held_facts(state.kv))]
    yield (
        "subscriptions",
        [(key, held.component, held.state) for key, held in sorted(state.status.subscriptions.items())],
    )


def _timeless(fact: Any) -> Any:
    return fact._replace(down_at=None) if isinstance(fact, KvPublisherHeld) else fact
