"""Two ingest processes on one topic: the owner is killed, frozen, cut off; the fleet stays as it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.addresses import free_port
from deploy.demo.fleet import Fleet
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from projections.events.codec import decode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.envelope import Record
from projections.events.signals import (
    SampleReceived,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
)
from projections.fold import Fold
from replay.engine import records_of
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import RouterProcess, picklog, pool_config, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(300)]
TAKEOVER_S_MAX = 3.0


class Site:
    """A fleet, a topic, and the processes around it; each is told apart by its name."""

    def __init__(self, fleet: Fleet, topics: Topics, folder: Path) -> None:
        self.fleet = fleet
        self.topics = topics
        self.place: KafkaPlace = topics.place()
        self.folder = folder
        self.running: dict[str, RouterProcess] = {}

    def process(self, name: str, command: str) -> RouterProcess:
        """One more process, started."""
        port = free_port()
        config = pool_config(self.fleet, port, kv={"enabled": True})
        config["log"] |= {
            "kind": "kafka",
            "kafka": {
                "bootstrap_servers": [self.topics.broker.address()],
                "topic": self.place.topic,
                "replication_factor": 1,
            },
        }
        config["audit"] = {"enabled": False}
        made = self.running[name] = RouterProcess(self.folder / name, config, port, command)
        made.start(ready=False)
        return made

    def owner(self, name: str) -> RouterProcess:
        """An ingest process that owns the log by now."""
        made = self.process(name, "ingest")
        until(lambda: made.ready()[0] == 200, made.log_tail)
        return made

    def standby(self, name: str) -> RouterProcess:
        """An ingest process that waits and has connected to the fleet."""
        made = self.process(name, "ingest")
        until(lambda: made.log_lines("standing by"), made.log_tail)
        first = self.running["first"]
        until(lambda: 0 < made.connected() == first.connected(), made.log_tail)
        return made

    def router(self) -> RouterProcess:
        """A process that picks."""
        made = self.process("router", "router")
        made.wait_ready(models=2)
        return made

    def records(self) -> list[Record]:
        """The whole log."""
        reader = KafkaReader.open(self.place)
        try:
            return [decode_record(offset, data) for offset, data in records_of(reader, 0)]
        finally:
            reader.close()

    def of_owner(self, epoch: int, kind: type) -> list[Record]:
        """Facts of one owner."""
        return [one for one in self.records() if one.epoch == epoch and type(one.fact) is kind]

    def claims(self) -> list[Any]:
        """Claims in the log, in order."""
        return [one.fact for one in self.records() if type(one.fact) is LaneOpened]

    def agrees(self) -> int:
        """Fold the log: every digest in a tick is that of the record that it names; how many there were."""
        fold = Fold()
        noted: dict[int, tuple[tuple[str, int], ...]] = {}
        compared = 0
        reader = KafkaReader.open(self.place)
        try:
            for offset, data in records_of(reader, 0):
                fact = fold.apply(offset, data, [])
                if not isinstance(fact, ClockTicked):
                    continue
                noted[offset] = fold.digests()
                if fact.noted_offset in noted:
                    compared += 1
                    assert fact.digests == noted[fact.noted_offset], f"the tick at {offset} differs"
        finally:
            reader.close()
        return compared

    def verified(self) -> str:
        """`replay verify` of the topic."""
        said = picklog("replay", "verify", "--log", f"kafka:{self.running['router'].file}")
        assert said.returncode == 0, (said.stdout, said.stderr)
        return said.stdout

    def close(self) -> None:
        for process in self.running.values():
            process.close()


@pytest.fixture
def site(demo_fleet: Fleet, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    with Topics(kafka) as topics:
        made = Site(demo_fleet, topics, tmp_path)
        try:
            yield made
        finally:
            made.close()


def seconds_until(holds: Callable[[], Any], what: Callable[[], str]) -> float:
    """How long it took."""
    began = time.monotonic()
    until(holds, what, pause_s=0.02)
    return time.monotonic() - began


@pytest.mark.req("EVS-16")
def test_a_killed_owner_is_followed_within_three_seconds_and_nothing_is_read_anew(site: Site) -> None:
    first = site.owner("first")
    router = site.router()
    second = site.standby("second")
    for number in range(6):
        assert router.chat(f"before-{number}").status == 200
    time.sleep(6.0)  # the standby is young no more: it lets nobody go first
    workers = router.workers()
    first.kill()
    took_s = seconds_until(lambda: second.log_lines("the log is taken over"), second.log_tail)
    print(f"taken over {took_s:.2f} s after the kill")
    assert took_s < TAKEOVER_S_MAX
    for number in range(6):
        assert router.chat(f"after-{number}").status == 200
    until(lambda: len(site.of_owner(2, ClockTicked)) >= 4, second.log_tail)
    assert [claim.epoch for claim in site.claims()] == [1, 2]
    heard = {one.fact.publisher_id for one in site.of_owner(1, SampleReceived)}  # type: ignore[attr-defined]
    assert heard <= {one.fact.publisher_id for one in site.of_owner(2, SubscriptionContinued)}  # type: ignore[attr-defined]
    assert not heard & {
        one.fact.publisher_id  # type: ignore[attr-defined]
        for one in site.of_owner(2, SubscriptionChanged)
        if one.fact.state == SubscriptionState.CONNECTED  # type: ignore[attr-defined]
    }
    assert set(router.workers()) == set(workers)
    assert router.ready()[0] == 200
    assert site.agrees() >= 4
    assert "12" in site.verified()


@pytest.mark.req("EVS-16")
def test_an_owner_that_was_frozen_and_comes_back_late_does_no_harm(site: Site) -> None:
    first = site.owner("first")
    router = site.router()
    second = site.standby("second")
    first.signal(signal.SIGSTOP)
    until(lambda: second.log_lines("the log is taken over"), second.log_tail)
    until(lambda: len(site.of_owner(2, ClockTicked)) >= 8, second.log_tail)
    first.signal(signal.SIGCONT)
    assert first.wait_end() == 3
    assert first.log_lines("took the log over with epoch 2")
    for number in range(4):
        assert router.chat(f"later-{number}").status == 200
    assert [claim.epoch for claim in site.claims()] == [1, 2]
    third = site.process("third", "ingest")
    until(lambda: third.log_lines("standing by"), third.log_tail)
    assert site.agrees() >= 4
    site.verified()


@pytest.mark.req("EVS-16")
def test_a_broker_that_stands_still_leaves_one_owner(site: Site, kafka: KafkaBroker) -> None:
    site.owner("first")
    router = site.router()
    site.standby("second")
    kafka.freeze()
    try:
        time.sleep(6.0)
    finally:
        kafka.thaw()
    ticks = len([one for one in site.records() if type(one.fact) is ClockTicked])
    until(lambda: len([r for r in site.records() if type(r.fact) is ClockTicked]) >= ticks + 5, "ticks go on")
    living = [name for name, one in site.running.items() if one.get("/health")[0] == 200 and name != "router"]
    assert living
    assert router.chat("behind-it").status == 200
    site.agrees()
    site.verified()
