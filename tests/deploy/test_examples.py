"""Ready-made configurations: the command takes each of them, without a word of warning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from tests.sources import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "examples"
SECRETS = (
    "ADMIN_TOKEN",
    "CLIENT_KEY",
    "ETCD_PASSWORD",
    "POSTGRES_PASSWORD",
    "TEAM_A_KEY",
    "TEAM_B_KEY",
    "VLLM_KEY",
)
FILES = sorted(FOLDER.glob("*.yaml"))


def validated(*words: str, secrets: bool = True) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PICKLOG__")}
    filled = {name: f"secret-{name}" for name in SECRETS} if secrets else {}
    return subprocess.run(
        [sys.executable, "-m", "app", "config", "validate", *words],
        cwd=REPOSITORY,
        env={**clean, **filled},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.req("DEP-09")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_command_takes_it_without_a_warning(path: object) -> None:
    said = validated("-c", str(path))
    assert (said.returncode, said.stdout.strip(), said.stderr) == (0, "valid", "")


def test_a_secret_that_is_not_set_is_named() -> None:
    said = validated("-c", str(FOLDER / "many-kafka.yaml"), secrets=False)
    assert said.returncode == 2 and "CLIENT_KEY" in said.stderr


def test_one_node_keeps_its_log_and_many_share_one_on_kafka() -> None:
    one = yaml.safe_load((FOLDER / "one-node.yaml").read_text())
    many = yaml.safe_load((FOLDER / "many-kafka.yaml").read_text())
    assert one["log"].get("kind", "segments") == "segments"
    assert many["log"]["kind"] == "kafka"
    for config in (one, many):
        assert config["api_keys"]["mode"] == "blocking"
        assert config["admin"]["auth"]["method"] != "none"


def test_the_guide_names_every_file() -> None:
    guide = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert [path.name for path in FILES if f"(../deploy/examples/{path.name})" not in guide] == []
