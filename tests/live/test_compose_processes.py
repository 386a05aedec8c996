"""The processes of the compose file, started as it starts them, but without containers.

A real Kafka and a fleet are there. Commands, configuration, probes, scrape targets and dashboards
are those that are checked in; only addresses differ, by the environment. The audit writes SQLite
here, other tests have PostgreSQL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.addresses import free_port
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import Fleet
from tests.deploy.image_file import DOCKERFILE, health_command, stages
from tests.live.kafka_broker import KafkaBroker
from tests.live.prometheus import Prometheus
from tests.live.router_process import TRAFFIC_MODEL, picklog, until
from tests.sources import REPOSITORY

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(240)]
FOLDER = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
COMMANDS: dict[str, list[str]] = {
    name: service["command"]
    for name, service in COMPOSE["services"].items()
    if "build" in service and "profiles" not in service
}
STREAM: dict[str, dict[str, Any]] = {
    name: service for name, service in COMPOSE["services"].items() if "profiles" in service
}
ROUTERS = [name for name, command in COMMANDS.items() if command[0] == "router"]
EMPTY = {
    ("Decode blocks in use, by worker", "{{worker}} #{{dp_rank}}"),  # workers of these releases send none
    # a topic has no ceiling of ours
    ("Log on disk", "{{instance}} {{process}}"),
    ("Log on disk", "ceiling {{instance}} {{process}}"),
    ("How long a record is kept", "{{instance}} {{process}}"),
    ("Share of confirmed blocks, by model", "{{model}}"),  # dynamo.kv is off
    # no stream workers are there
    ("Messages that stream workers have not written", "{{instance}}"),
    ("Messages that stream workers have not written", "{{instance}} waits for the {{peer}}"),
}
"""Lines of panels that draw nothing on Kafka."""


class Site:
    """All processes of ours, by the names of their services."""

    def __init__(self, fleet: Fleet, broker: KafkaBroker, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "audit.sqlite"
        self.ports: dict[str, int] = {}
        for name in (*COMMANDS, *STREAM):
            self.ports[name] = free_port(set(self.ports.values()))
        self.nursery = Nursery()
        self.environment = self._environment(fleet, broker)
        for name, command in COMMANDS.items():
            self._add(name, name, [*command, "--bind", f"127.0.0.1:{self.ports[name]}"], {"SINK": "sql"})
        # as the profile has them: the follower sends, and workers write
        follower = [*COMMANDS["audit"], "--bind", f"127.0.0.1:{self.ports['audit']}"]
        self._add("audit that sends", "audit", follower, {"SINK": "stream"})
        for name, service in STREAM.items():
            command = [str(self.ports[name]) if word == "8080" else word for word in service["command"]]
            self._add(name, name, command, {"SINK": "stream", "STREAM__WEB_BIND": "127.0.0.1"})

    def _add(self, name: str, folder: str, command: list[str], audit: dict[str, str]) -> None:
        places = {
            "/etc/picklog/config.yaml": str(FOLDER / COMPOSE["configs"]["picklog"]["file"]),
            "/data": str(self.folder / folder),
        }
        argv = [sys.executable, "-m", "app", *(places.get(word, word) for word in command)]
        environment = {**self.environment, **{f"PICKLOG__AUDIT__{key}": text for key, text in audit.items()}}
        self.nursery.add(Child(name, argv, environment, self.folder / f"{name}.log", REPOSITORY))

    def _environment(self, fleet: Fleet, broker: KafkaBroker) -> dict[str, str]:
        frontend = fleet.plan.frontends[0]
        backend = {
            "name": "frontend",
            "url": fleet.frontend_url(frontend.name),
            "models": fleet.plan.models(frontend.namespace),
        }
        overrides: dict[str, Any] = {
            "BACKENDS": [backend],
            "HEALTH_CHECKS__INTERVAL": "1s",
            "DYNAMO__DISCOVERY__SOURCE": "file",
            "DYNAMO__DISCOVERY__FILE__ROOT": str(fleet.file_store),
            "DYNAMO__LOAD__DIRECT_ALLOW_CIDRS": ["127.0.0.0/8"],
            "DYNAMO__SHIM__BACKENDS": ["frontend"],
            "LOG__KAFKA__BOOTSTRAP_SERVERS": [broker.address()],
            "LOG__KAFKA__TOPIC": "compose",
            "LOG__KAFKA__AUDIT_TOPIC": "compose.audit",
            "LOG__KAFKA__ROLLUPS_TOPIC": "compose.rollups",
            "CHECKPOINTS__EVERY": "2s",
            "CHECKPOINTS__PEERS": [f"http://127.0.0.1:{self.ports['audit']}"],
            "AUDIT__URL": f"sqlite+aiosqlite:///{self.database}",
        }
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PICKLOG__")}
        texts = {
            name: text if isinstance(text, str) else json.dumps(text) for name, text in overrides.items()
        }
        secrets = {"CLIENT_KEY": "client", "ADMIN_TOKEN": "admin", "POSTGRES_PASSWORD": "unused"}
        return {**clean, **secrets, **{f"PICKLOG__{name}": text for name, text in texts.items()}}

    def ask(self, name: str, path: str, body: Any = None, key: str = "") -> int:
        """The status of an answer, 0 where nobody answers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[name]}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                reply.read()
                status: int = reply.status
                return status
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except OSError:
            return 0

    def chat(self, name: str, key: str = "client") -> int:
        body = {"model": TRAFFIC_MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
        return self.ask(name, "/v1/chat/completions", body, key)

    def is_healthy(self, name: str, path: str) -> bool:
        """What the image's own check says of a process, asked at this path."""
        command = [sys.executable, *health_command(stages(DOCKERFILE.read_text())[-1])[1:]]
        address = {**os.environ, "PICKLOG_HEALTH": f"http://127.0.0.1:{self.ports[name]}{path}"}
        return subprocess.run(command, env=address, check=False, stderr=subprocess.DEVNULL).returncode == 0

    def picks(self) -> int:
        """Rows of picks in the database, 0 before there is a table."""
        count = "select count(*) as picks from picks"
        words = ["--db", f"sqlite+aiosqlite:///{self.database}", "--format", "json"]
        said = picklog("audit", "query", count, *words)
        return int(json.loads(said.stdout)[0]["picks"]) if said.returncode == 0 else 0

    def told(self) -> str:
        """The ends of all process logs."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module")
def site(
    demo_fleet: Fleet, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Prometheus]]:
    folder = tmp_path_factory.mktemp("compose")
    made = Site(demo_fleet, kafka, folder)
    prometheus: Prometheus | None = None
    try:
        for name in COMMANDS:
            made.nursery.start(name)
        until(lambda: all(made.ask(name, "/ready") == 200 for name in COMMANDS), made.told, 90)
        places = {f"{name}:8080": f"127.0.0.1:{made.ports[name]}" for name in COMMANDS}
        prometheus = Prometheus(folder / "prometheus", places)
        yield made, prometheus
    finally:
        if prometheus is not None:
            prometheus.close()
        made.nursery.close(patience_s=20)


def test_every_process_is_healthy_by_the_images_own_check(site: tuple[Site, Prometheus]) -> None:
    made, _ = site
    assert all(made.is_healthy(name, "/health") for name in COMMANDS)


def test_every_router_serves_who_has_the_key_and_the_follower_writes_each_pick(
    site: tuple[Site, Prometheus],
) -> None:
    made, _ = site
    assert [made.chat(name, "") for name in ROUTERS] == [401] * len(ROUTERS)
    for _ in range(3):
        assert [made.chat(name) for name in ROUTERS] == [200] * len(ROUTERS), made.told()

    def rows() -> bool:
        count = "select count(*) as picks, count(distinct replica_id) as routers from picks"
        said = picklog(
            "audit", "query", count, "--db", f"sqlite+aiosqlite:///{made.database}", "--format", "json"
        )
        return (
            said.returncode == 0
            and '"picks": 9' in said.stdout
            and f'"routers": {len(ROUTERS)}' in said.stdout
        )

    until(rows, made.told)


def test_the_scrape_of_the_compose_file_finds_all_and_every_panel_draws(
    site: tuple[Site, Prometheus],
) -> None:
    made, prometheus = site

    def scraped() -> bool:
        assert made.chat(ROUTERS[0]) == 200
        found = prometheus.ask("query", query='count_over_time(up{job="picklog"}[1m]) >= 8')
        return bool(found and len(found["result"]) == len(COMMANDS))

    until(scraped, made.told)
    up = prometheus.ask("query", query='sum by (process) (up{job="picklog"})')["result"]
    assert {one["metric"]["process"]: one["value"][1] for one in up} == {
        "ingest": "2",
        "router": "3",
        "audit": "1",
    }
    ready = prometheus.ask("query", query="sum by (process) (picklog_ready)")["result"]
    assert {one["metric"]["process"]: one["value"][1] for one in ready} == {
        "ingest": "2",
        "router": "3",
        "audit": "1",
    }
    assert prometheus.blank() == EMPTY
    assert prometheus.ringing() == set()


def test_the_profile_s_workers_write_what_the_follower_sends_when_it_is_started_anew(
    site: tuple[Site, Prometheus],
) -> None:
    made, _ = site
    assert made.nursery.end("audit", signal.SIGTERM, patience_s=45) == 0
    before = made.picks()
    for name in ("audit that sends", *STREAM):
        made.nursery.start(name)
    views = {name: service["environment"]["PICKLOG_HEALTH"] for name, service in STREAM.items()}
    paths = {name: "/" + view.partition("//")[2].partition("/")[2] for name, view in views.items()}
    until(lambda: all(made.is_healthy(name, path) for name, path in paths.items()), made.told, 60)
    assert made.chat(ROUTERS[0]) == 200
    until(lambda: made.picks() > before, made.told, 60)
    for name in ("audit that sends", *STREAM):
        assert made.nursery.end(name, signal.SIGTERM, patience_s=45) == 0, (name, made.told())


def test_each_process_ends_within_its_grace(site: tuple[Site, Prometheus]) -> None:
    made, _ = site
    for name in [name for name in reversed(COMMANDS) if name != "audit"]:  # it has ended
        assert made.nursery.end(name, signal.SIGTERM, patience_s=45) == 0, (name, made.told())
