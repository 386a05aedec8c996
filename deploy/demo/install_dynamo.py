"""Installs one Dynamo release into an environment of its own, `.venvs/dynamo-VERSION`.

`releases/VERSION.txt` pins every package that mocker and frontend import, and nothing else:
the wheels' own list names packages that are not needed here, one of which does not build, so
the installation takes the pins as they stand (`--no-deps`). A stamp holds the digest of the
pins and of this interpreter's version; where it fits, nothing is done.

    python -m deploy.demo.install_dynamo [VERSION ...]

Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from deploy.demo.fleet_plan import DEFAULT_RELEASE, DEMO_FOLDER

REPOSITORY = DEMO_FOLDER.parent.parent
TRIES_MAX = 4
PAUSE_S = 5.0
STAMP = "installed.sha256"


class InstallFailed(RuntimeError):
    """The release cannot be installed; says which one and the installer's last lines."""


def environment_of(release: str) -> Path:
    """Where the release lives: below PICKLOG_VENVS, else `.venvs` of the repository."""
    return Path(os.environ.get("PICKLOG_VENVS") or REPOSITORY / ".venvs") / f"dynamo-{release}"


def python_of(release: str) -> Path:
    return environment_of(release) / "bin" / "python"


def pins_of(release: str) -> Path:
    path = DEMO_FOLDER / "releases" / f"{release}.txt"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt")))
        raise InstallFailed(f"no pins for Dynamo {release}; there are: {known}")
    return path


def fingerprint(release: str) -> str:
    """What the stamp must say for an installation to count as done."""
    running = ".".join(map(str, sys.version_info[:2]))
    return hashlib.sha256(pins_of(release).read_bytes() + running.encode()).hexdigest()


def is_installed(release: str) -> bool:
    stamp = environment_of(release) / STAMP
    return (
        stamp.is_file() and python_of(release).exists() and stamp.read_text().strip() == fingerprint(release)
    )


def install(release: str) -> Path:
    """Install unless it is there; returns its interpreter. Safe to call from several processes."""
    wanted = fingerprint(release)
    folder = environment_of(release)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(release):
            return python_of(release)
        print(f"installing Dynamo {release} into {folder.name} (once, half a minute)", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        _pip(release, ["install", "--no-deps", "--quiet", "-r", str(pins_of(release))])
        (folder / STAMP).write_text(wanted + "\n")
    return python_of(release)


def _pip(release: str, arguments: Sequence[str]) -> None:
    command = [str(python_of(release)), "-m", "pip", "--disable-pip-version-check", *arguments]
    for attempt in range(1, TRIES_MAX + 1):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        if attempt < TRIES_MAX:
            time.sleep(PAUSE_S * attempt)
    said = "\n".join((result.stderr or result.stdout).strip().splitlines()[-8:])
    raise InstallFailed(f"Dynamo {release} cannot be installed ({TRIES_MAX} tries); pip says:\n{said}")


def main(argv: Sequence[str]) -> int:
    try:
        for release in argv or [DEFAULT_RELEASE]:
            print(f"{release} {install(release)}")
    except InstallFailed as problem:
        print(f"install: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
