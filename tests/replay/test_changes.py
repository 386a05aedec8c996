"""What changed between two marks is taken down as it happens."""

import pytest

from projections.bounds import SECOND_US
from projections.events.control import ConfigAdopted, FoldModeAdopted, ReplicaGone
from projections.events.discovery import KeyDeleted, Keyspace
from projections.events.picks import Verdict
from projections.events.signals import Family, SubscriptionContinued, Transport
from replay.changes import Changes, changes_between
from replay.timeline import StateGone
from tests.projections.kv.kv_script import batch_of, stored
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import SETTINGS, RecordedLog


def eventful() -> tuple[RecordedLog, int]:
    """A log, and the offset behind which things happen."""
    world = RecordedLog()
    replica = world.replica()
    world.sample(1, 10)
    world.sample(2, 20)
    start = world.log.end_offset() - 1
    world.pass_time(SECOND_US)
    world.add_worker(4)
    world.say(KeyDeleted(Keyspace.INSTANCES, "dynamo", "backend/generate/3", 99))
    world.say(ConfigAdopted(2, "admin", b"e", '{"dynamo":{"load":{"max_staleness":"1s"}}}', SETTINGS))
    replica.end(replica.ask("r0", tokens=64))
    world.say(ReplicaGone(replica.id, world.time))
    world.pass_time(4 * SECOND_US)
    world.sample(2, 500)
    return world, start


def found_in(world: RecordedLog, start: int) -> Changes:
    return changes_between(world.log, None, start, world.log.end_offset() - 1)


def test_workers_settings_picks_and_loads_are_compared() -> None:
    world, start = eventful()
    found = found_in(world, start)
    assert [worker.key.instance_id for worker in found.added] == [4]
    assert [worker.key.instance_id for worker in found.removed] == [3]
    assert (found.picks, found.ends, found.lost) == (1, {"ok": 1}, 0)
    assert [held.version for held in found.settings if held is not None] == [1, 2]
    assert [(was.verdict, now.verdict) for was, now in found.loads] == [
        (Verdict.FRESH, Verdict.SILENT),
        (Verdict.FRESH, Verdict.FRESH),
    ]


def test_events_carry_their_offset_and_log_time_in_order() -> None:
    world, start = eventful()
    events = found_in(world, start).events
    assert [event.offset for event in events] == sorted(event.offset for event in events)
    assert [event.kind for event in events] == ["worker", "worker", "config", "replica"]
    assert {event.at for event in events} == {2 * SECOND_US}


def test_what_happened_before_the_first_mark_is_not_told() -> None:
    world, start = eventful()
    checkpoints = Checkpoints()
    checkpoints.take(world, 3)
    same = changes_between(world.log, checkpoints, start, start)
    assert (same.events, same.loads, same.added, same.picks) == ((), (), (), 0)


def test_a_second_mark_outside_the_log_is_refused() -> None:
    world, start = eventful()
    with pytest.raises(StateGone, match="beyond the end"):
        changes_between(world.log, None, start, 10_000)


def test_blocks_are_compared_at_both_ends() -> None:
    world = RecordedLog()
    world.say(FoldModeAdopted((1,)))
    start = world.log.end_offset() - 1
    world.say(batch_of(stored(1, "a", "b"), stored(3, "c")))
    found = found_in(world, start)
    before, after = found.blocks
    assert (before.ranks, before.nodes) == ((), 0)
    assert [(row.rank.instance_id, row.blocks, row.last_event_id) for row in after.ranks] == [(1, (1,), 3)]
    assert [(event.kind, event.subject, event.what) for event in found.events] == [
        ("rank", "dynamo/1#0", "lost 2 blocks by a gap")
    ]


@pytest.mark.req("EVS-16")
def test_a_subscription_that_another_owner_continued_is_told() -> None:
    world, start = eventful()
    world.say(SubscriptionContinued(int(Family.LOAD), "dynamo", 77, "backend", 9, int(Transport.DIRECT)))
    (event,) = [one for one in found_in(world, start).events if one.kind == "subscription"]
    assert (event.subject, event.what) == ("dynamo/77", "kv_metrics subscription: taken over without a gap")
