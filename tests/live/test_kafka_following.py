"""Offline verbs follow a topic that others write to: every pick of all replicas is verified as it comes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from ingest.log.kafka_log import KafkaLog
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue
from projections.events.picks import PickMade
from tests.app.log_on_disk import some_picks
from tests.app.test_replay_verify_cli import told_all
from tests.app.timed_log import WRITER
from tests.live.conftest import FleetMaker
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.replica_site import ReplicaSite
from tests.live.router_process import REPOSITORY, Traffic, until

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(240)]
REPLICAS = 3


class Follower:
    """A command that follows, and what it has said so far."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._take, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._take, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _take(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                lines.append(line)

    def documents(self) -> list[dict[str, Any]]:
        """Each line as JSON."""
        return [json.loads(line) for line in self.lines]

    def end(self, number: int | None = None) -> int:
        """Its exit status, behind a signal if one is to be sent."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        for thread in self._threads:
            thread.join(10)
        return status

    def close(self) -> None:
        self.process.kill()
        self.end()


class Topic:
    """A log of a few picks on a topic, and commands that follow it."""

    def __init__(self, broker: KafkaBroker, topics: Topics, folder: Path) -> None:
        self.topics = topics
        self.log: KafkaLog = topics.log(topics.place())
        self.file = folder / "site.yaml"
        section = {"bootstrap_servers": [broker.address()], "topic": self.log.place.topic}
        self.file.write_text(yaml.safe_dump({"log": {"kafka": {**section, "replication_factor": 1}}}))
        for batch in some_picks().log.read(0, 1 << 30):
            self.log.commit(batch.records)
        self._said = 0
        self._followers: list[Follower] = []

    def say(self) -> int:
        self._said += 1
        return self.log.commit([encode_record(9, WRITER, 0, 9_000 + self._said, CheckpointDue("x"))])

    def follow(self, *words: str) -> Follower:
        self._followers.append(Follower(*words, "--follow", "--log", f"kafka:{self.file}"))
        return self._followers[-1]

    def close(self) -> None:
        for follower in self._followers:
            follower.close()


@pytest.fixture
def topic(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Topic]:
    with Topics(kafka) as topics:
        made = Topic(kafka, topics, tmp_path)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(2))


@pytest.fixture
def site(fleet: Fleet, kafka: KafkaBroker, tmp_path: Path) -> Iterator[ReplicaSite]:
    with Topics(kafka) as topics:
        made = ReplicaSite(fleet, topics.place(), tmp_path)
        try:
            made.start(REPLICAS)
            yield made
        finally:
            made.close()


@pytest.mark.live("dynamo")
@pytest.mark.req("EVS-06", "EVS-20")
def test_every_pick_of_all_replicas_is_verified_while_they_pick(site: ReplicaSite) -> None:
    where = f"kafka:{next(iter(site.running.values())).file}"
    verifying = Follower("replay", "verify", "--follow", "--json", "--from", "begin", "--log", where)
    showing = Follower("log", "cat", "--follow", "--kind", "PickMade", "--from", "begin", "--log", where)
    try:
        traffic = [Traffic(one, prefix=one.folder.name) for one in site.replicas]
        for one in traffic:
            with one.running(threads=2, pause_s=0.02):
                one.wait_more(20)
        assert [one.bad for one in traffic] == [[]] * REPLICAS
        site.wait_told({sent.identifier for one in traffic for sent in one.finished()})
        picks = site.facts(PickMade)
        until(lambda: len(showing.lines) == len(picks), "each is shown", pause_s=0.1)
        site.wait_ticks(3)  # what is read is a tick or two behind at most
        assert verifying.end(signal.SIGINT) == 0, verifying.errors
        assert showing.end(signal.SIGINT) == 130
    finally:
        verifying.close()
        showing.close()
    document = json.loads("".join(verifying.lines))
    assert len({pick.replica for pick in picks}) == REPLICAS
    assert len(picks) >= 20 * REPLICAS
    assert (document["picks"], document["equal"], document["different"]) == (len(picks), len(picks), 0)
    assert document["log"]["ticks_agreed"] > 0 and document["log"]["breaks"] == []
    shown = showing.documents()
    assert [row["fields"]["pick_id"] for row in shown] == [pick.pick_id.hex() for pick in picks]
    assert all(row["at"].startswith("20") for row in shown)


@pytest.mark.live("dynamo")
def test_pings_of_before_the_first_owner_have_no_time(site: ReplicaSite) -> None:
    where = f"kafka:{next(iter(site.running.values())).file}"
    with subprocess.Popen(
        [sys.executable, "-m", "app", "log", "cat", "--log", where], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        out, _ = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows and not [row for row in rows if (row["at"] or "2").startswith("1970")]


def test_a_topic_without_news_is_verified_for_a_while(topic: Topic) -> None:
    one = topic.follow("replay", "verify", "--from", "begin", "--for", "500ms")
    assert one.end() == 0, one.errors
    assert one.lines[0] == "2 picks: 2 equal, 0 different, 0 unverifiable\n"


@pytest.mark.req("EVS-08", "EVS-20")
def test_a_topic_that_grows_is_asked_under_other_settings_as_one_that_has_ended(
    topic: Topic, tmp_path: Path
) -> None:
    words = ("replay", "whatif", "--sweep", "picker=round_robin,load_based", "--json", "--from", "begin")
    followed, whole = tmp_path / "followed.csv", tmp_path / "whole.csv"

    def has_rows(count: int) -> bool:
        return followed.exists() and followed.read_text().count("\n") == 1 + count

    one = topic.follow(*words, "--csv", str(followed))
    until(lambda: has_rows(2), "both picks have a row while it follows")
    world = some_picks()
    end, replica = world.log.end_offset(), world.replica()
    for number in range(10):
        world.sample(1 + number % 3, 100 * number)
        replica.ask(f"more-{number}")
        replica.read()
    for batch in told_all(world).log.read(end, 1 << 30):
        topic.log.commit(batch.records)
    until(lambda: has_rows(12), "further picks have rows")
    assert one.end(signal.SIGTERM) == 0, one.errors
    again = Follower(*words, "--csv", str(whole), "--log", f"kafka:{topic.file}")
    assert again.end() == 0, again.errors
    document = json.loads("".join(one.lines))
    assert document["picks"] == 12 and document["moved"] > 0
    assert document == json.loads("".join(again.lines))
    assert followed.read_text() == whole.read_text()


def test_a_topic_that_is_made_anew_cannot_be_followed_on(topic: Topic) -> None:
    one = topic.follow("log", "cat", "--from", "begin")
    end = topic.say() + 1
    until(lambda: len(one.lines) == end, "all is shown")
    topic.topics.delete(topic.log.place.topic)

    def is_made() -> bool:
        try:
            topic.topics.create(topic.log.place.topic)
        except AssertionError:  # the old one is not gone everywhere
            return False
        return True

    until(is_made, "there is a topic of that name again", pause_s=0.2)
    assert one.end() == 3, one.errors
    assert "recreated" in one.errors[-1], one.errors


def test_retention_that_overtakes_a_follower_ends_it(topic: Topic) -> None:
    one = topic.follow("log", "cat", "--from", "begin")
    end = topic.say() + 1
    until(lambda: len(one.lines) == end, "all is shown")
    one.process.send_signal(signal.SIGSTOP)
    for _ in range(50):
        newest = topic.say()
    topic.topics.forget(topic.log, newest)
    one.process.send_signal(signal.SIGCONT)
    assert one.end() == 3, one.errors
    assert f"the oldest kept is {newest}" in one.errors[-1], one.errors


def test_a_broker_that_comes_back_is_followed_on(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka")
    try:
        with Topics(broker.start()) as topics:
            topic = Topic(broker, topics, tmp_path)
            try:
                one = topic.follow("log", "cat", "--from", "begin")
                end = topic.say() + 1
                until(lambda: len(one.lines) == end, "all is shown")
                broker.kill()
                until(lambda: any("cannot be read" in line for line in one.errors), "it says so")
                broker.start()
                until(lambda: any("is read again" in line for line in one.errors), "and that it goes on")
                topic.say()
                until(lambda: len(one.lines) == end + 1, "what came later is shown")
                assert one.end(signal.SIGINT) == 130
            finally:
                topic.close()
    finally:
        broker.close()
