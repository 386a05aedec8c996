"""Children end with whoever started them, and say why they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo.children import Child, ChildFailed, Nursery

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; print('up', flush=True); time.sleep(60)")


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def child(tmp_path: Path, *argv: str, name: str = "it") -> Child:
    return Child(name, argv or SLEEPER, dict(os.environ), tmp_path / f"{name}.log", tmp_path)


def wait_for(is_so, what: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_ended_child_can_be_started_again_under_a_new_pid(nursery: Nursery, tmp_path: Path) -> None:
    it = nursery.add(child(tmp_path))
    first = nursery.start("it").pid
    with pytest.raises(ChildFailed, match="running already"):
        nursery.start("it")
    assert nursery.end("it") == -signal.SIGTERM
    assert (it.pid, it.has_failed()) == (None, False)
    assert nursery.start("it").pid not in (None, first)


def test_child_that_ends_by_itself_has_failed_and_its_log_says_why(nursery: Nursery, tmp_path: Path) -> None:
    it = nursery.add(child(tmp_path, sys.executable, "-c", "import sys; print('why'); sys.exit(3)"))
    nursery.start("it")
    wait_for(lambda: it.exit_status is not None, "it never ended")
    assert nursery.failed() == [it]
    assert it.exit_status == 3
    assert "why" in it.tail()


def test_missing_program_is_told_in_the_log(nursery: Nursery, tmp_path: Path) -> None:
    it = nursery.add(child(tmp_path, str(tmp_path / "nothing")))
    nursery.start("it")
    wait_for(lambda: it.exit_status is not None, "it never ended")
    assert it.exit_status == 127
    assert "cannot start" in it.tail()


def test_child_that_ignores_the_signal_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    it = nursery.add(child(tmp_path, sys.executable, "-c", code))
    nursery.start("it")
    wait_for(lambda: "up" in it.tail(), "it never came up")
    assert nursery.end("it", patience_s=0.1) == -signal.SIGKILL


def test_stopped_child_ends_when_the_nursery_closes(tmp_path: Path) -> None:
    nursery = Nursery()
    it = nursery.add(child(tmp_path))
    pid = nursery.start("it").pid
    assert pid is not None
    wait_for(lambda: "up" in it.tail(), "it never came up")
    it.send_signal(signal.SIGSTOP)
    nursery.close()
    assert not is_alive(pid)


def test_killed_starter_takes_its_children_along(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from deploy.demo.children import Child, Nursery
nursery = Nursery()
nursery.add(Child("it", {SLEEPER!r}, dict(os.environ), Path("it.log").absolute(), Path.cwd()))
print(nursery.start("it").pid, flush=True)
time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path, env=env)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    wait_for(lambda: (tmp_path / "it.log").read_text() != "", "it never came up")
    starter.kill()
    starter.wait()
    starter.stdout.close()
    wait_for(lambda: not is_alive(pid), "the child outlived its starter")


def test_names_are_unique_and_unknown_ones_are_told(nursery: Nursery, tmp_path: Path) -> None:
    nursery.add(child(tmp_path))
    with pytest.raises(ChildFailed, match="two processes"):
        nursery.add(child(tmp_path))
    with pytest.raises(ChildFailed, match="there are: it"):
        nursery.start("other")
