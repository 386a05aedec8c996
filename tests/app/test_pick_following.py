"""Picks of a living log are handed out once each, in order, and the end of following says why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest

from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE
from app.following import Following, FollowingEnded
from app.log_places import OpenLog
from app.pick_following import FoldEnded, PickFollowing, base_before
from projections.events.control import FoldModeAdopted, Pinged
from projections.events.ports import LogCorrupt, MemoryLog, RecordBatch
from replay.engine import Asked, Replay, Unverifiable
from tests.replay.captured import MemoryCheckpoints, busy_log, checkpoint_at
from tests.replay.recorded_log import RecordedLog


class Breaking(MemoryLog):
    """Bytes at an offset that do not check."""

    bad = 1 << 60

    @classmethod
    def in_place_of(cls, world: RecordedLog) -> Self:
        """The same log, which can break."""
        broken = cls(world.log.log_id)
        for batch in world.log.read(0, 1 << 30):
            broken.commit(batch.records)
        world.log = broken
        return broken

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        if start >= self.bad:
            raise LogCorrupt("segment x, offset 7: its check word differs")
        return [batch for batch in super().read(start, 1) if batch.first_offset < self.bad]


class Taken:
    """Takes the picks of a log in memory, and whatever else the walk tells."""

    def __init__(self, world: RecordedLog, start: int, checkpoints: MemoryCheckpoints | None = None) -> None:
        self.picks: list[tuple[int, Unverifiable | None]] = []
        self.noted: list[int] = []
        self.records = 0
        self.lines: list[str] = []
        opened = OpenLog(world.log, checkpoints or MemoryCheckpoints(), "memory")
        self.walk = PickFollowing(opened, start, self, self.lines.append)
        self.following = Following(world.log)

    def ask(self, asked: Asked) -> None:
        self.picks.append((asked.offset, asked.unverifiable))

    def note(self, offset: int, fact: object) -> None:
        self.noted.append(offset)

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        assert first_offset == self.records, "in order, and nothing twice"
        self.records += len(records)

    def words(self) -> str:
        return f"{len(self.picks)} picks"

    async def all(self) -> None:
        """Follow for long enough to read what is there."""
        await self.walk.run(self.following, 0.05)


@pytest.mark.parametrize("start", [0, 30])
async def test_picks_come_in_the_order_of_one_walk_and_those_before_the_mark_are_left_out(start: int) -> None:
    world = busy_log(10)
    taken = Taken(world, start)
    await taken.all()
    whole = Replay(world.log, None, start, world.log.end_offset())
    assert taken.picks == [(asked.offset, asked.unverifiable) for asked in whole.asked()]
    assert taken.picks and min(taken.noted) >= start
    assert taken.records == world.log.end_offset() and taken.walk.records == taken.records - start
    assert (taken.walk.ended, taken.walk.damage, taken.walk.exit_status()) == (None, None, EXIT_DONE)
    assert taken.lines[0].endswith(" records behind the end") and " picks; " in taken.lines[0]


async def test_picks_behind_the_mark_find_states_before_it() -> None:
    world = busy_log(10)
    replica = world.replica()
    fact = replica.choose("late")
    for number in range(5):
        world.sample(1, number)
    start = world.log.end_offset()
    world.say(fact, replica.id)
    taken = Taken(world, start)
    await taken.all()
    assert taken.picks == [(start, None)]


def test_the_fold_begins_half_a_minute_before_the_mark() -> None:
    world = RecordedLog()
    store = MemoryCheckpoints()
    offsets = []
    for number in range(6):
        world.pass_time(20_000_000)
        offsets.append(world.log.end_offset())
        world.sample(1, number)
        checkpoint_at(world, store, offsets[-1])
    end = world.log.end_offset()
    assert base_before(world.log, store, end) == offsets[3]
    assert Taken(world, end, store).walk.cursor.base == offsets[3]
    assert base_before(world.log, store, offsets[1] + 1) == -1, "the log's own beginning"
    assert base_before(world.log, MemoryCheckpoints(), end) == -1
    world.log.forget(offsets[5])
    assert base_before(world.log, store, end) == offsets[4], "the oldest that is of use"


async def test_a_fold_that_stops_ends_it() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r")
    taken = Taken(world, 0)
    stops_at = world.say(FoldModeAdopted((99_999,)))
    world.say(Pinged(replica.id, 0, stops_at), replica.id)
    await taken.walk.run(taken.following)
    assert isinstance(taken.walk.ended, FoldEnded)
    assert [reason for _, reason in taken.picks] == [None]
    assert f"fold stopped at offset {stops_at}" in str(taken.walk.ended)
    assert taken.walk.exit_status() == EXIT_FOUND_WRONG


async def test_retention_that_overtakes_it_ends_it() -> None:
    world = busy_log(4)
    taken = Taken(world, 0)
    world.log.forget(world.log.end_offset())
    world.sample(1, 5)
    await taken.walk.run(taken.following)
    assert isinstance(taken.walk.ended, FollowingEnded)
    assert taken.picks == []
    assert taken.walk.exit_status() == EXIT_UNREACHABLE


async def test_bytes_that_do_not_check_end_it_behind_the_picks_before_them() -> None:
    world = busy_log(4)
    log = Breaking.in_place_of(world)
    taken = Taken(world, 0)
    log.bad = log.end_offset() - 1
    await taken.walk.run(taken.following)
    assert taken.walk.damage is not None and "check word differs" in taken.walk.damage
    assert len(taken.picks) >= 6
    assert taken.walk.exit_status() == EXIT_FOUND_WRONG
