"""A difference waits until its replica would have named its pick suspect, and no longer."""

from __future__ import annotations

import pytest

from app import second_look as module
from app.reasking import Reasking
from app.second_look import HELD_TICKS, SecondLook
from projections.events.codec import encode_record
from projections.events.control import ClockTicked
from projections.events.picks import PicksDistrusted
from replay.engine import Unverifiable
from replay.verify import Difference, Tables
from tests.app.test_shadow import forged, machine_of, picks
from tests.replay.captured import busy_log
from tests.replay.recorded_log import OWNER, RecordedLog

FOUND = Difference(1, "", "field", "", "", Tables(), Tables(), "")
ASKED = forged(next(iter(picks(busy_log(3)))))


def ticking(ticks: int) -> Reasking:
    """What has read so many ticks behind the pick, and one before it."""
    world = RecordedLog()
    tick = ClockTicked(0, -1, (), 0, 0)
    machine = machine_of(world)
    for offset in (ASKED.offset - 1, *range(ASKED.offset + 1, ASKED.offset + 1 + ticks)):
        machine.read(offset, [encode_record(world.time, OWNER, 1, offset, tick)])
    return machine


def test_a_difference_is_told_when_so_many_ticks_were_read_behind_it() -> None:
    look = SecondLook()
    look.hold(ASKED, FOUND)
    assert list(look.due(ticking(HELD_TICKS - 1))) == []
    [(asked, found)] = look.due(ticking(HELD_TICKS))
    assert found is FOUND and asked.view is None and asked.unverifiable is None
    assert len(look) == 0


def test_at_the_end_everything_is_told() -> None:
    look, machine = SecondLook(), machine_of(RecordedLog())
    look.hold(ASKED, FOUND)
    assert [found for _, found in look.due(machine, everything=True)] == [FOUND]


def test_a_pick_that_was_named_meanwhile_is_suspect_at_once() -> None:
    look, machine = SecondLook(), machine_of(RecordedLog())
    look.hold(ASKED, FOUND)
    pick = ASKED.fact
    machine.distrusted.add(PicksDistrusted(pick.replica, pick.as_of - 1, pick.as_of))
    [(asked, found)] = look.due(machine)
    assert found is None and asked.unverifiable is Unverifiable.SUSPECT


def test_where_very_many_differ_the_oldest_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 2)
    look, machine = SecondLook(), machine_of(RecordedLog())
    for offset in range(5):
        look.hold(ASKED._replace(offset=offset), FOUND)
    assert [asked.offset for asked, _ in look.due(machine)] == [0, 1, 2]
