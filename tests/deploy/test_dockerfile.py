"""The image: pinned, small, without root, and made of what the repository's lock files name."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

import pytest

from deploy import bootstrap
from deploy.check import install_tools
from tests.deploy.image_file import DOCKERFILE, context_files, copied, health_command, stages
from tests.deploy.tools import tool
from tests.sources import PRODUCT_FOLDERS, REPOSITORY

STAGES = stages(DOCKERFILE.read_text())
BUILD, FINAL = STAGES
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_the_linter_finds_nothing() -> None:
    said = subprocess.run([tool("hadolint"), DOCKERFILE], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_the_linter_would_have_found_something(tmp_path: object) -> None:
    sloppy = "FROM python\nRUN pip install aiohttp\nUSER root\n"
    said = subprocess.run([tool("hadolint"), "-"], input=sloppy, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "DL3006" in said.stdout


def test_both_stages_begin_with_one_exact_release_of_python() -> None:
    assert {stage.base for stage in STAGES} == {BUILD.base}
    found = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", BUILD.base)
    assert found is not None
    low, high = PYPROJECT["project"]["requires-python"].split(",")
    version = tuple(int(part) for part in found[1].split("."))
    assert tuple(map(int, low[2:].split("."))) <= version < tuple(map(int, high[1:].split(".")))


def test_nothing_is_installed_without_hashes() -> None:
    for command in BUILD.texts("RUN"):
        assert "--require-hashes" in command or "--frozen" in command or "--no-deps" in command
    pins = (REPOSITORY / "deploy/build-requirements.txt").read_text()
    packages = [line for line in pins.splitlines() if line and not line.startswith(" ")]
    assert packages and all("==" in line and line.endswith("\\") for line in packages)
    assert bootstrap.UV in pins, "the lock file is read by the uv that the repository uses"
    tools = install_tools.PINS.read_text()
    assert all(line.startswith(" ") or "==" in line for line in tools.splitlines())


def test_extras_of_the_image_exist_and_serve_every_role() -> None:
    (sync,) = [text for text in BUILD.texts("RUN") if "uv sync" in text]
    extras = set(re.findall(r"--extra (\w+)", sync))
    assert extras <= set(PYPROJECT["project"]["optional-dependencies"])
    assert {"etcd", "faust", "kafka", "kv", "postgres", "uvloop"} <= extras


def test_the_image_runs_as_a_numbered_user_that_is_not_root() -> None:
    (user,) = FINAL.texts("USER")
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    (start,) = FINAL.texts("CMD")
    assert json.loads(start)[-2:] == ["--data", "/data"]
    assert FINAL.environment()["HOME"] == "/tmp"


def test_the_last_stage_takes_the_environment_and_no_tool_that_built_it() -> None:
    assert FINAL.texts("COPY") == ["--from=build /opt/picklog /opt/picklog"]
    assert "pip uninstall" in FINAL.texts("RUN")[0]
    assert "apt-get" not in DOCKERFILE.read_text()
    assert "urllib" in health_command(FINAL)[2]


@pytest.mark.parametrize("folder", PRODUCT_FOLDERS)
def test_every_product_folder_reaches_the_image(folder: str) -> None:
    placed = copied(BUILD, context_files())
    assert f"{folder}/__init__.py" in placed


def test_a_build_is_sent_no_test_no_log_and_no_configuration() -> None:
    sent = context_files()
    assert "migrations/env.py" in sent and "uv.lock" in sent
    tops = {name.split("/")[0] for name in sent}
    assert tops & {"tests", "bench", "docs", ".git", ".ci", ".run", ".venv", ".venvs"} == set()
    assert [name for name in sent if name.startswith("deploy/")] == ["deploy/build-requirements.txt"]
    assert set(copied(BUILD, sent).values()) == set(sent), "whatever is sent is used"
