"""A wall clock that is stepped by more than an hour, forth and back, on one machine of a site on Kafka.

An hour and a minute, since brokers refuse timestamps that lie more than an hour ahead of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import Discovery, aggregated_plan
from projections.bounds import SECOND_US
from projections.events.control import ClockTicked, LaneOpened, WriterContinued
from projections.events.discovery import KeyDeleted, KeyPut
from projections.events.envelope import Record
from projections.events.picks import PickMade
from projections.events.signals import SubscriptionChanged
from tests.live.conftest import FleetMaker
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.peers import EtcdServer
from tests.live.replica_site import ReplicaSite, told
from tests.live.router_process import until
from tests.live.stepped_clock import SteppedClock
from tests.live.test_replica_faults import traffic_of

pytestmark = [
    pytest.mark.live("dynamo"),
    pytest.mark.live("etcd"),
    pytest.mark.live("kafka"),
    pytest.mark.timeout(240),
]
STEP_S = 3_660
NEAR_S = 10  # what a busy machine may delay; far from a step
DRIFT = "picklog_clock_drift_seconds"


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker, shared_etcd: EtcdServer) -> Fleet:
    """It tells etcd: by a clock that is off, the files of a store would look old at first."""
    plan = dataclasses.replace(aggregated_plan(2), discovery=Discovery.ETCD, lease_ttl_s=30)
    return make_fleet(plan, etcd_url=shared_etcd.endpoint)


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SteppedClock:
    """Of the machine that both ingest processes and one of the replicas run on."""
    return SteppedClock(tmp_path_factory.mktemp("machine") / "clock")


@pytest.fixture(scope="module")
def site(
    fleet: Fleet, kafka: KafkaBroker, clock: SteppedClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaSite]:
    """An owner, two replicas and a follower, on a topic that keeps the timestamps of writers."""
    with Topics(kafka) as topics:
        place = topics.place()
        topics.create(place.topic, message_timestamp_type="CreateTime", max_message_bytes="8388608")
        made = ReplicaSite(fleet, place, tmp_path_factory.mktemp("site"))
        made.environments |= dict.fromkeys(("ingest", "standby", "replica-2"), clock.environment)
        try:
            made.start(2)
            made.start_follower()
            yield made
        finally:
            made.close()


def ahead_of_log_time(tick: Record) -> int:
    """Seconds by which the wall clock of an owner was ahead of log time."""
    fact = tick.fact
    assert isinstance(fact, ClockTicked)
    return round((fact.wall_us - tick.time) / SECOND_US)


def assert_in_step(records: list[Record]) -> None:
    """Log time of the owners' records grows, and never by much at once; picks are asked in it."""
    times = [record.time for record in records if isinstance(record.fact, ClockTicked)]
    assert len(times) >= 2
    for before, after in pairwise(times):
        assert before < after < before + NEAR_S * SECOND_US
    for record in records:
        if isinstance(record.fact, PickMade):
            asked_at = record.fact.question.asked_at
            assert times[0] - NEAR_S * SECOND_US < asked_at < times[-1] + NEAR_S * SECOND_US
            assert not record.fact.suspect


def counted(records: list[Record]) -> dict[str, int]:
    """What a clock that was believed would have changed: owners, writers, keys, subscriptions."""
    kinds = (LaneOpened, WriterContinued, KeyPut, KeyDeleted, SubscriptionChanged)
    return {kind.__name__: sum(isinstance(one.fact, kind) for one in records) for kind in kinds}


@pytest.mark.req("EVS-03", "EVS-10", "EVS-16")
def test_a_clock_that_steps_forth_and_back_moves_nothing(site: ReplicaSite, clock: SteppedClock) -> None:
    before = site.records()
    moved = [site.running[name] for name in ("ingest", "replica-2")]
    with traffic_of(site, "stepped", pause_s=0.3) as traffic:
        for ahead_s in (STEP_S, 0, -STEP_S, 0):
            clock.set(ahead_s)
            for one in moved:
                until(
                    lambda one=one, ahead_s=ahead_s: abs(one.metrics()[DRIFT] - ahead_s) < NEAR_S,  # type: ignore[misc]
                    lambda one=one: f"it sees the step: {told(one)}",  # type: ignore[misc]
                )
            assert abs(site.running["replica-1"].metrics()[DRIFT]) < NEAR_S
            site.wait_ticks(3)
            for sender in traffic.values():
                sender.wait_more(3)
            site.wait_ready()
    records = site.records()
    later = records[len(before) :]
    assert_in_step(later)
    seen = {ahead_of_log_time(one) for one in later if isinstance(one.fact, ClockTicked)}
    assert min(seen) < NEAR_S - STEP_S and max(seen) > STEP_S - NEAR_S, "ticks show the wall of the owner"
    assert counted(records) == counted(before)
    site.assert_agreed()
    site.assert_audited()


@pytest.mark.req("EVS-03", "EVS-16")
def test_a_standby_whose_clock_is_off_takes_over_in_the_log_time_of_the_owner_before(
    site: ReplicaSite, clock: SteppedClock
) -> None:
    clock.set(STEP_S)
    standby = site.make("standby", "ingest").start(ready=False)
    until(lambda: standby.log_lines("standing by"), lambda: told(standby))
    until(lambda: standby.ready()[0] == 200, lambda: told(standby))
    site.wait_ticks(6)  # it is young no more: it lets nobody go first
    before = len(site.records())
    with traffic_of(site, "off") as traffic:
        site.running.pop("ingest").kill()
        until(lambda: standby.log_lines("the log is taken over"), lambda: told(standby))
        for one in traffic.values():
            one.wait_more(6)
        site.wait_ticks(3)
    later = site.records()[before - 3 :]
    assert_in_step(later)
    owned = [one for one in later if isinstance(one.fact, ClockTicked) and one.epoch == 2]
    assert all(abs(ahead_of_log_time(one) - STEP_S) < NEAR_S for one in owned) and owned
    site.assert_agreed()
    site.assert_audited()


@pytest.mark.req("EVS-03", "EVS-10")
def test_an_owner_that_starts_with_a_clock_that_is_off_adds_what_it_is_ahead_once(
    site: ReplicaSite, clock: SteppedClock
) -> None:
    """By the wall, an hour has passed without an owner; a clock that is set back takes nothing off."""
    site.running.pop("standby").kill()
    ahead = []
    for ahead_s in (2 * STEP_S, 0):
        clock.set(ahead_s)
        before = max(record.time for record in site.records() if isinstance(record.fact, ClockTicked))
        owner = site.make("ingest", "ingest").start(ready=False)
        until(lambda owner=owner: owner.ready()[0] == 200, lambda owner=owner: told(owner))  # type: ignore[misc]
        site.wait_ticks(3)
        site.wait_ready()
        for one in site.replicas:
            assert one.chat(f"ahead-{ahead_s}-{one.folder.name}").status == 200
        times = [record.time for record in site.records() if isinstance(record.fact, ClockTicked)]
        assert all(earlier < later for earlier, later in pairwise(times))
        ahead.append(round((times[times.index(before) + 1] - before) / SECOND_US))
        if ahead_s:
            site.running.pop("ingest").kill()
    assert STEP_S - NEAR_S < ahead[0] < STEP_S + 3 * NEAR_S, "its clock was an hour ahead of the standby's"
    assert 0 <= ahead[1] < 3 * NEAR_S
    site.wait_told(
        {f"ahead-{ahead_s}-{one.folder.name}" for ahead_s in (2 * STEP_S, 0) for one in site.replicas}
    )
    site.assert_agreed()
    site.assert_audited()
