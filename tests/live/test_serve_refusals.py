"""A router that cannot be what it is told to be says why in one line and ends with the right status."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.addresses import free_port
from tests.live.router_process import RouterProcess, picklog, until


def config(folder: Path, port: int) -> dict[str, Any]:
    """A valid configuration in front of nobody."""
    (folder / "store").mkdir(parents=True, exist_ok=True)
    return {
        "server": {"bind_address": f"127.0.0.1:{port}"},
        "backends": [
            {
                "name": "front",
                "type": "openai",
                "role": "unified",
                "url": f"http://127.0.0.1:{free_port({port})}",
                "models": ["tiny-chat"],
            }
        ],
        "disaggregated_serving": {"enabled": True},
        "dynamo": {
            "enabled": True,
            "discovery": {"source": "file", "file": {"root": str(folder / "store")}},
            "shim": {"backends": ["front"]},
        },
        "log": {"retention": {"bytes": "64MiB"}},
        "checkpoints": {"bytes": "16MiB"},
    }


def make(folder: Path) -> RouterProcess:
    port = free_port()
    return RouterProcess(folder, config(folder, port), port)


def alive(router: RouterProcess) -> RouterProcess:
    router.start(ready=False)
    until(lambda: router.get("/health")[0] == 200, router.log_tail)
    return router


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    router = make(tmp_path / "first")
    try:
        yield alive(router)
    finally:
        router.close()


def refused(router: RouterProcess, data: Path | None = None) -> tuple[int, list[str]]:
    """Status and error lines of a `serve` that ends by itself."""
    words = ["serve", "-c", str(router.file), "--data", str(data or router.data)]
    ended = picklog(*words, patience_s=30)
    assert "Traceback" not in ended.stderr, ended.stderr
    # lines of the process log begin with a time
    return ended.returncode, [line for line in ended.stderr.splitlines() if not line[:4].isdecimal()]


@pytest.mark.req("EVS-11")
def test_an_empty_fleet_is_alive_and_not_ready(router: RouterProcess) -> None:
    status, document = until(
        lambda: (found := router.ready())[1].get("missing") == ["route"] and found, "route"
    )
    assert (status, document) == (503, {"ready": False, "missing": ["route"], "degraded": []})


def test_a_second_owner_of_a_data_directory_names_the_first(router: RouterProcess, tmp_path: Path) -> None:
    second = make(tmp_path / "second")
    status, lines = refused(second, router.data)
    assert status == 3
    (line,) = lines
    assert str(router.pid) in line
    assert str(router.data) in line
    assert router.get("/health")[0] == 200, "the first is not disturbed"


def test_a_port_that_is_taken_is_named(router: RouterProcess, tmp_path: Path) -> None:
    second = make(tmp_path / "second")
    second.write(config(tmp_path / "second", router.port))
    status, lines = refused(second)
    assert status == 3
    (line,) = lines
    assert f"127.0.0.1:{router.port}" in line
    assert re.search("in use|taken", line)
    with socket.create_connection(("127.0.0.1", router.port), 5):
        pass


def test_a_bad_configuration_names_file_line_and_key(tmp_path: Path) -> None:
    router = make(tmp_path / "one")
    router.file.write_text("server:\n  bind_adress: 127.0.0.1:1\n")
    status, lines = refused(router)
    assert status == 2
    assert len([line for line in lines if "error" in line]) == 1
    assert f"{router.file}:2" in lines[0]
    assert "bind_adress" in lines[0]
    assert not router.data.exists()


def test_a_log_that_does_not_check_is_not_served_and_not_touched(tmp_path: Path) -> None:
    router = alive(make(tmp_path / "one"))
    try:
        until(lambda: router.ready()[1].get("missing") == ["route"], router.log_tail)
        assert router.stop() == 0
    finally:
        router.close()
    (segment,) = router.data.glob("log/*.seg")
    data = bytearray(segment.read_bytes())
    data[300] ^= 0xFF
    segment.write_bytes(data)
    status, lines = refused(router)
    assert status == 1
    (line,) = lines
    assert segment.name in line
    assert segment.read_bytes() == bytes(data), "nothing is repaired behind anybody's back"
    assert picklog("log", "verify", "--log", str(router.data)).returncode == 1


def test_a_data_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    router = make(tmp_path / "one")
    router.data.write_text("a file")
    status, lines = refused(router)
    assert status == 3
    (line,) = lines
    assert str(router.data) in line


def test_the_follower_ends_with_a_router_that_was_killed(router: RouterProcess) -> None:
    def children() -> list[int]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(router.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    (follower,) = until(children, "a follower")
    router.kill()  # while it still imports: its parent is another one when it can look
    until(lambda: not Path(f"/proc/{follower}/cmdline").exists(), "it ends too")
    assert alive(router).get("/health")[0] == 200, "and the next one owns the log"
