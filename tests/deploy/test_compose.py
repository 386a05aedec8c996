"""The compose file: valid by the specification's schema, and as careful as it says it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config_storage import AuditTarget
from deploy.demo import install_kafka
from tests.deploy.tools import tool
from tests.sources import REPOSITORY

FOLDER = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_schema_of_compose_files_takes_it() -> None:
    said = checked(FOLDER / "compose.yaml")
    assert said.returncode == 0, said.stdout


def test_the_schema_would_have_found_a_misspelt_key(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace"))
    assert checked(wrong).returncode == 1


def test_it_has_two_ingesters_three_routers_and_one_follower() -> None:
    always = [service for service in OURS.values() if "profiles" not in service]
    roles = [service["command"][0] for service in always]
    assert sorted(roles) == ["audit", "ingest", "ingest", "router", "router", "router"]
    assert all(
        service["command"][1:] == ["-c", "/etc/picklog/config.yaml", "--data", "/data"] for service in always
    )


def test_a_profile_brings_stream_workers_and_the_sink_that_feeds_them() -> None:
    workers = [service for service in OURS.values() if "profiles" in service]
    assert len(workers) == 2
    for service in OURS.values():
        assert service["environment"]["PICKLOG__AUDIT__SINK"] == "${COMPOSE_PROFILES:-sql}"
    for service in workers:
        (profile,) = service["profiles"]
        assert profile == AuditTarget.STREAM.value, "what the variable says is the sink"
        assert service["command"][:4] == ["audit", "stream", "-c", "/etc/picklog/config.yaml"]
        port = service["command"][service["command"].index("--web-port") + 1]
        assert service["environment"]["PICKLOG_HEALTH"] == f"http://127.0.0.1:{port}/progress/"
        assert service["environment"]["PICKLOG__AUDIT__STREAM__WEB_BIND"] == "0.0.0.0"  # Prometheus asks
        assert service["networks"] == ["picklog"] and "ports" not in service, (
            "its view asks nobody who they are"
        )
        assert set(service["depends_on"]) == {"kafka", "postgres"}


@pytest.mark.parametrize("profiles", ["", "stream", "stream,more"])
def test_the_configuration_is_taken_with_and_without_the_profile_and_no_other(profiles: str) -> None:
    environment = dict.fromkeys(re.findall(r"\$\{(\w+):\?", (FOLDER / "compose.yaml").read_text()), "x")
    sink = profiles or AuditTarget.SQL.value
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PICKLOG__")}
    said = subprocess.run(
        [
            sys.executable,
            "-m",
            "app",
            "config",
            "validate",
            "-c",
            FOLDER / COMPOSE["configs"]["picklog"]["file"],
        ],
        cwd=REPOSITORY,
        env={**clean, **environment, "PICKLOG__AUDIT__SINK": sink},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == (2 if "," in profiles else 0), said.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_only_loopback_is_published(name: str) -> None:
    ports = SERVICES[name].get("ports", [])
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_bounded_checked_and_restarted(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w/.-]+:v?\d+\.\d+[\w.-]*", service["image"]), "an exact release"
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)
    assert service["restart"] == "unless-stopped"
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["logging"]["options"]["max-size"]
    assert "healthcheck" in service or service in OURS.values(), "ours have the image's own"
    assert name == "kafka" or service["read_only"] is True


@pytest.mark.parametrize("name", OURS)
def test_our_processes_have_no_capabilities_and_write_to_volumes_alone(name: str) -> None:
    service = OURS[name]
    assert service["cap_drop"] == ["ALL"] and "user" not in service, "the image's user is not root"
    assert f"{name}:/data" in service["volumes"], "a data directory of its own"


def test_every_volume_network_and_configuration_exists() -> None:
    named = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert {name for name in named if not name.startswith(".")} == set(COMPOSE["volumes"])
    assert all((FOLDER / name).exists() for name in named if name.startswith("."))
    assert {name for service in SERVICES.values() for name in service["networks"]} == set(COMPOSE["networks"])
    assert (FOLDER / COMPOSE["configs"]["picklog"]["file"]).is_file()


def test_no_secret_stands_in_the_file_and_each_is_asked_for() -> None:
    text = (FOLDER / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    assert set(re.findall(r"\$\{(\w+)", text)) == asked | {"COMPOSE_PROFILES"}
    example = (FOLDER / ".env.example").read_text().splitlines()
    assert {line for line in example if not line.startswith("#")} == {f"{name}=" for name in asked}
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|TOKEN|KEY", name):
                assert str(value).startswith("${"), name
    ignored = (REPOSITORY / ".gitignore").read_text().split()
    assert "deploy/.env" in ignored


def test_kafka_is_the_release_that_is_tested_and_postgresql_is_where_the_configuration_says() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{install_kafka.VERSION}"
    config = yaml.safe_load((FOLDER / COMPOSE["configs"]["picklog"]["file"]).read_text())
    assert config["log"]["kafka"]["bootstrap_servers"] == ["kafka:9092"]
    assert config["log"]["kafka"]["replication_factor"] == 1
    assert "@postgres/" in config["audit"]["url"]
    assert config["checkpoints"]["peers"] == ["http://audit:8080"] and "audit" in SERVICES
    environment = SERVICES["kafka"]["environment"]
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    assert environment["KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE"] == "false"
