"""Installs the programs that check what is deployed into `.venvs/deploy-tools`.

A linter for the Dockerfile, the schema of compose files, Helm's own library, the schemas of
Kubernetes and a parser of PromQL: each from the package index, pinned with hashes in
`tools.txt`. They stay out of Picklog's environment, since nothing of the product needs them.
A stamp holds the digest of the pins; where it fits, nothing is done.

    python -m deploy.check.install_tools

`tools.txt` is made from `tools.in`: uv pip compile --universal --python-version 3.11
--generate-hashes --no-header --no-annotate deploy/check/tools.in -o deploy/check/tools.txt

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
from pathlib import Path

PINS = Path(__file__).resolve().parent / "tools.txt"
REPOSITORY = PINS.parents[2]
TRIES_MAX = 4
PAUSE_S = 5.0
STAMP = "installed.sha256"


class InstallFailed(RuntimeError):
    """The tools cannot be installed; holds pip's last lines."""


def folder() -> Path:
    """Where the tools live: below PICKLOG_VENVS, else `.venvs` of the repository."""
    return Path(os.environ.get("PICKLOG_VENVS") or REPOSITORY / ".venvs") / "deploy-tools"


def program(name: str) -> Path:
    """Path of an installed program, `python` among them."""
    return folder() / "bin" / name


def is_installed() -> bool:
    stamp = folder() / STAMP
    return program("python").exists() and stamp.is_file() and stamp.read_text().strip() == _fingerprint()


def install() -> Path:
    """Install unless it is there; the folder. Safe to call from several processes."""
    home = folder()
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed():
            return home
        print(f"installing the tools that check deployments into {home.name} (once)", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        _pip(["install", "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", str(PINS)])
        (home / STAMP).write_text(_fingerprint() + "\n")
    return home


def _fingerprint() -> str:
    running = ".".join(map(str, sys.version_info[:2]))
    return hashlib.sha256(PINS.read_bytes() + running.encode()).hexdigest()


def _pip(arguments: list[str]) -> None:
    command = [str(program("python")), "-m", "pip", "--disable-pip-version-check", *arguments]
    for attempt in range(1, TRIES_MAX + 1):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        if attempt < TRIES_MAX:
            time.sleep(PAUSE_S * attempt)
    said = "\n".join((result.stderr or result.stdout).strip().splitlines()[-8:])
    raise InstallFailed(f"the tools cannot be installed ({TRIES_MAX} tries); pip says:\n{said}")


def main() -> int:
    try:
        print(install())
    except InstallFailed as problem:
        print(f"install: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
