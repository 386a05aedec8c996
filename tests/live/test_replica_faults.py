"""What may befall replicas and their brokers; behind each, all hold the same and every pick is repeated."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from deploy.demo.addresses import free_port
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from projections.events.control import WriterContinued
from projections.events.picks import PickMade, PicksLost
from tests.live.conftest import FleetMaker
from tests.live.detour import Detour
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.replica_site import ReplicaSite, told
from tests.live.router_process import Traffic, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(240)]
CUT_S = 60.0  # picks wait for 30 s as a whole, and as ledger lines behind that
STILL_S = 4.0  # longer than a standby would wait


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(2))


@pytest.fixture(scope="module")
def detour() -> Iterator[Detour]:
    """Where the brokers' listener of that name is reached; it knows its broker later."""
    with Detour(free_port(), lambda: int(BROKERS[0].address("DETOUR").rpartition(":")[2])) as detour:
        yield detour


BROKERS: list[KafkaBroker] = []


@pytest.fixture(scope="module")
def broker(detour: Detour, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), detour_port=detour.port)
    BROKERS[:] = [broker]
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def site(
    fleet: Fleet, broker: KafkaBroker, detour: Detour, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaSite]:
    """An owner, a replica, and a second one whose way to the broker is the detour."""
    with Topics(broker) as topics:
        made = ReplicaSite(fleet, topics.place(), tmp_path_factory.mktemp("site"))
        made.servers["replica-2"] = [f"127.0.0.1:{detour.port}"]
        try:
            made.start(2)
            made.start_follower()
            yield made
        finally:
            made.close()


@contextmanager
def traffic_of(site: ReplicaSite, prefix: str, pause_s: float = 0.05) -> Iterator[dict[str, Traffic]]:
    """Chats through every replica; behind the block all of them must have been answered and told."""
    began = site.end()
    traffic = {one.folder.name: Traffic(one, prefix=f"{prefix}-{one.folder.name}") for one in site.replicas}
    with ExitStack() as running:
        for one in traffic.values():
            running.enter_context(one.running(threads=2, pause_s=pause_s))
        for one in traffic.values():
            one.wait_more(6)
        yield traffic
        site.wait_ready()
        for one in traffic.values():
            one.wait_more(6)
    for name, one in traffic.items():
        assert one.bad == [], told(site.running[name])
    site.wait_told({sent.identifier for one in traffic.values() for sent in one.finished()}, began)


def degraded(site: ReplicaSite, name: str) -> bool:
    """A process is ready, and says that the log is away."""
    status, document = site.running[name].ready()
    assert status == 200, told(site.running[name])
    return bool(document["degraded"] == ["log"])


@pytest.mark.req("EVS-10", "EVS-17", "EVS-20")
def test_a_broker_that_is_killed_and_comes_back_costs_no_chat(site: ReplicaSite, broker: KafkaBroker) -> None:
    with traffic_of(site, "killed-broker") as traffic:
        broker.kill()
        for name in traffic:
            until(lambda name=name: degraded(site, name), f"{name} says that the log is away")  # type: ignore[misc]
        for one in traffic.values():
            one.wait_more(6)
        broker.start()
    site.assert_agreed()


@pytest.mark.req("EVS-10", "EVS-15", "EVS-16", "EVS-17")
def test_a_replica_cut_off_for_a_minute_while_others_stand_still_serves_on_and_tells_each_pick_once(
    site: ReplicaSite, detour: Detour
) -> None:
    lost, continued = len(site.facts(PicksLost)), len(site.facts(WriterContinued))
    with traffic_of(site, "cut-off", pause_s=0.3) as traffic:
        detour.swallow()
        traffic["replica-2"].wait_more(2)
        time.sleep(1.0)  # what was sent has landed, and nobody was told
        detour.cut()
        ends_at = time.monotonic() + CUT_S
        until(lambda: degraded(site, "replica-2"), "it says so")
        for name in ("ingest", "replica-1"):
            stand_still(site, name)
            traffic["replica-2"].wait_more(4)
        while time.monotonic() < ends_at:
            traffic["replica-2"].wait_more(4)
            assert degraded(site, "replica-2")
            assert site.running["replica-1"].ready()[1]["degraded"] == []
        detour.restore()
    site.assert_agreed()
    assert len(site.facts(WriterContinued)) > continued, "the append was unclear: another writer went on"
    picks = [fact.pick_id for fact in site.facts(PickMade)]
    assert len(picks) == len(set(picks)), "it had landed, and was not sent again"
    lines = [line.pick_id for fact in site.facts(PicksLost)[lost:] for line in fact.lines]
    assert lines, "what waited longer than 30 s is told in short"
    assert not set(picks) & set(lines) and len(lines) == len(set(lines))


def stand_still(site: ReplicaSite, name: str) -> None:
    """The process stands still for a while, and the same one is ready again."""
    one = site.running[name]
    pid = one.pid
    one.signal(signal.SIGSTOP)
    try:
        time.sleep(STILL_S)
    finally:
        one.signal(signal.SIGCONT)
    until(lambda: one.ready()[0] == 200 and one.ready()[1]["degraded"] == [], lambda: told(one))
    assert one.pid == pid


@pytest.mark.req("EVS-09", "EVS-17")
def test_the_audit_behind_all_of_that_has_every_pick_of_the_log(site: ReplicaSite) -> None:
    site.assert_audited()


@pytest.mark.req("EVS-13", "EVS-14")
def test_a_replica_that_retention_overtook_says_so_and_begins_at_a_checkpoint(
    site: ReplicaSite, broker: KafkaBroker
) -> None:
    slow = site.running["replica-1"]
    slow.signal(signal.SIGSTOP)
    try:
        behind = site.records()[-1].offset
        until(
            lambda: [info for info in site.checkpoints.list() if info.offset > behind],
            lambda: f"a checkpoint: {site.follower and site.follower.log_tail()}",
        )
        with Topics(broker) as topics:
            log = topics.log(site.place)
            topics.forget(log, site.checkpoints.list()[-1].offset + 1)
    finally:
        slow.signal(signal.SIGCONT)
    until(lambda: slow.log_lines("the fold is given up"), lambda: told(slow))
    site.wait_ready()
    began = site.end()
    assert slow.chat("overtaken").status == 200
    site.wait_told({"overtaken"}, began)
    site.assert_agreed()


def test_a_topic_that_was_recreated_with_other_partitions_is_refused_by_all(
    site: ReplicaSite, broker: KafkaBroker
) -> None:
    with Topics(broker) as topics:
        topics.delete(site.place.topic)
        topics.create(site.place.topic, partitions=2)
    for one in site.running.values():
        assert one.wait_end(60) == 3, told(one)
        assert "Traceback" not in one.log_tail()
    for one in site.running.values():
        one.start(ready=False)
    for one in site.running.values():
        assert one.wait_end(60) == 2
        assert "has 2 partitions, a log is one" in one.log_lines("picklog: ")[-1]
