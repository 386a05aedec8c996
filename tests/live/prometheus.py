"""A Prometheus of a test's own, with the repository's alarms: what it scrapes it answers queries about."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.addresses import free_port
from deploy.demo.children import Child, Nursery
from deploy.grafana.boards import BOARDS
from tests.live.peers import missing
from tests.sources import REPOSITORY

SETTINGS = REPOSITORY / "deploy" / "prometheus" / "prometheus.yml"


class Prometheus:
    """One server that scrapes each second what prometheus.yml names.

    places: target of that file -> where it is here; those that are not named are left out. labels: False
    adds none to the targets, as for a `serve`, whose group says by itself which process it is.
    """

    def __init__(self, folder: Path, places: Mapping[str, str], labels: bool = True) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            missing("no prometheus on this machine: apt-get install prometheus")
        assert binary is not None
        folder.mkdir()
        shutil.copyfile(REPOSITORY / "deploy/prometheus/alerts.yml", folder / "alerts.yml")
        settings = yaml.safe_load(SETTINGS.read_text())
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in settings["scrape_configs"]:
            del job["dns_sd_configs"], job["relabel_configs"]  # no names are served on loopback
            for static in job["static_configs"]:
                static["targets"] = [places[name] for name in static["targets"] if name in places]
                if not labels:
                    del static["labels"]
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

    def blank(self) -> set[tuple[str, str]]:
        """(panel, legend) of every line of a dashboard that draws nothing; a bad query fails the test."""
        found = set()
        for board in BOARDS:
            for panel in board.panels:
                for query in panel.queries:
                    text = query.expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
                    answer = self.ask("query", query=text)
                    assert answer is not None, text
                    if not answer["result"]:
                        found.add((panel.title, query.legend))
        return found

    def ringing(self) -> set[str]:
        """Names of the alarms that ring now. A rule that cannot be evaluated fails the test."""
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 20
        assert [rule["name"] for rule in rules if rule.get("lastError")] == []
        return {rule["name"] for rule in rules if rule["state"] == "firing"}
