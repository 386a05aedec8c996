"""`docs/tour.md`, line by line, on the data directory that `make run ONCE=1` leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import peers
from tests.live.tour import departure, steps

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "tour.md"
DEMO_S_MAX = 240
COMMAND_S_MAX = 100

pytestmark = pytest.mark.live("dynamo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where somebody stands after `make run ONCE=1`: a folder with `.run`, and nothing of the repository."""
    peers.require_dynamo()
    command = [sys.executable, "-m", "deploy.demo.run", "--once", "--run-dir", str(tmp_path / ".run")]
    made = subprocess.run(
        command,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEMO_S_MAX,
        check=False,
    )
    assert made.returncode == 0, made.stdout
    return tmp_path


def environment() -> dict[str, str]:
    """A shell whose `picklog` is the one under test; its two streams in the order of a terminal."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@pytest.mark.timeout(600)
def test_tour_prints_what_it_says(folder: Path) -> None:
    departures = []
    for step in steps(PAGE.read_text()):
        done = subprocess.run(
            ["sh", "-c", step.command],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        said = departure(step, done.stdout, done.returncode)
        if said is not None:
            departures.append(said)
    assert not departures, "\n\n".join(["", *departures])
