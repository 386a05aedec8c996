"""Picks that their replica named as suspect later: which they are, and how far is looked for it."""

from __future__ import annotations

import pytest

from app.tail import NOTES_KEPT_MAX
from projections.events.control import ClockTicked
from projections.events.picks import PickMade, PicksDistrusted
from replay import distrusted as module
from replay.distrusted import Distrusted, look_behind
from tests.projections.log_story import pick
from tests.replay.recorded_log import RecordedLog

REPLICA, OTHER = b"r" * 16, b"o" * 16


def made(as_of: int, replica: bytes = REPLICA) -> PickMade:
    return pick(1, 1, 1)._replace(replica=replica, as_of=as_of)


def test_picks_are_named_by_replica_and_as_of() -> None:
    found = Distrusted()
    found.add(PicksDistrusted(REPLICA, 60, 80))
    found.add(PicksDistrusted(REPLICA, 20, 40))
    assert [as_of for as_of in range(100) if found.names(made(as_of))] == [*range(21, 41), *range(61, 81)]
    assert not found.names(made(30, OTHER))


def test_of_two_records_that_name_the_same_the_first_counts() -> None:
    found = Distrusted()
    for after in (20, 20, 35):
        found.add(PicksDistrusted(REPLICA, after, 40))
    assert [as_of for as_of in range(60) if found.names(made(as_of))] == [*range(21, 41)]


def test_of_very_many_records_of_one_replica_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMED_MAX", 2)
    found = Distrusted()
    for upto in (10, 20, 30):
        found.add(PicksDistrusted(REPLICA, upto - 5, upto))
    assert not found.names(made(8)) and found.names(made(18)) and found.names(made(28))


def ticking_world(ticks: int) -> RecordedLog:
    world = RecordedLog()
    for _ in range(ticks):
        world.say(ClockTicked(0, -1, (), 0, 0))
    world.say(PicksDistrusted(REPLICA, 0, 1), REPLICA)
    return world


@pytest.mark.parametrize(("ticks", "is_found"), [(63, True), (64, False)])
def test_it_is_looked_for_as_long_as_a_replica_remembers_its_notes(ticks: int, is_found: bool) -> None:
    assert module.LOOK_TICKS == NOTES_KEPT_MAX
    found = Distrusted()
    look_behind(ticking_world(ticks).log, 0, found)
    assert found.names(made(1)) is is_found


def test_it_is_looked_for_in_so_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ticking_world(3)
    for records, is_found in ((world.log.end_offset(), True), (world.log.end_offset() - 1, False)):
        monkeypatch.setattr(module, "LOOK_RECORDS", records)
        found = Distrusted()
        look_behind(world.log, 0, found)
        assert found.names(made(1)) is is_found
