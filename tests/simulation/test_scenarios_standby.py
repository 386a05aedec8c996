"""Races of two ingest processes over one log, one test for each that decisions 45 and 46 name.

| decision | scenario |
|---|---|
| 45 | `test_a_killed_owner_is_followed_within_three_seconds` |
| 45 | `test_a_lone_process_owns_a_log_whose_owner_is_long_gone` |
| 45 | `test_of_two_standbys_one_takes_over` |
| 45 | `test_a_stalled_log_has_one_owner_when_it_goes_on` |
| 45 | `test_who_is_cut_off_from_the_log_claims_nothing` |
| 45 | `test_an_owner_that_was_cut_off_finds_itself_superseded` |
| 45 | `test_an_hour_on_the_wall_moves_neither_silence_nor_log_time` |
| 45 | `test_what_the_owner_said_last_may_come_late_or_twice` |
| 45 | `test_frames_that_nobody_heard_begin_the_connection_anew` |
| 46 | `test_an_owner_that_was_stopped_does_no_harm`, resumed before and after the takeover |
| 46 | `test_a_standby_that_was_stopped_claims_nothing_when_it_goes_on` |
"""

from __future__ import annotations

from functools import partial

import pytest

from ingest.log.appends import Send
from projections.bounds import SECOND_US
from projections.events.control import ClockTicked, LaneOpened
from projections.events.signals import SampleReceived, SubscriptionContinued
from tests.simulation.scenario import MS
from tests.simulation.standbys import QuietStandbys, two_ingests
from tests.simulation.world_process import Writer
from tests.simulation.world_standby import StandbyProcess

TAKEOVER_US_MAX = 3 * SECOND_US
LONE_US_MAX = TAKEOVER_US_MAX + 600 * MS  # one that has only just begun lets others go first


def epochs(sim: QuietStandbys) -> list[int]:
    """Epochs that were claimed, winners and losers."""
    return [record.fact.epoch for record in sim.said(LaneOpened)]  # type: ignore[attr-defined]


@pytest.mark.req("EVS-16")
@pytest.mark.parametrize("history", range(6))
def test_a_killed_owner_is_followed_within_three_seconds(history: int) -> None:
    with two_ingests(seed=history) as sim:
        for worker in sim.workers.values():
            sim.say(worker, 5)
        sim.wait(100 * MS + history * 170 * MS)
        killed_at = sim.now
        sim.first.die()
        for number in range(25):
            sim.say(sim.workers[1], number)
            sim.wait(100 * MS)
        sim.wait(TAKEOVER_US_MAX)
        assert sim.owners == [sim.second]
        assert sim.second.took_over_at is not None
        assert sim.second.took_over_at - killed_at < TAKEOVER_US_MAX
        assert len(sim.said(SubscriptionContinued)) == 2
        told = [record.fact for record in sim.said(SampleReceived)]
        assert told[-1].active_decode_blocks == 24  # type: ignore[attr-defined]
        held = sim.replica.reading.tail.fold.state.load.sample("alpha", 2, 0)
        assert held is not None, "what was held of the other worker stays"


@pytest.mark.req("EVS-16")
def test_what_was_heard_before_the_takeover_has_the_log_time_of_its_hearing() -> None:
    with two_ingests() as sim:
        sim.say(sim.workers[1], 1)
        sim.wait(SECOND_US)
        sim.first.die()
        sim.wait(500 * MS)
        sim.say(sim.workers[1], 2)
        sim.wait(400 * MS)
        sim.say(sim.workers[1], 3)
        sim.wait(3 * SECOND_US)
        first, second, third = [record.time for record in sim.said(SampleReceived)][-3:]
        assert abs(third - second - 400 * MS) < 70 * MS
        ticks = [record.time for record in sim.said(ClockTicked)]
        assert ticks[-1] - first > 4 * SECOND_US, "and log time went on meanwhile"


def test_a_lone_process_owns_a_log_whose_owner_is_long_gone() -> None:
    with two_ingests() as sim:
        sim.first.die()
        sim.second.die()
        sim.wait(60 * SECOND_US)
        third = sim.start(StandbyProcess, "third")
        began = sim.now
        sim.wait(4 * SECOND_US)
        assert sim.owners == [third]
        assert third.took_over_at is not None and third.took_over_at - began < LONE_US_MAX
        opened = [record.time for record in sim.said(LaneOpened)]
        assert opened[-1] - opened[0] > 60 * SECOND_US, "a cold start adds what the wall says"


@pytest.mark.req("EVS-16")
@pytest.mark.parametrize("history", range(12))
def test_of_two_standbys_one_takes_over(history: int) -> None:
    with two_ingests(seed=history, waits_us=SECOND_US) as sim:
        third = sim.start(StandbyProcess, "third")
        sim.wait(5 * SECOND_US)
        sim.first.die()
        sim.wait(4 * SECOND_US)
        assert len(sim.owners) == 1
        assert sim.second.is_alive and third.is_alive, "who lost stands by again"
        assert set(epochs(sim)) == {1, 2}
        sim.owners[0].die()
        sim.wait(4 * SECOND_US)
        assert len(sim.owners) == 1
        assert max(epochs(sim)) == 3


@pytest.mark.req("EVS-16")
@pytest.mark.parametrize("history", range(12))
def test_a_stalled_log_has_one_owner_when_it_goes_on(history: int) -> None:
    with two_ingests(seed=history) as sim:
        until = sim.now + (3 + history) * SECOND_US
        for process in (sim.first, sim.second, sim.replica):
            process.cut_until = until
        for number in range(20):
            sim.say(sim.workers[1 + number % 2], number)
            sim.wait(100 * MS)
        sim.wait(until - sim.now + 6 * SECOND_US)
        assert len(sim.owners) == 1
        assert sim.owners == [_speaker(sim)]


def _speaker(sim: QuietStandbys) -> StandbyProcess:
    """Whom the log names."""
    owner = sim.replica.reading.tail.fold.state.intake.owner
    (found,) = [
        one
        for one in sim.processes
        if isinstance(one, StandbyProcess) and (one.appender.writer, one.appender.epoch) == owner
    ]
    return found


@pytest.mark.req("EVS-16")
def test_who_is_cut_off_from_the_log_claims_nothing() -> None:
    with two_ingests() as sim:
        sim.second.cut_until = sim.now + 20 * SECOND_US
        sim.wait(22 * SECOND_US)
        assert epochs(sim) == [1]
        assert sim.owners == [sim.first]


@pytest.mark.req("EVS-16")
def test_an_owner_that_was_cut_off_finds_itself_superseded() -> None:
    with two_ingests() as sim:
        sim.first.cut_until = sim.now + 8 * SECOND_US
        for number in range(60):
            sim.say(sim.workers[1 + number % 2], number)
            sim.wait(100 * MS)
        assert sim.owners == [sim.first, sim.second], "it cannot know yet"
        sim.wait(6 * SECOND_US)
        assert sim.first.fenced
        assert sim.owners == [sim.second]
        took_over = sim.said(LaneOpened)[-1].offset
        counted = sim.second.reading.tail.fold
        assert counted.state.intake.owner == (sim.second.appender.writer, 2)
        late = [one for one in sim.said(SampleReceived) if one.offset > took_over and one.epoch == 2]
        assert late and {one.writer for one in late} == {sim.second.appender.writer}


def test_an_hour_on_the_wall_moves_neither_silence_nor_log_time() -> None:
    with two_ingests() as sim:
        before = sim.said(ClockTicked)[-1].time
        for step in (3_600, -7_200):
            sim.second.wall_offset += step * SECOND_US
            sim.wait(2 * SECOND_US)
        assert sim.owners == [sim.first]
        sim.first.die()
        sim.wait(5 * SECOND_US)
        assert sim.owners == [sim.second]
        after = sim.said(ClockTicked)[-1].time
        assert 8 * SECOND_US < after - before < 10 * SECOND_US


@pytest.mark.req("EVS-15", "EVS-16")
@pytest.mark.parametrize("later_us", [100 * MS, 2_400 * MS, 6 * SECOND_US])
def test_what_the_owner_said_last_may_come_late_or_twice(later_us: int) -> None:
    with two_ingests() as sim:

        def late(writer: Writer, send: Send) -> None:
            sim.later(later_us, partial(sim.log.commit, send.records))
            sim.later(later_us + 50 * MS, partial(sim.log.commit, send.records))
            writer.process.die()

        sim.settle_writer(sim.first)
        sim.meets(sim.first, late)
        sim.say(sim.workers[1], 7)
        sim.wait(8 * SECOND_US)
        assert sim.owners == [sim.second]
        held = sim.second.reading.tail.fold.state.load.sample("alpha", 1, 0)
        assert held is not None and held.active_decode_blocks == 7
        sim.say(sim.workers[1], 8)
        sim.wait(SECOND_US)


@pytest.mark.req("EVS-16")
def test_frames_that_nobody_heard_begin_the_connection_anew() -> None:
    with two_ingests() as sim:
        for worker in sim.workers.values():
            sim.say(worker, 5)
        sim.wait(2 * SECOND_US)
        assert sim.second.subscriptions is not None
        sim.second.subscriptions.lines[("alpha", sim.workers[1].publisher)].cut("closed")
        sim.first.die()
        sim.say(sim.workers[1], 6)  # by now nobody listens to it
        sim.wait(2 * SECOND_US)
        sim.say(sim.workers[1], 7)
        sim.wait(4 * SECOND_US)
        fold = sim.second.reading.tail.fold
        again = fold.state.load.sample("alpha", 1, 0)
        assert again is not None and again.active_decode_blocks == 7
        kept = fold.state.load.sample("alpha", 2, 0)
        assert kept is not None and kept.active_decode_blocks == 5


@pytest.mark.req("EVS-16")
@pytest.mark.parametrize("pause_s", [0.5, 1.2, 1.9, 2.3, 2.7, 3.5, 10.0])
@pytest.mark.parametrize("history", range(3))
def test_an_owner_that_was_stopped_does_no_harm(pause_s: float, history: int) -> None:
    with two_ingests(seed=history) as sim:
        sim.first.pause(int(pause_s * SECOND_US))
        for number in range(60):
            sim.say(sim.workers[1 + number % 2], number)
            sim.wait(200 * MS)
        assert len(sim.owners) == 1
        assert sim.owners == [_speaker(sim)]
        assert sim.first.fenced == (sim.owners == [sim.second])
        if pause_s < 0.6:  # and its last tick is a second old at most
            assert sim.owners == [sim.first]
        if pause_s > 3:
            assert sim.owners == [sim.second]


def test_a_standby_that_was_stopped_claims_nothing_when_it_goes_on() -> None:
    with two_ingests() as sim:
        sim.second.pause(10 * SECOND_US)
        sim.wait(16 * SECOND_US)
        assert epochs(sim) == [1]
        sim.first.die()
        sim.wait(4 * SECOND_US)
        assert sim.owners == [sim.second]
