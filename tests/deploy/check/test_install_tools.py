"""The tools are pinned with hashes, and what is installed is not installed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.check import install_tools


def test_every_wanted_tool_is_pinned_to_the_version_that_is_asked_for() -> None:
    wanted = (install_tools.PINS.parent / "tools.in").read_text().split()
    pins = install_tools.PINS.read_text().splitlines()
    names = [line.split()[0] for line in pins if not line.startswith(" ")]
    assert set(wanted) <= set(names)
    following = [*pins[1:], ""]
    bare = [
        name
        for name, after in zip(pins, following, strict=True)
        if name[0] != " " and "--hash=sha256:" not in after
    ]
    assert bare == []


def test_installation_counts_only_with_the_stamp_of_these_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path))
    assert not install_tools.is_installed()
    python = install_tools.program("python")
    python.parent.mkdir(parents=True)
    python.touch()
    stamp = install_tools.folder() / install_tools.STAMP
    stamp.write_text("another digest\n")
    assert not install_tools.is_installed()
    monkeypatch.setattr(install_tools, "PAUSE_S", 0.0)

    def fake_environment(folder: Path, **_: object) -> None:
        python.write_text("#!/bin/sh\ntouch asked\n")
        python.chmod(0o755)

    monkeypatch.setattr("venv.create", fake_environment)
    monkeypatch.chdir(tmp_path)
    assert install_tools.install() == install_tools.folder()
    assert (tmp_path / "asked").exists()
    (tmp_path / "asked").unlink()
    install_tools.install()
    assert not (tmp_path / "asked").exists(), "nothing is installed twice"


def test_failed_installation_leaves_no_stamp_and_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path))
    monkeypatch.setattr(install_tools, "PAUSE_S", 0.0)

    def fake_environment(folder: Path, **_: object) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text("#!/bin/sh\necho try >> tries\necho 'the index is away' >&2\nexit 1\n")
        python.chmod(0o755)

    monkeypatch.setattr("venv.create", fake_environment)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(install_tools.InstallFailed, match="the index is away"):
        install_tools.install()
    assert (tmp_path / "tries").read_text().count("try") == install_tools.TRIES_MAX
    assert not install_tools.is_installed()
    assert install_tools.main() == 3
