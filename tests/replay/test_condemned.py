"""Condemned offsets are found from the newest checkpoint and the records behind it."""

from projections.events.control import RecordCondemned
from replay.condemned import condemned_in, condemned_of
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import RecordedLog


def condemning_world() -> tuple[RecordedLog, Checkpoints, int]:
    world = RecordedLog()
    world.sample(1, 5)
    world.say(RecordCondemned(4, "early"))
    checkpoints = Checkpoints()
    checkpoints.take(world, world.log.end_offset() - 1, frozenset((4,)))
    taken = world.log.end_offset() - 1
    world.sample(1, 6)
    world.say(RecordCondemned(taken + 1, "late"))
    return world, checkpoints, taken


def test_the_newest_checkpoint_and_what_follows_say_all() -> None:
    world, checkpoints, taken = condemning_world()
    assert condemned_of(world.log, checkpoints, 0) == {4, taken + 1} == condemned_in(world.log, 0)
    assert checkpoints.read_offsets == [taken]


def test_a_damaged_checkpoint_is_passed_over() -> None:
    world, checkpoints, taken = condemning_world()
    checkpoints.damaged.add(taken)
    assert condemned_of(world.log, checkpoints, 0) == {4, taken + 1}


def test_a_checkpoint_before_the_stretch_says_nothing_of_it() -> None:
    world, checkpoints, taken = condemning_world()
    assert condemned_of(world.log, checkpoints, taken + 1) == {taken + 1}
    assert checkpoints.read_offsets == []
