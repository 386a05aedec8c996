"""What befalls one of several replicas on one log while the others go on; all invariants hold behind it."""

from __future__ import annotations

import pytest

from ingest.log.kafka_settings import TopicReplaced
from projections.bounds import SECOND_US
from projections.events.control import ReplicaGone, WriterContinued
from projections.events.picks import PickMade
from tests.simulation.scenario import MS, Quiet, quiet
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Follower, Replica

MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US


def readiness(sim: Quiet, replica: Replica) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    return replica.reading.tail.readiness(replica.clock())


def picks_of(sim: Quiet, replica: Replica) -> list[bytes]:
    """Ids of its picks in the log, in order, copies too."""
    records = [r for r in sim.said(PickMade) if r.fact.replica == replica.id]  # type: ignore[attr-defined]
    return [record.fact.pick_id for record in records]  # type: ignore[attr-defined]


@pytest.mark.req("EVS-10", "EVS-17")
def test_a_replica_cut_off_for_a_minute_serves_on_and_the_others_notice_that_it_is_silent() -> None:
    with quiet(workers=3) as sim:
        other = sim.start(Replica, "other")
        sim.wait(3 * SECOND_US)
        cut = sim.replica
        cut.cut_until = sim.now + MINUTE_US
        asked = 0
        for second in range(60):
            for process in (cut, other):
                assert sim.ask(process, last_us=200 * MS).made is not None
                asked += 1
            sim.wait(SECOND_US)
            ready, missing, degraded = readiness(sim, cut)
            assert ready and not missing
            assert degraded == (("log",) if second >= 2 else ()) or second < 3
            assert readiness(sim, other) == (True, (), ())
        assert [r.fact.replica for r in sim.said(ReplicaGone)] == [cut.id]  # type: ignore[attr-defined]
        sim.wait(5 * SECOND_US)
        assert readiness(sim, cut) == (True, (), ()), "it is back, and was never unready"
        assert asked == 120


@pytest.mark.req("EVS-04", "EVS-10")
@pytest.mark.parametrize("step_us", [HOUR_US, -HOUR_US])
def test_an_hour_on_the_wall_of_one_replica_moves_none_of_its_picks(step_us: int) -> None:
    with quiet(workers=3) as sim:
        other = sim.start(Replica, "other")
        sim.wait(2 * SECOND_US)
        for number in range(20):
            if number in (5, 15):  # forth, and back
                sim.replica.wall_offset += step_us if number == 5 else -step_us
            for process in (sim.replica, other):
                assert sim.ask(process).made is not None
            sim.wait(100 * MS)
            assert readiness(sim, sim.replica) == readiness(sim, other) == (True, (), ())
        asked = [r.fact.question.asked_at for r in sim.said(PickMade)]  # type: ignore[attr-defined]
        assert max(asked) - min(asked) < 20 * SECOND_US


@pytest.mark.req("EVS-10", "EVS-15")
def test_a_replica_that_stood_still_for_nine_seconds_goes_on_under_its_name() -> None:
    with quiet(workers=3) as sim:
        stopped = sim.replica
        assert sim.ask(stopped).made is not None
        stopped.pause(9 * SECOND_US)
        sim.wait(12 * SECOND_US)
        assert readiness(sim, stopped) == (True, (), ())
        assert sim.ask(stopped).made is not None
        sim.wait(SECOND_US)
        assert len(picks_of(sim, stopped)) == len(set(picks_of(sim, stopped))) == 2
        assert not sim.said(ReplicaGone), "nine seconds are no thirty"


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize("lands", ["before", "after"])
def test_a_change_of_leader_under_a_pick_tells_it_once(lands: str) -> None:
    with quiet() as sim:
        replica = sim.replica
        sim.settle_writer(replica)
        sim.meets(replica, sim.unclear_commit(lands, 2 * SECOND_US))
        made = sim.ask(replica).made
        assert made is not None
        for _ in range(10):
            assert sim.ask(replica).made is not None
            sim.wait(300 * MS)
        sim.wait(3 * SECOND_US)
        assert [r for r in sim.said(WriterContinued) if r.writer == replica.appender.writer]
        effects = set(picks_of(sim, replica))
        assert made.pick_id in effects and len(effects) == 11


def assert_alike(sim: Quiet, *replicas: Replica) -> None:
    """Their folds hold the same once they stand at the same record."""
    folds = [replica.reading.tail.fold for replica in replicas]
    while len({fold.mark for fold in folds}) > 1:
        sim.wait(MS)
    assert len({fold.digests() for fold in folds}) == 1


@pytest.mark.req("EVS-13", "EVS-14")
@pytest.mark.parametrize("history", range(4))
def test_a_replica_that_retention_overtook_begins_at_the_checkpoint_behind_it(history: int) -> None:
    with quiet(workers=3, seed=history) as sim:
        slow, other = sim.replica, sim.start(Replica, "other")
        sim.wait(2 * SECOND_US)
        sim.settle_writer(slow)
        slow.pause(22 * SECOND_US)
        for _ in range(20):
            assert sim.ask(other, last_us=200 * MS).made is not None
            sim.wait(SECOND_US)
        kept = sim.checkpoints.list()[-1]
        assert kept.offset > slow.reading.tail.next_offset
        sim.log.forget(kept.offset)
        sim.wait(5 * SECOND_US)
        assert [(name, again.reason) for name, again in sim.restarts] == [("replica", "overtaken")]
        assert readiness(sim, slow) == readiness(sim, other) == (True, (), ())
        made = sim.ask(slow).made
        assert made is not None and not made.suspect
        assert_alike(sim, slow, other)


@pytest.mark.parametrize("history", range(4))
def test_a_topic_that_was_recreated_ends_everybody_and_is_refused_until_the_old_one_is_back(
    history: int,
) -> None:
    with quiet(workers=3, seed=history) as sim:
        assert sim.ask(sim.replica).made is not None
        sim.wait(3 * SECOND_US)
        end = sim.log.end
        sim.log.replace()
        request = sim.ask(sim.replica)
        sim.wait(3 * SECOND_US)
        assert request.made is not None and not request.acknowledged
        assert not [process.name for process in sim.processes if process.is_alive]
        for kind in (OwnerProcess, Replica, Follower):
            with pytest.raises(TopicReplaced):
                sim.start(kind, "late")
        assert sim.log.end == end, "nothing was said behind it"
        sim.log.put_back()
        sim.start(OwnerProcess, "owner-2")
        sim.start(Follower, "follower-2")
        one, other = sim.start(Replica, "replica-2"), sim.start(Replica, "replica-3")
        sim.wait(3 * SECOND_US)
        for replica in (one, other):
            assert sim.ask(replica).made is not None
            assert readiness(sim, replica) == (True, (), ())
        assert_alike(sim, one, other)
