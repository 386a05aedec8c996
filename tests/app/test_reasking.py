"""Picks of a growing log are asked on the very state that they were made on, whoever lags."""

from __future__ import annotations

import random

import pytest

import app.reasking
from app.reasking import Reasking
from projections.events.control import ClockTicked, Pinged, RecordCondemned, ReplicaGone
from projections.fold import Fold
from replay.engine import Asked, Unverifiable
from replay.fold_cursor import FoldCursor
from replay.log_walk import records_of
from replay.verify import compare
from tests.replay.captured import busy_log
from tests.replay.recorded_log import RecordedLog, Replica


def machine() -> Reasking:
    return Reasking(FoldCursor(Fold(), -1))


def feed(asking: Reasking, world: RecordedLog, upto: int | None = None) -> None:
    for batch in world.log.read(asking.position, 1 << 30):
        stop = len(batch.records) if upto is None else max(0, upto - batch.first_offset)
        if batch.records[:stop]:
            asking.read(batch.first_offset, batch.records[:stop])


def drain(asking: Reasking) -> list[tuple[int, bool | None]]:
    """(offset, whether equal; None: could not be asked) of every pick that can be handed out now."""
    found: list[tuple[int, bool | None]] = []
    while True:
        is_busy, asked = asking.work()
        if asked is not None:
            found.append((asked.offset, None if asked.unverifiable else compare(asked) is None))
        if not is_busy:
            return found


def ping(world: RecordedLog, replica: Replica, as_of: int | None = None) -> None:
    world.say(Pinged(replica.id, 0, replica.fold.mark.offset if as_of is None else as_of), replica.id)


@pytest.mark.req("EVS-06")
@pytest.mark.parametrize("seed", range(4))
def test_every_pick_is_equal_however_the_log_comes_in(seed: int) -> None:
    world = busy_log(20)
    chance = random.Random(seed)
    asking = machine()
    found: list[tuple[int, bool | None]] = []
    end = world.log.end_offset()
    while asking.position < end:
        feed(asking, world, min(end, asking.position + chance.randint(1, 40)))
        found += drain(asking)
    asking.is_whole = True
    found += drain(asking)
    assert len(found) == 40
    assert {verdict for _, verdict in found} == {True}


def test_the_fold_waits_for_the_oldest_as_of_that_a_replica_may_still_name() -> None:
    world = RecordedLog()
    fast, slow = world.replica(), world.replica()
    for replica in (fast, slow):
        ping(world, replica)
    upto = slow.fold.mark.offset
    for number in range(20):
        world.sample(1, number)
        fast.read()
        fast.ask(f"r{number}")
    asking = machine()
    feed(asking, world)
    assert drain(asking) == []
    assert asking.cursor.fold.mark.offset == upto
    fact = slow.ask("late")  # on a state far behind the others' picks
    assert fact.as_of == upto
    feed(asking, world)
    assert drain(asking)[0][1] is True
    slow.read()
    ping(world, slow)
    feed(asking, world)
    rest = drain(asking)
    assert len(rest) == 20 and all(verdict for _, verdict in rest)


def test_a_replica_that_is_gone_is_waited_for_no_longer() -> None:
    world = RecordedLog()
    dead, alive = world.replica(), world.replica()
    ping(world, dead)
    world.sample(1, 5)
    alive.read()
    alive.ask("r")
    asking = machine()
    feed(asking, world)
    assert drain(asking) == []
    world.say(ReplicaGone(dead.id, world.time))
    feed(asking, world)
    assert [verdict for _, verdict in drain(asking)] == [True]


@pytest.mark.parametrize(
    ("name", "value"), [("AHEAD_RECORDS", 10), ("AHEAD_BYTES", 1000), ("AHEAD_US", None)]
)
def test_a_silent_replica_is_waited_for_so_long_and_its_late_picks_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int | None
) -> None:
    if value is not None:
        monkeypatch.setattr(app.reasking, name, value)
    world = RecordedLog()
    silent, alive = world.replica(), world.replica()
    ping(world, silent)
    late = silent.choose("late")
    world.sample(1, 5)
    asking = machine()
    for number in range(40):
        world.pass_time(1_000_000)
        world.sample(1, number)
        world.say(ClockTicked(world.time, -1, (), 0, 0))
    alive.read()
    alive.ask("r")
    feed(asking, world)
    drain(asking)
    assert asking.cursor.fold.mark.offset > late.as_of
    world.say(late, silent.id)
    feed(asking, world)
    lagging: list[Asked] = []
    while (step := asking.work())[0]:
        lagging += [step[1]] if step[1] is not None else []
    assert Unverifiable.LAG in [asked.unverifiable for asked in lagging]


def test_picks_on_what_a_checkpoint_holds_already_are_too_old() -> None:
    world = RecordedLog()
    replica = world.replica()
    fact = replica.choose("r")
    world.sample(1, 5)
    fold = Fold()
    for offset, data in records_of(world.log, 0):
        fold.apply(offset, data, [])
    world.say(fact, replica.id)
    asking = Reasking(FoldCursor(fold, fold.mark.offset))
    feed(asking, world)
    _, asked = asking.work()
    assert asked is not None and asked.unverifiable is Unverifiable.TOO_OLD


def test_what_was_skipped_is_told_pick_by_pick_and_the_rest_goes_on() -> None:
    world = busy_log(6)
    asking = machine()
    feed(asking, world)
    skipped = asking.skip_picks()
    assert [asked.unverifiable for asked in skipped] == [Unverifiable.LAG] * 12
    asking.is_whole = True
    assert drain(asking) == []
    assert asking.cursor.fold.mark.offset == world.log.end_offset() - 1


def test_a_fold_that_stops_stands_still_and_says_so() -> None:
    world = RecordedLog()
    world.say(RecordCondemned(3, "it was folded before"))
    world.sample(1, 5)
    asking = machine()
    feed(asking, world)
    assert drain(asking) == []
    assert asking.cursor.stopped is not None and asking.cursor.stopped.offset == 3
    assert asking.work() == (False, None)
