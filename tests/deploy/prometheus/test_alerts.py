"""Alarms: Prometheus takes the files, rules ring when they should, and each is explained to who gets it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from deploy.check import install_tools
from tests.deploy.exported import SCRAPED, everything
from tests.deploy.tools import asked, promtool
from tests.sources import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "prometheus"
PROMQL = install_tools.PINS.parent / "promql.py"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), *words], capture_output=True, text=True, check=False)


def test_prometheus_takes_configuration_and_rules() -> None:
    said = run("check", "config", FOLDER / "prometheus.yml")
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(RULES)} rules found" in said.stdout


def test_rules_ring_when_they_should_and_not_before() -> None:
    said = run("test", "rules", FOLDER / "alerts_test.yml")
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_rule_that_rings_too_late_would_be_found(tmp_path: Path) -> None:
    text = (FOLDER / "alerts.yml").read_text()
    assert "for: 30s" in text, "the wait of PicklogNobodyReady"
    (tmp_path / "alerts.yml").write_text(text.replace("for: 30s", "for: 30m"))
    (tmp_path / "alerts_test.yml").write_text((FOLDER / "alerts_test.yml").read_text())
    assert run("test", "rules", tmp_path / "alerts_test.yml").returncode != 0


async def test_every_name_and_label_of_every_rule_is_exported() -> None:
    known = await everything()
    texts = [rule["expr"] for rule in RULES]
    for rule, found in zip(RULES, asked(PROMQL, texts), strict=True):
        assert "error" not in found, (rule["alert"], found)
        for selector in found["selectors"]:
            assert known.faults(selector["name"], selector["matchers"]) == [], rule["alert"]
        assert set(found["labels"]) <= known.labels(), rule["alert"]


def test_every_alarm_is_explained_under_its_name_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "operating.md").read_text()
    section = page.partition("## What each alarm means")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `(Picklog\w+)` \|", section, re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in RULES}
    for name in explained:
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{name}` |")]
        assert row.split("|")[2].strip() == severities[name], name


def test_names_are_unique_and_every_alarm_says_what_is_wrong() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    assert {rule["labels"]["severity"] for rule in RULES} == {"page", "ticket"}
    assert all(rule["annotations"]["summary"] for rule in RULES)


async def test_no_label_of_the_scrape_hides_one_of_ours() -> None:
    """Prometheus renames ours where both have one name."""
    own = set().union(*(await everything()).series.values())
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    added = {label for job in jobs for static in job["static_configs"] for label in static["labels"]}
    added |= {rule["target_label"] for job in jobs for rule in job["relabel_configs"]} - {"instance"}
    assert added == SCRAPED - {"instance", "job"}
    assert not SCRAPED & own


def test_every_process_of_the_compose_file_is_scraped_once() -> None:
    compose = yaml.safe_load((REPOSITORY / "deploy" / "compose.yaml").read_text())
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for static in job["static_configs"] for target in static["targets"]]
    looked_up = [name for job in jobs for one in job["dns_sd_configs"] for name in one["names"]]
    assert all(one["port"] == 8080 for job in jobs for one in job["dns_sd_configs"])
    optional = [name for name, service in compose["services"].items() if "profiles" in service]
    assert sorted(looked_up) == sorted(optional), "a target that nobody started would be down"
    targets += [f"{name}:8080" for name in looked_up]
    ours = [
        name for name, service in compose["services"].items() if "picklog" in str(service.get("image", ""))
    ]
    assert sorted(targets) == sorted(f"{name}:8080" for name in ours)
