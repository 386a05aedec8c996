"""An ingest process and router replicas on one topic, each a process of its own, in front of one fleet."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from deploy.demo import chats
from deploy.demo.addresses import free_port
from deploy.demo.chats import Answer
from deploy.demo.fleet import Fleet
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.log_writer import LogWriter
from projections.events.codec import decode_record
from projections.events.control import ClockTicked, ConfigAdopted, ConfigProposed
from projections.events.envelope import Record
from projections.events.picks import PickMade, PicksLost
from replay.engine import records_of
from tests.live.router_process import RouterProcess, picklog, pool_config, until

PROPOSER = bytes([7]) * 16


class ReplicaSite:
    """place: the topic. By the name of a process: servers, where it looks for brokers, else
    `place.servers`; environments, what it is started with beside this one's.
    """

    def __init__(self, fleet: Fleet, place: KafkaPlace, folder: Path) -> None:
        self.fleet = fleet
        self.place = place
        self.folder = folder
        self.servers: dict[str, list[str]] = {}
        self.environments: dict[str, Mapping[str, str]] = {}
        self.running: dict[str, RouterProcess] = {}
        self.follower: RouterProcess | None = None
        self.checkpoints = CheckpointFolder(folder / "checkpoints")

    # Processes -----------------------------------------------------------------------

    def make(self, name: str, command: str, **settings: Any) -> RouterProcess:
        """One more process, not started."""
        port = free_port()
        config = pool_config(self.fleet, port)
        config["dynamo"]["load"]["max_staleness"] = "30s"
        config["log"] |= {
            "kind": "kafka",
            "kafka": {
                "bootstrap_servers": self.servers.get(name, list(self.place.servers)),
                "topic": self.place.topic,
                "replication_factor": self.place.replication_factor,
            },
        }
        config["audit"] = {"enabled": command == "audit"}
        config["checkpoints"] |= {"every": "10s", "folder": str(self.folder / "checkpoints")}
        environment = self.environments.get(name)
        made = RouterProcess(
            self.folder / name, {**config, **settings}, port, command, environment=environment
        )
        if command == "audit":
            self.follower = made
        else:
            self.running[name] = made
        return made

    def start(self, replicas: int) -> None:
        """An owner and replicas, all ready."""
        self.make("ingest", "ingest").start(ready=False)
        for number in range(1, replicas + 1):
            self.make(f"replica-{number}", "router").start(ready=False)
        self.wait_ready()

    def start_follower(self) -> None:
        """A follower of the topic, ready."""
        audit = self.make("audit", "audit").start(ready=False)
        until(lambda: audit.get("/ready")[0] == 200, lambda: told(audit))

    @property
    def replicas(self) -> list[RouterProcess]:
        """Those that pick."""
        return [one for name, one in self.running.items() if name.startswith("replica")]

    def wait_ready(self) -> None:
        """Until every process is ready and none is degraded."""
        for one in self.running.values():
            until(lambda one=one: one.ready()[1].get("degraded") == [], lambda one=one: told(one))  # type: ignore[misc]
            until(lambda one=one: one.ready()[0] == 200, lambda one=one: told(one))  # type: ignore[misc]

    def close(self) -> None:
        """End all; in two rounds, so that they end together."""
        for one in (*self.running.values(), *([self.follower] if self.follower is not None else [])):
            one.close()

    # Chats ---------------------------------------------------------------------------

    def burst(self, prefix: str, count: int, **settings: Any) -> list[Answer]:
        """Equal chats at the same time, the replicas in turns."""
        replicas = self.replicas
        with ThreadPoolExecutor(count) as threads:
            asked = [
                threads.submit(replicas[n % len(replicas)].chat, f"{prefix}-{n}", **settings)
                for n in range(count)
            ]
            return [one.result() for one in asked]

    # The log -------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """The whole log."""
        reader = KafkaReader.open(self.place)
        try:
            found = ((offset, data) for offset, data in records_of(reader, reader.first_offset()))
            return [decode_record(offset, data) for offset, data in found]
        finally:
            reader.close()

    def facts(self, *kinds: type) -> list[Any]:
        """Facts of these kinds, in order."""
        return [record.fact for record in self.records() if isinstance(record.fact, kinds)]

    def end(self) -> int:
        """One past the log's newest record."""
        return self.records()[-1].offset + 1

    def wait_told(self, names: set[str], since: int = 0) -> None:
        """Until the pick of each chat is in the log, or is told as lost: none is forgotten.

        since: the log's end before the first of them, so that no line of before stands for one.
        """

        def is_told() -> bool:
            records = [one for one in self.records() if one.offset >= since]
            picks = {one.fact.question.request_id for one in records if isinstance(one.fact, PickMade)}
            lost = sum(len(one.fact.lines) for one in records if isinstance(one.fact, PicksLost))  # integers
            return len(names - picks) <= lost

        until(is_told, "every pick is in the log", pause_s=0.3)

    def wait_ticks(self, count: int) -> None:
        """Until the owner has ticked this often more, so that all replicas compared their state with its."""
        before = len(self.facts(ClockTicked))
        until(lambda: len(self.facts(ClockTicked)) >= before + count, "the owner ticks", pause_s=0.3)

    def verified(self) -> dict[str, Any]:
        """One pass over the picks of all replicas, by the command."""
        file = next(iter(self.running.values())).file
        said = picklog("replay", "verify", "--json", "--log", f"kafka:{file}")
        assert said.returncode == 0, (said.stdout, said.stderr)
        found: dict[str, Any] = json.loads(said.stdout)
        assert found["different"] == 0, found
        return found

    def assert_agreed(self) -> None:
        """This test's own fold, the owner and all replicas hold the same; every pick is repeated.

        So does the follower, where there is one: its rows are the log's.
        """
        self.wait_ticks(3)
        compared = 0
        noted: dict[int, tuple[tuple[str, int], ...]] = {}
        reader = KafkaReader.open(self.place)
        try:
            start = start_fold(reader, self.checkpoints if reader.first_offset() else None)
            fold = start.fold
            assert not start.incomplete
            for offset, data in records_of(reader, start.next_offset):
                fact = fold.apply(offset, data, [])
                if isinstance(fact, ClockTicked):
                    noted[offset] = fold.digests()
                    if fact.noted_offset in noted:
                        compared += 1
                        assert fact.digests == noted[fact.noted_offset], f"the tick at {offset} differs"
        finally:
            reader.close()
        assert compared >= 2
        for one in self.running.values():
            disagreed = [
                n
                for name, n in one.metrics().items()
                if "fold_restarts_total{" in name and "disagreed" in name
            ]
            assert disagreed in ([], [0.0]), told(one)
        lost = sum(len(fact.lines) for fact in self.facts(PicksLost))  # integers
        assert self.verified()["unverifiable"] <= lost, "only what is named as lost cannot be asked again"
        if self.follower is not None:
            self.assert_audited()

    def assert_audited(self) -> None:
        """See `assert_audit_is`, of this site's follower."""
        assert self.follower is not None
        assert_audit_is(self.follower, self.facts(PickMade, PicksLost))

    def propose(self, **pick: Any) -> None:
        """Settings that no file can ask for, proposed as a replica would and adopted by the owner."""
        newest: ConfigAdopted = self.facts(ConfigAdopted)[-1]
        wanted = newest.pick._replace(**pick)

        async def say() -> None:
            log = await asyncio.to_thread(KafkaLog.open, self.place)
            try:
                writer = await LogWriter.open(log, is_owner=False)
                writer.append(ConfigProposed(PROPOSER, newest.digest, newest.settings, wanted), time=0)
                await writer.flush()
                await writer.close()
            finally:
                await asyncio.to_thread(log.close)

        asyncio.run(say())
        until(lambda: self.facts(ConfigAdopted)[-1].pick == wanted, "adopted", pause_s=0.2)
        version = self.facts(ConfigAdopted)[-1].version
        for one in self.replicas:
            until(lambda one=one: one.log_lines("settings are in force", f"version={version}"), "followed")  # type: ignore[misc]


def assert_audit_is(follower: RouterProcess, facts: Sequence[Any]) -> None:
    """The follower has a row for each pick of the log, and repeated those that it asked again.

    facts: the log's PickMade and PicksLost.
    """
    picks = {fact.pick_id.hex() for fact in facts if isinstance(fact, PickMade)}
    lost = {line.pick_id.hex() for fact in facts if isinstance(fact, PicksLost) for line in fact.lines}

    def rows() -> set[str]:
        said = picklog("audit", "query", "--json", "select pick_id from picks", "--log", str(follower.data))
        assert said.returncode == 0, said.stderr
        return {row["pick_id"] for row in json.loads(said.stdout)}

    until(lambda: picks <= rows(), lambda: f"every pick has a row: {follower.log_tail()}", pause_s=1.0)
    assert not rows() & (lost - picks), "what was lost as a whole has no row of a pick"
    assert follower.metrics()["picks_unreproduced_total"] == 0


def workers_of(answers: Sequence[Answer]) -> Counter[str]:
    """How many of these chats each worker got."""
    return Counter(answer.headers[chats.DECODE_HEADER] for answer in answers)


def told(one: RouterProcess) -> str:
    """What a process says of itself."""
    return f"{one.folder.name}: {one.ready()}\n{one.log_tail()}"
