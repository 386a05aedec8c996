"""Releases are pinned whole, and what is installed is not installed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.demo import install_dynamo
from deploy.demo.fleet_plan import RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_every_package_of_a_release_is_pinned_to_one_version(release: str) -> None:
    pins = install_dynamo.pins_of(release).read_text().split("\n")[:-1]
    assert f"ai-dynamo=={release}" in pins
    assert f"ai-dynamo-runtime=={release}" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", pin)] == []


def test_unknown_release_is_refused_with_those_that_exist() -> None:
    with pytest.raises(install_dynamo.InstallFailed, match=r"1\.4\.2, 1\.5\.0, 1\.6\.1"):
        install_dynamo.install("9.9.9")


def test_installation_counts_only_with_the_stamp_of_these_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path))
    release = RELEASES[0]
    assert not install_dynamo.is_installed(release)
    python = install_dynamo.python_of(release)
    python.parent.mkdir(parents=True)
    python.touch()
    stamp = install_dynamo.environment_of(release) / install_dynamo.STAMP
    stamp.write_text("another digest\n")
    assert not install_dynamo.is_installed(release)
    stamp.write_text(install_dynamo.fingerprint(release) + "\n")
    assert install_dynamo.install(release) == python, "nothing is to be built"


def test_failed_installation_leaves_no_stamp_and_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path))
    monkeypatch.setattr(install_dynamo, "PAUSE_S", 0.0)
    release = RELEASES[0]

    def fake_environment(folder: Path, **_: object) -> None:
        pip = folder / "bin" / "python"
        pip.parent.mkdir(parents=True)
        pip.write_text("#!/bin/sh\necho try >> tries\necho 'the index is away' >&2\nexit 1\n")
        pip.chmod(0o755)

    monkeypatch.setattr("venv.create", fake_environment)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(install_dynamo.InstallFailed, match="the index is away"):
        install_dynamo.install(release)
    assert (tmp_path / "tries").read_text().count("try") == install_dynamo.TRIES_MAX
    assert not install_dynamo.is_installed(release)
