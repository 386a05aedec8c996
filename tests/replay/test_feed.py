"""A staging log has the original's records at their offsets, and a fold that agrees with its owner."""

from __future__ import annotations

import pytest

from projections.events.control import CheckpointDue, ClockTicked
from projections.events.ports import MemoryLog
from projections.fold import Fold
from replay.feed import Feed, FeedRefused, Pace, begin_of, staged_log_id
from replay.log_walk import records_of
from replay.verify import verify
from tests.replay.captured import MemoryCheckpoints, busy_log, checkpoint_at
from tests.replay.recorded_log import RecordedLog


class Staging:
    """A staging log and its checkpoints in memory."""

    def __init__(self, world: RecordedLog, store: MemoryCheckpoints | None = None, start: int = 0) -> None:
        self.world = world
        self.source_store = store
        self.begin = begin_of(world.log, store, start)
        self.log = MemoryLog(staged_log_id(world.log.log_id), self.begin.first_offset)
        self.checkpoints = MemoryCheckpoints()

    def feed(self) -> Feed:
        return Feed(self.world.log, self.source_store, self.log, self.checkpoints, self.begin)

    def run(self, upto: int | None = None) -> Feed:
        feed = self.feed()
        end = self.world.log.end_offset() if upto is None else upto
        for batch in self.world.log.read(feed.next_offset, 1 << 30):
            if batch.first_offset < end:
                feed.feed(batch.first_offset, batch.records[: end - batch.first_offset])
        return feed


def state(world: RecordedLog) -> Fold:
    fold = Fold()
    for offset, data in records_of(world.log, 0):
        fold.apply(offset, data, [])
    return fold


def ticking(world: RecordedLog, ticks: int = 3) -> None:
    """Ticks of an owner that folds its own log and tells digests of the tick before."""
    noted, records, check_sum = -1, 0, 0
    digests: tuple[tuple[str, int], ...] = ()
    for _ in range(ticks):
        world.pass_time(1_000_000)
        at = world.say(ClockTicked(world.time, noted, digests, records, check_sum))
        fold, count, total, before = Fold(), 0, 0, noted
        for offset, data in records_of(world.log, 0):
            fold.apply(offset, data, [])
            if offset > before:
                count, total = count + 1, (total + int.from_bytes(data[-8:], "little")) % 2**64
        noted, digests, records, check_sum = at, fold.digests(), count, total
        world.sample(1, 3)


@pytest.mark.req("EVS-12")
def test_records_offsets_digests_and_verdicts_are_those_of_the_original() -> None:
    world = busy_log()
    staging = Staging(world)
    feed = staging.run()
    assert [*records_of(staging.log, 0)] == [*records_of(world.log, 0)]
    assert feed.cursor.fold.digests() == state(world).digests()
    assert staging.log.log_id != world.log.log_id
    original, staged = verify(world.log, None), verify(staging.log, staging.checkpoints)
    assert (staged.picks, staged.equal) == (original.picks, original.equal) == (24, 24)


def test_it_begins_at_the_newest_state_before_the_mark_and_has_that_as_checkpoint() -> None:
    world, store = busy_log(), MemoryCheckpoints()
    for offset in (10, 30, 50):
        checkpoint_at(world, store, offset)
    staging = Staging(world, store, 45)
    feed = staging.run()
    assert (staging.begin.base, staging.log.first_offset()) == (30, 31)
    assert staging.checkpoints.list()[0].offset == 30
    assert feed.cursor.fold.digests() == state(world).digests()


def test_a_log_whose_beginning_is_gone_is_fed_from_its_oldest_state() -> None:
    world, store = busy_log(), MemoryCheckpoints()
    checkpoint_at(world, store, 30)
    world.log.forget(20)
    assert Staging(world, store, 0).begin.base == 30
    with pytest.raises(FeedRefused, match="no checkpoint"):
        Staging(world, MemoryCheckpoints(), 0)


def test_checkpoints_are_written_where_the_owner_had_them_written() -> None:
    world = busy_log()
    due = [
        offset
        for offset, data in records_of(world.log, 0)
        if data[3] == 39  # CheckpointDue
    ]
    staging = Staging(world)
    feed = staging.run()
    feed.close()
    end = world.log.end_offset() - 1
    assert [info.offset for info in staging.checkpoints.list()] == sorted({*due, end})
    assert len(due) == 3


@pytest.mark.parametrize("cut", [1, 7, 33, 60])
def test_a_feed_that_was_ended_goes_on_where_it_was(cut: int) -> None:
    world = busy_log()
    staging = Staging(world)
    staging.run(cut)
    world.sample(1, 77)
    feed = staging.run()
    assert feed.fed == world.log.end_offset() - cut
    assert [*records_of(staging.log, 0)] == [*records_of(world.log, 0)]
    assert feed.cursor.fold.digests() == state(world).digests()


def test_offsets_jump_where_the_original_jumps() -> None:
    world = busy_log(3)
    world.log.jump(1 << 20)
    world.sample(1, 5)
    staging = Staging(world)
    staging.run()
    staging.run()
    assert [*records_of(staging.log, 0)] == [*records_of(world.log, 0)]


@pytest.mark.req("EVS-12")
def test_ticks_of_the_owner_are_compared_with_the_staged_fold() -> None:
    world = busy_log(4)
    ticking(world)
    feed = Staging(world).run()
    assert (feed.cursor.agreement.agreed, feed.breaks) == (2, [])


def test_another_log_is_not_fed_into_a_staging_log() -> None:
    world, other = busy_log(), busy_log(3)
    staging = Staging(world)
    staging.run()
    other.log._log_id = b"x" * 16
    staging.world = other
    with pytest.raises(FeedRefused, match="of another log"):
        staging.feed()


def test_a_log_that_was_cut_and_written_anew_is_not_fed_on() -> None:
    world, other = busy_log(3), busy_log(3)
    staging = Staging(world)
    staging.run()
    other.sample(1, 5)
    shorter = busy_log(1)
    staging.world = shorter
    with pytest.raises(FeedRefused, match="the original ends at"):
        staging.feed()
    world.sample(1, 4)
    staging.world = world
    staging.run()
    staging.world = other
    with pytest.raises(FeedRefused, match="is another one"):
        staging.feed()


def test_what_retention_took_before_it_was_fed_is_told() -> None:
    world = busy_log()
    staging = Staging(world)
    staging.run(20)
    world.log.forget(30)
    with pytest.raises(FeedRefused, match="are gone from the original"):
        staging.feed()


def test_a_staging_log_that_lost_its_checkpoints_is_not_folded_from_nothing() -> None:
    world, store = busy_log(), MemoryCheckpoints()
    checkpoint_at(world, store, 30)
    staging = Staging(world, store, 45)
    staging.run()
    staging.checkpoints = MemoryCheckpoints()
    with pytest.raises(FeedRefused, match="lost its checkpoints"):
        staging.feed()


def test_a_pace_lets_log_time_pass_at_a_multiple_of_real_time() -> None:
    world = RecordedLog()
    world.pass_time(4_000_000)
    world.sample(1, 1)
    replica = world.replica()
    world.pass_time(2_000_000)
    ping = world.say(CheckpointDue("time"))
    records = dict(records_of(world.log, 0))
    pace = Pace(2.0)
    assert pace.due_in_s(records[0], 100.0) == 0.0
    assert pace.due_in_s(records[9], 100.0) == 2.0  # 4 s of log time
    assert pace.due_in_s(records[10], 101.5) == 0.5  # of a replica: rides along
    assert pace.due_in_s(records[ping], 103.5) == -0.5
    assert Pace(None).due_in_s(records[ping], 0.0) == 0.0
    assert replica.own_seq == 0
