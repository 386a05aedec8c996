"""`picklog audit` on a topic: checkpoints, rows, figures at its own door, and checkpoints for peers."""

from __future__ import annotations

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

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.peer_checkpoints import PeerCheckpoints
from deploy.demo.addresses import free_port
from ingest.log.kafka_log import KafkaLog
from projections.events.control import CheckpointDue
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
