"""`picklog audit` on a topic: checkpoints, rows, figures at its own door, and checkpoints for peers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.audit_database import AuditError
from app.audit_producer import PARTITIONS
from app.audit_query import ask, plain
from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.peer_checkpoints import PeerCheckpoints
from app.sql_tables import moment
from deploy.demo.addresses import free_port
from ingest.log.kafka_keyed import KeyedSpans
from ingest.log.kafka_log import KafkaLog
from projections.bounds import SECOND_US
from projections.events.control import CheckpointDue
from tests.app.audit_site import sqlite_url
from tests.app.log_on_disk import some_picks
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import REPOSITORY, picklog, until

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(180)]


class Site:
    """A topic with picks and a due checkpoint, and a follower on it."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.topics, self.folder = topics, folder
        self.place = topics.place()
        self.port = free_port()
        self.data = folder / "follower"
        self.file = folder / "audit.yaml"
        kafka = {
            "bootstrap_servers": [topics.broker.address()],
            "topic": self.place.topic,
            "replication_factor": 1,
        }
        self.config: dict[str, Any] = {
            "server": {"bind_address": f"127.0.0.1:{self.port}"},
            "log": {"kind": "kafka", "kafka": kafka},
        }
        self.write()

    def write(self, **sections: Any) -> None:
        self.file.write_text(yaml.safe_dump(self.config | sections))

    def fill(self) -> tuple[KafkaLog, int]:
        """Commit a story that ends with a due checkpoint; its offset."""
        world = some_picks()
        due = world.say(CheckpointDue("time"))
        log = self.topics.log(self.place)
        for batch in world.log.read(0, 1 << 30):
            log.commit(batch.records)
        return log, due

    @contextmanager
    def following(self) -> Iterator[subprocess.Popen[bytes]]:
        words = ["-m", "app", "audit", "-c", str(self.file), "--data", str(self.data)]
        with (self.folder / "audit.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, cwd=REPOSITORY)
        try:
            yield process
        finally:
            process.terminate()
            status = process.wait(30)
        assert status == 0, self.said()

    def said(self) -> str:
        return (self.folder / "audit.log").read_text()

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float | None:
        lines = [line for line in self.ask("/metrics")[1].splitlines() if line.startswith(name + " ")]
        return float(lines[0].rpartition(" ")[2]) if lines else None

    def roll_ups(self) -> list[dict[str, Any]]:
        """The table `rollups` by key; empty before there is one."""
        question = "SELECT * FROM rollups ORDER BY minute, model"
        try:
            found = asyncio.run(ask(sqlite_url(self.data), question))
        except AuditError:
            return []
        return [dict(zip(found.columns, map(plain, row), strict=True)) for row in found.rows]

    def told_roll_ups(self) -> list[dict[str, Any]]:
        """The newest message of each key in the topic, by key."""
        return asyncio.run(self._newest())

    async def _newest(self) -> list[dict[str, Any]]:
        place = self.place._replace(topic=self.config["log"]["kafka"]["rollups_topic"])
        spans = await KeyedSpans.open(place, PARTITIONS)
        newest: dict[tuple[str, str], dict[str, Any]] = {}
        try:
            for partition, (first, end) in enumerate(await spans.ends()):
                async for stretch in spans.read(partition, first, end):
                    for found in stretch:
                        row = json.loads(found.value or b"")
                        assert (row.pop("version"), row.pop("table")) == (1, "rollups")
                        row["minute"] = plain(moment(row["minute"]))
                        newest[row["minute"], row["model"]] = row
        finally:
            await spans.close()
        return [newest[key] for key in sorted(newest)]


@pytest.fixture
def site(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    with Topics(kafka) as topics:
        yield Site(topics, tmp_path)


@pytest.mark.req("EVS-13")
def test_it_writes_what_is_due_and_says_how_it_stands(site: Site) -> None:
    log, due = site.fill()
    store = CheckpointFolder(site.data / "checkpoints")
    with site.following():
        until(lambda: [info.offset for info in store.list()] == [due], site.said)
        until(lambda: site.metric("picklog_audit_lag_records") == 0, site.said)
        assert site.ask("/health")[0] == site.ask("/ready")[0] == 200
        assert site.metric("picklog_checkpoint_age_seconds") == 0
        assert site.metric("picklog_log_end_offset") == log.end_offset()
        assert site.metric("picklog_audit_offset") == log.end_offset() - 1
        assert site.metric("picklog_audit_lag_seconds") == 0
        assert site.metric("picklog_audit_messages_sent_total") == 0, "it writes the database"
        assert site.metric("picks_unreproduced_total") == 0
        listed = json.loads(site.ask("/admin/checkpoints")[1])
        assert listed["log_id"] == log.log_id.hex() and len(listed["checkpoints"]) == 1
    asked = picklog("audit", "query", "--json", "select count(*) as n from picks", "--log", str(site.data))
    assert '"n": 2' in asked.stdout or "2" in asked.stdout, asked


def test_without_stream_workers_the_follower_tells_roll_ups_in_their_topic_too(site: Site) -> None:
    """The newest message of each key is the row of the table, also of a minute with late news."""
    section = site.config["log"]["kafka"]
    section["rollups_topic"] = f"{section['topic']}.rollups"
    site.write(audit={"rollups": {"grace": "0s"}})
    world = some_picks()
    replica = world.replica()
    log = site.topics.log(site.place)
    written = 0

    def minute(*requests: str) -> None:
        """Some picks, and time until they are rolled up."""
        nonlocal written
        for request in requests:
            replica.read()
            replica.end(replica.ask(request, tokens=64))
        world.pass_time(120 * SECOND_US)
        world.say(CheckpointDue("time"))
        for batch in world.log.read(written, 1 << 30):
            log.commit(batch.records)
        written = world.log.end_offset()

    def told(minutes: int) -> bool:
        table = site.roll_ups()
        return len(table) == minutes and site.told_roll_ups() == table

    late = replica.ask("answered late", tokens=64)
    minute("third")
    with site.following():
        until(lambda: told(1), site.said)
        assert [row["ended"] for row in site.roll_ups()] == [3]
        replica.end(late)
        minute("fourth")
        until(lambda: told(2), site.said)
        assert [row["ended"] for row in site.roll_ups()] == [4, 1], "the first minute was told anew"
    minute("fifth", "sixth")
    with site.following():
        until(lambda: told(3), site.said)
    assert sum(row["picks"] for row in site.roll_ups()) == 7
    assert "should be set otherwise" not in site.said() and "roll-ups wait" not in site.said()


def test_messages_for_stream_workers_and_a_topic_that_takes_none_are_told(site: Site) -> None:
    section = site.config["log"]["kafka"]
    section["audit_topic"] = f"{section['topic']}.audit"
    site.write(audit={"sink": "stream"})
    log, _ = site.fill()
    with site.following():
        until(lambda: site.metric("picklog_audit_lag_records") == 0, site.said)
        assert site.metric("picklog_audit_offset") == log.end_offset() - 1
        assert site.metric("picklog_audit_lag_seconds") == 0
        sent = site.metric("picklog_audit_messages_sent_total")
        assert sent is not None and sent > 0
        assert site.metric('picklog_audit_failures_total{cause="refused"}') == 0
    section["audit_topic"] = f"{section['topic']}.narrow"
    site.topics.create(section["audit_topic"], 3, max_message_bytes="9437184")
    site.write(audit={"sink": "stream"})
    with site.following():
        until(lambda: site.metric('picklog_audit_failures_total{cause="refused"}'), site.said)
        assert site.metric("picklog_audit_offset") == -1
    assert not (site.data / "audit.sqlite").exists()


async def test_a_replica_without_a_checkpoint_fetches_it_from_the_follower(
    site: Site, tmp_path: Path
) -> None:
    _, due = site.fill()
    reader = site.topics.reader(site.place)
    own = CheckpointFolder(tmp_path / "own")
    with site.following():
        until(lambda: CheckpointFolder(site.data / "checkpoints").list(), site.said)
        peers = PeerCheckpoints([f"http://127.0.0.1:{site.port}"], {}, own, shares=False)
        fetched = await peers.fetch(reader)
    assert fetched is not None and fetched.offset == due
    assert start_fold(reader, own).next_offset == due + 1


def test_it_waits_for_an_owner_to_make_the_topic(site: Site) -> None:
    with site.following():
        until(lambda: "waiting for the log's owner" in site.said(), site.said)
        _, due = site.fill()
        store = CheckpointFolder(site.data / "checkpoints")
        until(lambda: [info.offset for info in store.list()] == [due], site.said)


def test_replicas_may_share_a_folder_that_offline_commands_use_too(site: Site, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    site.write(checkpoints={"folder": str(shared)})
    log, due = site.fill()
    with site.following():
        until(lambda: [info.offset for info in CheckpointFolder(shared).list()] == [due], site.said)
    site.topics.forget(log, due)
    done = picklog("replay", "verify", "--log", f"kafka:{site.file}")
    assert done.returncode == 0, done
    assert "gone" not in done.stdout + done.stderr
