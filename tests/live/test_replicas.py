"""Four router replicas on one topic: they share one ledger, agree, and any of them may be killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from deploy.demo import chats
from deploy.demo.chats import Chat
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from projections.events.control import ReplicaGone, ReplicaStarted
from projections.events.picks import PickMade
from projections.events.signals import SampleReceived
from tests.live.conftest import FleetMaker
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.replica_site import PROPOSER, ReplicaSite, told, workers_of
from tests.live.router_process import TRAFFIC_MODEL, Traffic, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(240)]
WORKERS = REPLICAS = 4
BURST = 100


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(WORKERS, speedup=1.0))


@pytest.fixture(scope="module")
def site(fleet: Fleet, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSite]:
    with Topics(kafka) as topics:
        made = ReplicaSite(fleet, topics.place(), tmp_path_factory.mktemp("replicas"))
        try:
            made.start(REPLICAS)
            yield made
        finally:
            made.close()


def spread(site: ReplicaSite, prefix: str) -> Counter[str]:
    """How a burst of equal chats falls on the workers while no worker tells its load any more.

    One is idle by its newest sample, the others are busy; all stand still until every pick is made.
    So only what replicas know of their own and of each other's dispatches tells the workers apart.
    """
    fleet = site.fleet
    name_of = {int(row["instance_id"]): row["name"] for row in fleet.workers()}
    frozen: set[str] = set()
    with ThreadPoolExecutor(WORKERS) as threads:
        try:
            streams = []
            for number in range(WORKERS - 1):
                busy = Chat(f"{prefix}-busy-{number}", TRAFFIC_MODEL, "Say much. " * 20, True, 1_500)
                streams.append(threads.submit(chats.send, site.replicas[0].url, busy))
                worker = until(partial(busy_worker, site, busy), "its worker tells of it", pause_s=0.1)
                frozen.add(name_of[worker])
                fleet.freeze(name_of[worker])
            (idle,) = set(name_of.values()) - frozen
            frozen.add(idle)
            fleet.freeze(idle)
            sending = threads.submit(site.burst, prefix, BURST)
            until(
                lambda: picked(site, prefix) == BURST, f"all are picked: {picked(site, prefix)}", pause_s=0.2
            )
        finally:
            for name in frozen:
                fleet.thaw(name)
        answers = sending.result()
        assert {answer.status for answer in answers} == {200}
        assert {stream.result().status for stream in streams} == {200}
    return workers_of(answers)


def busy_worker(site: ReplicaSite, busy: Chat) -> int | None:
    """The worker of this chat, once a sample tells that it works."""
    found = None
    for fact in site.facts(PickMade, SampleReceived):
        if isinstance(fact, PickMade) and fact.question.request_id == busy.identifier:
            assert fact.outcome.decode.chosen is not None
            found = fact.outcome.decode.chosen.instance_id
        elif isinstance(fact, SampleReceived) and fact.worker_id == found and fact.kv_used_blocks:
            return found
    return None


def picked(site: ReplicaSite, prefix: str) -> int:
    """Picks of a burst in the log."""
    return len([f for f in site.facts(PickMade) if f.question.request_id.startswith(f"{prefix}-")]) - 3


@pytest.mark.req("STORE-06", "EVS-05", "EVS-10")
def test_equal_chats_at_once_spread_over_the_workers_since_all_replicas_know_of_all_dispatches(
    site: ReplicaSite,
) -> None:
    workers = spread(site, "shared")
    assert len(workers) == WORKERS and max(workers.values()) <= 2 * BURST / WORKERS, workers
    picks = [fact for fact in site.facts(PickMade) if fact.question.request_id.startswith("shared")]
    assert len({pick.replica for pick in picks}) == REPLICAS
    site.assert_agreed()
    assert site.verified()["equal"] == len(site.facts(PickMade)), "one pass over the picks of all replicas"


@pytest.mark.req("EVS-05")
def test_without_the_ledger_the_same_chats_crowd_on_one_worker(site: ReplicaSite) -> None:
    site.propose(ledger=False)
    try:
        workers = spread(site, "alone")
        assert max(workers.values()) > 2 * BURST / WORKERS, workers
    finally:
        site.propose(ledger=True)
    site.verified()


@pytest.mark.req("EVS-10")
def test_a_killed_replica_costs_what_was_under_way_in_it_and_the_log_says_that_it_is_gone(
    site: ReplicaSite,
) -> None:
    traffic = {one.folder.name: Traffic(one, prefix=one.folder.name) for one in site.replicas}
    victim = site.running["replica-3"]
    with ExitStack() as running:
        for one in traffic.values():
            running.enter_context(one.running(threads=2))
        for one in traffic.values():
            one.wait_more(5)
        before = {one.identifier for one in traffic["replica-3"].finished() if one.is_good}
        victim.kill()
        for name, one in traffic.items():
            if name != "replica-3":
                one.wait_more(15)
    for name, one in traffic.items():
        if name != "replica-3":
            assert one.bad == [], name
    assert len(before) > 5
    site.wait_told({one.identifier for t in traffic.values() for one in t.finished() if one.is_good})
    victim.start(ready=False)
    site.wait_ready()
    assert victim.chat("back-again").status == 200
    site.assert_agreed()

    def gone() -> set[bytes]:
        return {fact.replica for fact in site.facts(ReplicaGone)} - {PROPOSER}

    until(gone, "it is told gone", patience_s=60, pause_s=0.5)
    started = [fact.replica for fact in site.facts(ReplicaStarted) if fact.role == "router"]
    assert len(started) == REPLICAS + 1
    assert len(gone()) == 1 and gone() < set(started[:REPLICAS])
    assert not any(one.log_lines("Traceback") for one in site.replicas), [told(one) for one in site.replicas]
