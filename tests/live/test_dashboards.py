"""A real Prometheus scrapes a real `picklog serve` before a fleet: every panel draws, no alarm rings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.addresses import free_port
from deploy.demo.chats import Answer
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import Fleet
from deploy.grafana.boards import BOARDS
from tests.live.peers import missing
from tests.live.router_process import RouterProcess, until
from tests.sources import REPOSITORY

EMPTY = {
    ("Decode blocks in use, by worker", "{{worker}} #{{dp_rank}}"),  # workers of these releases send none
    ("Records not folded yet", "rows of {{instance}} {{process}}"),  # of a follower that runs alone
}
"""Lines of panels that draw nothing before one `serve` and the demo's fleet."""


class Prometheus:
    """One server that scrapes one target each second, with the repository's alarms."""

    def __init__(self, folder: Path, target: str) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            missing("no prometheus on this machine: apt-get install prometheus")
        assert binary is not None
        folder.mkdir()
        shutil.copyfile(REPOSITORY / "deploy/prometheus/alerts.yml", folder / "alerts.yml")
        labels = {"targets": [target], "labels": {"process": "router"}}
        jobs = [{"job_name": "picklog", "scrape_interval": "1s", "static_configs": [labels]}]
        settings = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._nursery = Nursery()
        argv = [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        argv.append(f"--web.listen-address=127.0.0.1:{port}")
        self._nursery.add(Child("prometheus", argv, dict(os.environ), folder / "prometheus.log", folder))
        self._nursery.start("prometheus")

    def ask(self, path: str, **words: str) -> Any:
        """The `data` of an answer of its API, None while there is none."""
        with_words = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(with_words, timeout=10) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as refusal:
            if refusal.code == 503:  # it has just been started
                return None
            pytest.fail(f"{words}: {refusal.read().decode()}")
        except OSError:
            return None

    def close(self) -> None:
        self._nursery.end("prometheus", signal.SIGTERM, patience_s=20)
        self._nursery.close(patience_s=5)


@pytest.fixture(scope="module")
def site(
    demo_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RouterProcess, Prometheus]]:
    folder = tmp_path_factory.mktemp("dashboards")
    router = RouterProcess.before(demo_fleet, folder / "router")
    prometheus: Prometheus | None = None
    router.config["checkpoints"]["every"] = "2s"
    router.write(router.config)
    try:
        router.start(models=2)
        prometheus = Prometheus(folder / "prometheus", f"127.0.0.1:{router.port}")
        answers: list[Answer] = []

        def is_scraped_after_traffic() -> bool:
            answers.append(router.chat(f"panel-{len(answers)}", streamed=len(answers) % 2 == 0))
            assert prometheus is not None
            found = prometheus.ask("query", query="count_over_time(picklog_ready[1m])")
            return bool(found and found["result"] and int(found["result"][0]["value"][1]) >= 8)

        until(is_scraped_after_traffic, router.log_tail)
        assert all(answer.status == 200 for answer in answers)
        yield router, prometheus
    finally:
        if prometheus is not None:
            prometheus.close()
        router.close()


def test_every_panel_draws(site: tuple[RouterProcess, Prometheus]) -> None:
    _, prometheus = site
    empty = set()
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                text = query.expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
                found = prometheus.ask("query", query=text)
                assert found is not None, text
                if not found["result"]:
                    empty.add((panel.title, query.legend))
    assert empty == EMPTY


def test_no_alarm_rings_and_every_rule_is_evaluated(site: tuple[RouterProcess, Prometheus]) -> None:
    _, prometheus = site
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20
    assert [rule["name"] for rule in rules if rule.get("lastError")] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_an_alarm_rings_once_its_cause_is_there(site: tuple[RouterProcess, Prometheus]) -> None:
    """A refused configuration rings at once; the others wait for minutes."""
    router, prometheus = site
    good = router.file.read_text()
    router.file.write_text("server: {bind: nowhere}\n")

    def ringing() -> bool:
        alerts = prometheus.ask("alerts")["alerts"]
        return "PicklogReloadRefused" in {
            one["labels"]["alertname"] for one in alerts if one["state"] == "firing"
        }

    until(ringing, router.log_tail)
    router.file.write_text(good)
    assert router.ready()[0] == 200, "the settings in force stay"
