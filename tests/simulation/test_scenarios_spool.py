"""A log that is away longer than memory carries, and an owner that spools: nothing is shed or missing.

| decision | scenario |
|---|---|
| 44 | `test_a_minute_without_the_log_changes_nothing_of_what_is_held`, refused and unclear |
| 44 | `test_without_a_spool_the_same_minute_is_more_than_memory_takes` |
| 44 | `test_an_owner_that_was_superseded_meanwhile_tells_nothing_of_what_it_spooled` |
| 44 | `test_a_seeded_history_of_owners_that_spool_breaks_no_promise` |

Sizes are small, so that a few hundred facts are more than memory takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from ingest.log import appender
from ingest.log.appends import Importance, Send
from ingest.log.spool import Spool
from projections.bounds import SECOND_US
from projections.events.control import LaneOpened
from projections.events.signals import SampleReceived, StorageTier
from projections.fold import Fold
from tests.ingest.log.memory_spill import MemorySpill
from tests.simulation.invariants import check_all
from tests.simulation.scenario import MS, SETTINGS
from tests.simulation.standbys import QuietStandbys, Standbys
from tests.simulation.test_standby_seeds import held_of
from tests.simulation.world_blocks import SimEngine, a_prompt, kv_settings
from tests.simulation.world_process import Follower, Process, Replica, Writer
from tests.simulation.world_standby import StandbyProcess

AWAY_US = 60 * SECOND_US


class SpoolingProcess(StandbyProcess):
    """An ingest process as on Kafka, with a spool."""

    @staticmethod
    def new_spool() -> Spool:
        return Spool(MemorySpill(), memory_bytes=1_500, chunk_bytes=600)

    def _lost_it(self) -> None:
        assert self.spool is not None
        self.spool.discard()
        super()._lost_it()


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SHED_AT_BYTES", 6_000)


class Minute:
    """The same frames, told to an owner whose log is there, or is away for a minute in between."""

    def __init__(self, history: int, kind: type[StandbyProcess], away: str) -> None:
        self._rng = Random(f"minute {history}")
        self._history, self._kind, self._away = history, kind, away
        self.spooled = 0
        self.shed: dict[Importance, int] = {}
        self.was_shedding = False
        self.told = 0
        self.epochs = 0

    def held(self) -> dict[str, Any]:
        """What the log's fold holds in the end."""
        kv = kv_settings(Random(f"kv {self._history}"))._replace(predicted_ttl_us=0, approximate_ttl_us=0)
        sim = QuietStandbys(self._history)
        sim.settings = SETTINGS._replace(kv=kv)
        with sim.patched():
            for _ in range(3):
                sim.add_worker("aggregated")
            owner = sim.first = sim.start(self._kind, "first")
            sim.start(Follower, "follower")
            sim.replica = sim.start(Replica, "replica")
            engines = self._open_engines(sim)
            sim.wait(6 * SECOND_US)
            self._part_with_the_log(sim)
            for _ in range(400):
                self._frame(sim, owner, engines)
                sim.wait(self._rng.choice((20, 100, 300)) * MS)
                self.was_shedding |= owner.appender.is_shedding
                self.spooled = max(self.spooled, owner.spool.records if owner.spool is not None else 0)
            sim.heal()
            sim.wait(60 * SECOND_US)
            assert sim.owners == [owner]
        check_all(sim)
        self.shed = owner.appender.shed
        samples = [record.fact for record in sim.said(SampleReceived)]
        self.told = sum(one.sequence + 1 - one.covers_from for one in samples)  # type: ignore[attr-defined]
        self.epochs = len(sim.said(LaneOpened))
        fold = Fold()
        for offset, data in sim.log.records():
            fold.apply(offset, data, [])
        return dict(held_of(fold.state))

    def _part_with_the_log(self, sim: QuietStandbys) -> None:
        if self._away == "never":
            return
        until = sim.now + AWAY_US
        for process in sim.processes:
            process.cut_until = until
        if self._away == "refused":
            sim.script["first"] = Refusals(until)  # type: ignore[assignment]

    def _open_engines(self, sim: QuietStandbys) -> list[SimEngine]:
        engines = []
        for number, worker in enumerate(sim.workers.values()):
            engine = SimEngine(worker, worker.first_rank, 0, StorageTier.DEVICE, Random(f"{number}"))
            worker.engines = [engine]
            engines.append(engine)
            for key, value in engine.records():
                sim.store.put(key, value)
        return engines

    def _frame(self, sim: QuietStandbys, owner: StandbyProcess, engines: list[SimEngine]) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            sim.say(rng.choice([*sim.workers.values()]), rng.randint(0, 50), rng.randint(0, 900))
            return
        engine = rng.choice(engines)
        events = engine.forgets() if rng.random() < 0.3 else engine.stores(a_prompt(rng))
        assert owner.blocks is not None
        line = owner.blocks.lines.get(engine.key)
        if events and line is not None:
            sequence, engine.sequence = engine.sequence, engine.sequence + 1
            owner.later(200, partial(line.frame, line.session, sequence, events))


class Refusals:
    """A script of commits: each is refused as long as the log is away."""

    def __init__(self, until: int) -> None:
        self._until = until
        self._sim: Any = None

    def __bool__(self) -> bool:
        return True

    def pop(self, _: int) -> Any:
        return self._meet

    def _meet(self, writer: Writer, send: Send) -> None:
        sim = writer.process.sim
        if sim.now < self._until:
            writer.process.later(5 * MS, partial(writer.failed, send.number, False))
            return
        sim.script["first"] = []
        sim.commit(writer, send)


@pytest.mark.req("EVS-16", "EVS-17")
@pytest.mark.parametrize("away", ["refused", "unclear"])
@pytest.mark.parametrize("history", range(3))
def test_a_minute_without_the_log_changes_nothing_of_what_is_held(history: int, away: str) -> None:
    calm, spooling = Minute(history, SpoolingProcess, "never"), Minute(history, SpoolingProcess, away)
    undisturbed, disturbed = calm.held(), spooling.held()
    assert calm.spooled == 0
    assert spooling.spooled > 100
    assert not spooling.was_shedding and not any(spooling.shed.values())
    assert spooling.told == calm.told
    assert (calm.epochs, spooling.epochs) == (1, 1 if away == "refused" else 2)
    for what, held in undisturbed.items():
        assert disturbed[what] == held, f"history {history}: {what} differ"


def test_without_a_spool_the_same_minute_is_more_than_memory_takes() -> None:
    sparing = Minute(0, StandbyProcess, "refused")
    sparing.held()
    assert sparing.was_shedding


@pytest.mark.req("EVS-16")
def test_an_owner_that_was_superseded_meanwhile_tells_nothing_of_what_it_spooled() -> None:
    sim = QuietStandbys(3)
    with sim.patched():
        worker = sim.add_worker("aggregated")
        first = sim.start(SpoolingProcess, "first")
        sim.replica = sim.start(Replica, "replica")
        sim.wait(4 * SECOND_US)
        second = sim.start(SpoolingProcess, "second")
        sim.wait(6 * SECOND_US)
        first.cut_until = sim.now + 20 * SECOND_US
        for number in range(100):
            sim.say(worker, number)
            sim.wait(100 * MS)
        assert first.spool is not None and first.spool.records > 10
        sim.wait(20 * SECOND_US)
        assert sim.owners == [second]
        assert first.fenced and not first.spool.is_in_use
        sim.heal()
        sim.wait(40 * SECOND_US)
        said = [record.fact.active_decode_blocks for record in sim.said(SampleReceived)]  # type: ignore[attr-defined]
        assert said == [*range(100)], "the standby heard them all, and nobody tells them twice"
    check_all(sim)


class SpoolingStandbys(Standbys):
    """A seeded world whose ingest processes spool."""

    def start(self, kind: type[Any], name: str) -> Any:
        return super().start(SpoolingProcess if kind is StandbyProcess else kind, name)

    def _replace(self, kind: type[Process], name: str) -> None:
        if kind is not SpoolingProcess:
            super()._replace(kind, name)

    def spools(self) -> Iterator[Spool]:
        """Of living processes."""
        for process in self.processes:
            if isinstance(process, SpoolingProcess) and process.is_alive and process.spool is not None:
                yield process.spool


@pytest.mark.req("EVS-03", "EVS-15", "EVS-16", "EVS-17")
def test_a_seeded_history_of_owners_that_spool_breaks_no_promise(seed: int) -> None:
    if seed % 3:
        pytest.skip("one seed in three is run")
    sim = SpoolingStandbys(seed)
    try:
        sim.run()
        check_all(sim)
        assert not any(spool.is_in_use for spool in sim.spools())
    except Exception as problem:
        again = f"python -m pytest tests/simulation/test_scenarios_spool.py --seed {seed} -x"
        pytest.fail(
            f"seed {seed}: {type(problem).__name__}: {problem}\nrepeat it: {again}\n{dict(sim.counts)}"
        )
