"""The environment is built once for a lock file, and a Python that does not fit is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import bootstrap

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in bootstrap.INPUTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, tmp_path / name)
    monkeypatch.setattr(bootstrap, "REPOSITORY", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "fits"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)]
)
def test_python_3_11_to_3_13_fits(version: tuple[int, ...], fits: bool) -> None:
    assert bootstrap.is_supported(version) is fits


def test_finished_environment_is_left_alone_until_the_lock_file_changes(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(bootstrap, "sync", lambda folder, extra: synced.append(extra))
    folder = repository / ".venv"
    assert bootstrap.build(folder, "all")
    assert not bootstrap.build(folder, "all")
    with (repository / "uv.lock").open("a") as lock:
        lock.write("\n")
    assert bootstrap.build(folder, "all")
    assert synced == ["all", "all"]


def test_failed_installation_is_tried_again_next_time(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, extra: str) -> None:
        raise bootstrap.BootstrapFailed("the index is away")

    monkeypatch.setattr(bootstrap, "sync", fail)
    folder = repository / ".venv"
    for _ in range(2):
        with pytest.raises(bootstrap.BootstrapFailed):
            bootstrap.build(folder, "all")


def test_broken_interpreter_counts_as_none(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert bootstrap.version_of(broken) == ""
    assert bootstrap.version_of(tmp_path / "nothing") == ""
    assert bootstrap.version_of(Path(sys.executable)) == "{}.{}".format(*sys.version_info)


def test_step_that_keeps_failing_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PAUSE_S", 0.0)
    with pytest.raises(bootstrap.BootstrapFailed, match="no route"):
        bootstrap.run(["sh", "-c", "echo no route >&2; exit 1"], {})


def test_makefile_passes_over_a_name_with_no_python_behind_it(tmp_path: Path) -> None:
    launcher = tmp_path / "python3"
    launcher.write_text("#!/bin/sh\necho 'python3: command not found' >&2\nexit 127\n")
    launcher.chmod(0o755)
    (tmp_path / "python3.13").symlink_to(launcher)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    command = ["make", "-s", "--eval", "which-python:; @echo '$(PYTHON)'", "which-python"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "python3.12", result.stderr
