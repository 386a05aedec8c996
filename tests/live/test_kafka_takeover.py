"""Two ingest processes on one topic: the owner is killed, frozen, cut off; the fleet stays as it was."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.addresses import free_port
from deploy.demo.fleet import Fleet
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from ingest.wire.router_events import KvFrame, decode_kv_message
from projections.events.codec import decode_record, encode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.envelope import Record
from projections.events.picks import PickMade, PicksLost
from projections.events.signals import (
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
)
from projections.fold import Fold
from replay.engine import records_of
from tests.live import test_spool
from tests.live.detour import Detour
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.replica_site import assert_audit_is
from tests.live.router_process import RouterProcess, picklog, pool_config, until
from tests.live.test_spool import WORKERS, Talker, missing

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(300)]
TAKEOVER_S_MAX = 3.0


class Site:
    """A fleet, a topic, and the processes around it; each is told apart by its name."""

    def __init__(self, fleet: Fleet, topics: Topics, folder: Path) -> None:
        self.fleet = fleet
        self.topics = topics
        self.place: KafkaPlace = topics.place()
        self.folder = folder
        self.servers: dict[str, str] = {}  # where a process of that name looks for brokers
        self.running: dict[str, RouterProcess] = {}

    def process(self, name: str, command: str) -> RouterProcess:
        """One more process, started."""
        port = free_port()
        config = pool_config(self.fleet, port, kv={"enabled": True})
        config["log"] |= {
            "kind": "kafka",
            "kafka": {
                "bootstrap_servers": [self.servers.get(name, self.topics.broker.address())],
                "topic": self.place.topic,
                "replication_factor": 1,
            },
        }
        config["audit"] = {"enabled": command == "audit"}
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
        """A process that picks; and a follower, which need not be ready yet."""
        self.process("follower", "audit")
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

    def owner_now(self) -> tuple[bytes, int] | None:
        """Writer and epoch that the whole log says speak for it."""
        fold = Fold()
        reader = KafkaReader.open(self.place)
        try:
            for offset, data in records_of(reader, 0):
                fold.apply(offset, data, [])
        finally:
            reader.close()
        return fold.state.intake.owner

    def assert_one_speaks(self) -> None:
        """From now on one pair of writer and epoch speaks as the owner: the one that the log names."""
        end = self.records()[-1].offset

        def spoken() -> list[Record]:
            return [one for one in self.records() if one.offset > end and one.epoch]

        until(lambda: len([one for one in spoken() if type(one.fact) is ClockTicked]) >= 4, "ticks go on")
        assert {(one.writer, one.epoch) for one in spoken()} == {self.owner_now()}

    def verified(self) -> str:
        """`replay verify` of the topic; and the follower has all of it."""
        kinds = (PickMade, PicksLost)
        assert_audit_is(
            self.running["follower"], [one.fact for one in self.records() if isinstance(one.fact, kinds)]
        )
        said = picklog("replay", "verify", "--log", f"kafka:{self.running['router'].file}")
        assert said.returncode == 0, (said.stdout, said.stderr)
        return said.stdout

    def close(self) -> None:
        for process in self.running.values():
            process.close()


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, Detour]]:
    """A broker, and the detour on which one process may be sent to it."""
    brokers: list[KafkaBroker] = []
    with Detour(free_port(), lambda: int(brokers[0].address("DETOUR").rpartition(":")[2])) as detour:
        brokers.append(KafkaBroker(tmp_path_factory.mktemp("kafka"), detour_port=detour.port))
        try:
            yield brokers[0].start(), detour
        finally:
            brokers[0].close()


@pytest.fixture(scope="module")
def kafka(way: tuple[KafkaBroker, Detour]) -> KafkaBroker:
    return way[0]


@pytest.fixture
def detour(way: tuple[KafkaBroker, Detour]) -> Detour:
    return way[1]


@pytest.fixture
def site(demo_fleet: Fleet, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    with Topics(kafka) as topics:
        made = Site(demo_fleet, topics, tmp_path)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def talk(kafka: KafkaBroker, tmp_path: Path) -> Iterator[test_spool.Site]:
    """A fleet whose publishers are the test's, with one ingest process."""
    with Topics(kafka) as topics:
        made = test_spool.Site(topics, tmp_path)
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


@pytest.mark.req("EVS-15", "EVS-16")
def test_what_a_fleet_says_while_its_owner_is_killed_takes_effect_once(talk: test_spool.Site) -> None:
    first, second = talk.ingest, talk.process("ingest", "second")
    talkers = [Talker(talk.store, number, blocks=8) for number in WORKERS]
    publishers = 2 * len(WORKERS)
    try:
        first.start(ready=False)
        until(lambda: first.connected() == publishers, first.log_tail)
        second.start(ready=False)
        until(lambda: second.log_lines("standing by") and second.connected() == publishers, second.log_tail)
        with talkers[0], talkers[1]:
            said_on(talkers)
            first.kill()
            killed_at = [dict(talker.told) for talker in talkers]
            until(lambda: second.log_lines("the log is taken over"), second.log_tail)
            for talker, before in zip(talkers, killed_at, strict=True):
                assert talker.told["kv"] - before["kv"] > 20 and talker.told["load"] > before["load"]
            said_on(talkers)
            for talker in talkers:
                talker.fall_silent()
            until(lambda: missing(talk, talkers) == [], lambda: str(missing(talk, talkers)))
            assert state_said(fold_of_log(talk)) == state_said(fold_of_frames(talk, talkers))
    finally:
        second.close()


def said_on(talkers: list[Talker]) -> None:
    """Until each has said some more."""
    goal = max(talker.told["kv"] for talker in talkers) + 150
    until(lambda: all(talker.told["kv"] >= goal for talker in talkers), "talk goes on")


def fold_of_log(site: test_spool.Site) -> Fold:
    """Of all that two owners wrote, which said both kinds of frames each."""
    fold = Fold()
    epochs: defaultdict[type, set[int]] = defaultdict(set)
    reader = KafkaReader.open(site.place)
    try:
        for offset, data in records_of(reader, 0):
            fact = fold.apply(offset, data, [])
            if isinstance(fact, SampleReceived | KvBatchReceived):
                epochs[type(fact)].add(decode_record(offset, data).epoch)
    finally:
        reader.close()
    assert epochs == {SampleReceived: {1, 2}, KvBatchReceived: {1, 2}}
    return fold


def fold_of_frames(site: test_spool.Site, talkers: list[Talker]) -> Fold:
    """Of what one owner that lived on would have written: the fleet as it first was, then each frame."""
    fold = Fold()
    reader = KafkaReader.open(site.place)
    try:
        for offset, data in records_of(reader, 0):
            if isinstance(decode_record(offset, data).fact, SampleReceived | KvBatchReceived):
                break
            fold.apply(offset, data, [])
    finally:
        reader.close()
    facts: list[tuple[Any, ...]] = []
    for worker, talker in zip(WORKERS, talkers, strict=True):
        for turn in range(1, talker.told["kv"] + 1):
            frame = decode_kv_message(talker.kv_message(turn), 0x900 + worker)
            assert isinstance(frame, KvFrame)
            columns = (frame.heads, frame.hashes, frame.published_at_ms)
            facts.append(KvBatchReceived("dynamo", 0x900 + worker, 1, turn, turn, *columns))
        for number in range(1, talker.told["load"] + 1):
            said = talker.sample(number)
            figures = (None, None, said.kv_used_blocks, said.published_at_ms)
            facts.append(SampleReceived("dynamo", 0x700 + worker, 1, number, number, worker, 0, *figures))
    owner, last = fold.state.intake.owner, fold.mark
    assert owner is not None
    sequence = fold.state.intake.writers[owner[0]].last_sequence
    for n, fact in enumerate(facts, start=1):
        data = encode_record(last.time + n, *owner, sequence + n, fact)
        assert fold.apply(last.offset + n, data, []) is not None
    return fold


def state_said(fold: Fold) -> tuple[Any, ...]:
    """What frames left, without stamps and writers: blocks with their cursors, samples with their numbers."""
    samples = [fold.state.load.sample("dynamo", worker, 0) for worker in WORKERS]
    assert fold.state.kv.digest and all(samples)
    return fold.state.kv.digest, [held._replace(received_at=0) for held in samples if held is not None]


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
    site.assert_one_speaks()
    assert router.chat("behind-it").status == 200
    site.agrees()
    site.verified()


@pytest.mark.req("EVS-16")
def test_an_owner_that_alone_was_cut_off_finds_the_log_taken_over(site: Site, detour: Detour) -> None:
    site.servers["first"] = f"127.0.0.1:{detour.port}"
    first = site.owner("first")
    router = site.router()
    second = site.standby("second")
    detour.cut()
    try:
        until(lambda: second.log_lines("the log is taken over"), second.log_tail)
        until(lambda: len(site.of_owner(2, ClockTicked)) >= 4, second.log_tail)
        assert first.get("/health")[0] == 200, "it cannot know yet, and goes on hearing the fleet"
        assert router.chat("meanwhile").status == 200
    finally:
        detour.restore()
    assert first.wait_end(60) == 3, first.log_tail()
    assert first.log_lines("took the log over with epoch 2")
    assert [claim.epoch for claim in site.claims()] == [1, 2]
    site.assert_one_speaks()
    assert site.agrees() >= 4
    site.verified()
