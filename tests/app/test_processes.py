"""Children are kept running and ended; loops have their signals; the collector leaves requests alone."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app import processes
from app.processes import (
    PARENT_VARIABLE,
    Child,
    on_stop_signals,
    run_to_end,
    stop_signals,
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that runs in the place of the interpreter; it notes its arguments and pids."""
    path = tmp_path / "program"
    monkeypatch.setattr("app.processes.sys.executable", str(path))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


async def until(holds: object, patience_s: float = 20) -> None:
    async with asyncio.timeout(patience_s):
        while not holds():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_child_that_ends_is_started_again(program: Path, tmp_path: Path) -> None:
    write(program, f'echo "$@" ${PARENT_VARIABLE} >> {tmp_path}/runs; exit 3')
    child = Child("follower", ["follower", "--data", "d"])
    child.start()
    await until(lambda: child.starts == 2)
    await child.stop()
    runs = (tmp_path / "runs").read_text().splitlines()
    assert set(runs) == {f"-m app follower --data d {os.getpid()}"}, "it is told whose child it is"
    assert child.pid is None


async def test_a_child_that_cannot_be_started_is_told_and_tried_again(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PAUSE_S_MIN", 0.01)
    child = Child("follower", [])
    with capture_logs() as lines:
        child.start()
        await until(lambda: child.starts >= 2)
        write(tmp_path / "soon", "exec sleep 60")
        (tmp_path / "soon").rename(program)
        await until(lambda: child.pid is not None)
        await child.stop()
    assert (lines[0]["event"], lines[0]["child"]) == ("a child process cannot be started", "follower")
    assert "No such file" in lines[0]["cause"]


async def test_a_child_that_does_not_listen_is_killed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_S_MAX", 0.1)
    write(program, f'trap "" TERM; touch {tmp_path}/up; while :; do sleep 0.05; done')
    child = Child("follower", [])
    child.start()
    await until(lambda: (tmp_path / "up").exists())
    pid = child.pid
    assert pid is not None
    await child.stop()
    assert child.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_child_leads_a_session_of_its_own(program: Path, tmp_path: Path) -> None:
    write(program, f"touch {tmp_path}/up; exec sleep 60")
    child = Child("follower", [])
    child.start()
    await until(lambda: (tmp_path / "up").exists())
    assert child.pid is not None
    assert os.getsid(child.pid) == child.pid, "a Ctrl-C at the terminal does not reach it"
    await child.stop()


async def test_stopping_what_never_started_is_nothing() -> None:
    child = Child("follower", [])
    await child.stop()
    assert (child.pid, child.starts) == (None, 0)


@pytest.mark.usefixtures("terminal")
def test_the_status_of_the_main_coroutine_comes_back_and_each_signal_is_told() -> None:
    told: list[int] = []

    async def main() -> int:
        on_stop_signals(lambda: told.append(1))
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: len(told) == 3)
        return 7

    assert run_to_end(main()) == 7


@pytest.mark.usefixtures("terminal")
def test_a_process_that_is_to_outlive_its_terminal_does() -> None:
    """As `nohup` starts it: with that signal ignored, which it hands on."""
    assert signal.SIGHUP in stop_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in stop_signals()

    async def main() -> int:
        on_stop_signals(lambda: None)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return 0 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 1

    assert run_to_end(main()) == 0
