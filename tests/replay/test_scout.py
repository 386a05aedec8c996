"""The scout hands out picks in order of their as-of and holds a bounded stretch of the log."""

import pytest

import replay.scout as scout_module
from projections.fold import Fold
from replay.fold_cursor import FoldCursor
from replay.scout import Ask, Scout
from tests.replay.recorded_log import RecordedLog


def spread_log(rounds: int = 200) -> RecordedLog:
    world = RecordedLog()
    one, two = world.replica(), world.replica()
    for number in range(rounds):
        world.sample(1 + number % 3, number % 20)
        if number % 5 == 0:
            one.read()
            one.ask(f"one{number}")
        if number % 11 == 0:
            two.ask(f"two{number}")
        if number % 50 == 49:
            two.read()
    return world


def handed_out(world: RecordedLog, scout: Scout) -> list[tuple[int, int]]:
    cursor = FoldCursor(Fold(), -1)
    if scout.begin() is None:
        return []
    scout.take_back(cursor)
    found = []
    while (entry := scout.next_pick(cursor)) is not None:
        offset, fact = entry
        assert cursor.fold.mark.offset == fact.as_of, "the fold is the state of the as-of"
        found.append((fact.as_of, offset))
    return found


def test_picks_come_in_order_of_their_as_of_each_on_its_state() -> None:
    world = spread_log()
    end = world.log.end_offset()
    scout = Scout(world.log, 0, end, end, lambda *_: Ask.HERE)
    found = handed_out(world, scout)
    assert found == sorted(found) and len(found) == 59
    assert scout.late == [] and scout.records == end


def test_what_is_held_is_bounded_and_what_comes_too_late_is_set_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scout_module, "AHEAD_BYTES", 3_000)
    monkeypatch.setattr(scout_module, "READ_BYTES", 400)
    world = spread_log()
    end = world.log.end_offset()
    scout = Scout(world.log, 0, end, end, lambda *_: Ask.HERE)
    held = 0

    def watched(*_: int) -> Ask:
        nonlocal held
        held = max(held, scout._buffered)
        return Ask.HERE

    scout._ask = watched
    found = handed_out(world, scout)
    assert held < 3_000 + 6_000, "about one read beyond the ceiling"
    assert scout.late and len(found) + len(scout.late) == 59


def test_picks_that_others_ask_still_count_for_overlays_but_are_not_handed_out() -> None:
    world = spread_log()
    end = world.log.end_offset()
    wanted = {"even": 0}

    def ask(offset: int, _: int) -> Ask:
        wanted["even"] += offset % 2 == 0
        return Ask.HERE if offset % 2 == 0 else Ask.ELSEWHERE if offset % 3 else Ask.APART

    scout = Scout(world.log, 0, end, end, ask)
    found = handed_out(world, scout)
    assert {offset % 2 for _, offset in found} == {0}
    assert {offset % 3 for _, offset in scout.late} == {0}
    assert len(found) == wanted["even"]


def test_a_log_without_picks_has_none_to_hand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scout_module, "AHEAD_BYTES", 500)
    world = RecordedLog()
    for number in range(50):
        world.sample(1, number)
    end = world.log.end_offset()
    scout = Scout(world.log, 0, end, end, lambda *_: Ask.HERE)
    assert handed_out(world, scout) == []
    assert scout.records == end
