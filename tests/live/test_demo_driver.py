"""The driver of `make run` before a stand-in router: what it must notice, and that it ends what it began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.demo.addresses import get_json
from tests.live import peers

REPOSITORY = Path(__file__).resolve().parents[2]
STAND_IN = REPOSITORY / "tests" / "deploy" / "demo" / "fake_picklog.py"

pytestmark = pytest.mark.live("dynamo")


class Driver:
    """Starts the driver with a stand-in for the console script."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._picklog = folder / "picklog"
        self._picklog.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
        self._picklog.chmod(0o755)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *options: str, fake: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "deploy.demo.run", "--run-dir", str(self.run_dir)]
        command += ["--picklog", str(self._picklog), *options]
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "PICKLOG_FAKE": fake},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, *options: str, fake: str = "") -> tuple[int, str]:
        process = self.start(*options, fake=fake)
        said, _ = process.communicate(timeout=200)
        return process.returncode, said

    def pids(self) -> list[int]:
        rows = json.loads((self.run_dir / "endpoints.json").read_text())["workers"]
        return [row["pid"] for row in rows]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    peers.require_dynamo()
    driver = Driver(tmp_path)
    yield driver
    for process in driver.processes:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def wait_for(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_one_run_ends_well_when_all_agree_and_keeps_the_data_of_the_run_before(driver: Driver) -> None:
    for _ in range(2):
        status, said = driver.run("--once")
        assert status == 0, said
    lines = said.splitlines()
    assert len([line for line in lines if line.startswith("router http://127.0.0.1:")]) == 1
    assert "8 of 8 chats were answered by the picked workers" in lines
    document = json.loads((driver.run_dir / "endpoints.json").read_text())
    assert sorted(document) == ["frontend", "models", "router", "workers"]
    assert document["models"] == ["tiny-chat", "tiny-solo"]
    assert all(row["instance_id"].isdecimal() for row in document["workers"])
    assert len(document["workers"]) == 6
    assert (driver.run_dir / "data").is_dir()
    assert (driver.run_dir / "data.before").is_dir()
    assert not any(is_alive(pid) for pid in driver.pids())


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("lie", "the frontend says decode was"),
        ("silent", "pinned no worker"),
        ("differs", "1 different"),
        ("strays", "2 workers computed the turns"),
    ],
)
def test_one_run_fails_when_somebody_tells_another_story(driver: Driver, fake: str, words: str) -> None:
    status, said = driver.run("--once", fake=fake)
    assert status != 0
    assert words in said


def test_router_that_ends_at_its_start_is_told_with_its_last_words(driver: Driver) -> None:
    status, said = driver.run("--once", fake="dies")
    assert status == 1
    assert "server.bind_address is not an address" in said
    assert "router http" not in said


def test_demo_stays_until_it_is_asked_to_end_and_takes_everything_along(driver: Driver) -> None:
    process = driver.start()
    wait_for((driver.run_dir / "endpoints.json").exists, "the demo never came up")
    document = json.loads((driver.run_dir / "endpoints.json").read_text())
    wait_for(lambda: get_json(document["router"] + "/ready")["ready"], "the router is not ready")
    status, said = driver.run()
    assert (status, "runs in" in said) == (1, True), "a second demo in the same folder is refused"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 130), said
    assert not any(is_alive(pid) for pid in driver.pids())
    with pytest.raises(OSError):
        get_json(document["router"] + "/ready")


def test_killed_demo_leaves_nothing_behind(driver: Driver) -> None:
    process = driver.start()
    wait_for((driver.run_dir / "endpoints.json").exists, "the demo never came up")
    pids = driver.pids()
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(is_alive(pid) for pid in pids), "workers outlived the demo")


def test_older_release_is_reached_from_outside_its_namespace(driver: Driver) -> None:
    release = "1.4.2"
    from deploy.demo import install_dynamo

    if not install_dynamo.is_installed(release):
        peers.missing(peers.GET_DYNAMO.format(release=release))
    process = driver.start("--release", release)
    wait_for((driver.run_dir / "endpoints.json").exists, "the demo never came up")
    document = json.loads((driver.run_dir / "endpoints.json").read_text())
    wait_for(lambda: get_json(document["router"] + "/ready")["ready"], "the router is not ready")
    with urllib.request.urlopen(document["frontend"] + "/v1/models", timeout=10) as answer:
        assert {row["id"] for row in json.load(answer)["data"]} == {"tiny-chat", "tiny-solo"}
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert "router http://127.0.0.1:" in said
