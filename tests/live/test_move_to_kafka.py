"""A site moves from one machine to Kafka as docs/operating.md says: the log goes on with the same offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.addresses import free_port
from deploy.demo.fleet import Fleet
from tests.live.kafka_broker import KafkaBroker
from tests.live.router_process import RouterProcess, picklog, pool_config, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(240)]


def copied(source: str, target: str) -> dict[str, Any]:
    said = picklog("log", "copy", source, target, "--json")
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    assert found["source_digest"] == found["target_digest"]
    return found


def verified(log: str) -> dict[str, Any]:
    said = picklog("replay", "verify", "--json", "--log", log)
    assert said.returncode == 0, (said.stdout, said.stderr)
    found: dict[str, Any] = json.loads(said.stdout)
    assert found["different"] == found["unverifiable"] == 0
    return found


def test_a_log_moves_to_kafka_and_back_with_every_pick(
    demo_fleet: Fleet, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = {"bootstrap_servers": [kafka.address()], "topic": "moved", "replication_factor": 1}
    site = tmp_path / "site.yaml"
    site.write_text(yaml.safe_dump({"log": {"kafka": topic}}))
    place = f"kafka:{site}"

    def process(name: str, command: str) -> RouterProcess:
        port = free_port()
        config = pool_config(demo_fleet, port)
        if command != "serve":
            config["log"] |= {"kind": "kafka", "kafka": topic}
        config["checkpoints"]["every"] = "2s"
        config["audit"] = {"enabled": False}
        return RouterProcess(tmp_path / name, config, port, command)

    before = process("before", "serve")
    made: list[RouterProcess] = [before]
    try:
        before.start(models=2)
        assert [before.chat(f"before-{n}").status for n in range(4)] == [200] * 4
        until(lambda: list((before.data / "checkpoints").glob("*.checkpoint")), before.log_tail)
        copied(str(before.data), place)
        assert before.chat("late").status == 200
        assert before.stop() == 0
        copied(str(before.data), place)
        assert verified(place)["picks"] == 5
        for name in ("ingest", "router"):
            made.append(process(name, name))
            made[-1].start(ready=False)
        router = made[-1]
        router.wait_ready(models=2)
        assert [router.chat(f"after-{n}").status for n in range(4)] == [200] * 4
        until(lambda: verified(place)["picks"] == 9, router.log_tail)
        said = picklog("replay", "explain", "before-2", "--json", "--log", place)
        assert said.returncode == 0 and json.loads(said.stdout)["repeated"] == "equal"
        for one in reversed(made[1:]):
            assert one.stop() == 0, one.log_tail()
    finally:
        for one in made:
            one.close()
    copied(place, str(tmp_path / "back"))
    assert verified(str(tmp_path / "back"))["picks"] == 9
