"""Builds the repository's own environment from `uv.lock`, with nothing but Python and the package index.

    python deploy/bootstrap.py                            .venv, with the extra `all` and the tools for tests
    python deploy/bootstrap.py --venv .venvs/etcd3 --extra etcd3

The lock file is read by uv, pinned here and kept in an environment of its own. Where uv reaches
no index but pip does (a mirror that only pip is told about), pip installs the same pins, checked
against the lock file's hashes. A stamp makes the next call return at once.

Standard library only; runs in Python 3.11, 3.12 and 3.13.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

UV = "uv==0.13.9"
REPOSITORY = Path(__file__).resolve().parent.parent
TRIES_MAX = 4
PAUSE_S = 5.0
STAMP = "installed.sha256"
PYTHON_FIRST, PYTHON_LAST = (3, 11), (3, 13)
INPUTS = ("uv.lock", "pyproject.toml", "deploy/bootstrap.py")


class BootstrapFailed(RuntimeError):
    """The environment cannot be built; says which step failed and what its program said last."""


def is_supported(version: tuple[int, ...]) -> bool:
    return PYTHON_FIRST <= version[:2] <= PYTHON_LAST


def fingerprint(repository: Path, extra: str, version: str) -> str:
    """What a finished environment's stamp says: the digest of all that decides what is in it."""
    digest = hashlib.sha256(f"{extra} {version} {repository}\n".encode())
    for name in INPUTS:
        digest.update((repository / name).read_bytes())
    return digest.hexdigest()


def version_of(python: Path) -> str:
    """`3.11` for a working interpreter, empty for a missing, broken or unsuitable one."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    version = result.stdout.strip()
    return (
        version if result.returncode == 0 and is_supported(tuple(int(n) for n in version.split("."))) else ""
    )


def build(folder: Path, extra: str) -> bool:
    """Make the environment hold what the lock file says. Returns False when it did already."""
    locks = REPOSITORY / ".venvs"
    locks.mkdir(exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with (locks / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = version_of(python)
        stamp = folder / STAMP
        if version and stamp.is_file() and stamp.read_text() == fingerprint(REPOSITORY, extra, version):
            return False
        if not version:
            make_environment(folder)
            version = version_of(python)
        print(f"installing Picklog and its pinned packages into {folder.name} (once)", file=sys.stderr)
        sync(folder, extra)
        stamp.write_text(fingerprint(REPOSITORY, extra, version))
    return True


def make_environment(folder: Path) -> None:
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as problem:
        raise BootstrapFailed(
            f"this Python makes no virtual environment ({problem}); on Debian: apt-get install python3-venv"
        ) from problem


def sync(folder: Path, extra: str) -> None:
    """uv first; should it fail for good, pip with the hashes of the same lock file."""
    uv = uv_program()
    options = ["--frozen", "--extra", extra, "--group", "dev"]
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder), "UV_NO_PROGRESS": "1"}
    environment.pop("VIRTUAL_ENV", None)
    python = folder / "bin" / "python"
    try:
        run([uv, "sync", "--quiet", *options, "--python", str(python)], environment)
        return
    except BootstrapFailed as problem:
        print(f"bootstrap: {problem}\nbootstrap: trying pip with the lock file's hashes", file=sys.stderr)
    pins = folder / "requirements.txt"
    export = [uv, "export", "--quiet", *options, "--no-emit-project", "--format", "requirements.txt"]
    run([*export, "--output-file", str(pins)], environment)
    run([str(python), "-m", "ensurepip"], environment)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run([*pip, "--require-hashes", "-r", str(pins)], environment)
    run([*pip, "--no-deps", "--editable", str(REPOSITORY)], environment)


def uv_program() -> str:
    """Path of the pinned uv, installed at need."""
    folder = REPOSITORY / ".venvs" / UV.replace("==", "-")
    program = folder / "bin" / "uv"
    if not program.exists():
        make_environment(folder)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", UV], dict(os.environ))
    return str(program)


def run(command: Sequence[str], environment: dict[str, str]) -> None:
    """Run a step that may need the network, up to TRIES_MAX times."""
    for attempt in range(1, TRIES_MAX + 1):
        result = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            return
        if attempt < TRIES_MAX:
            time.sleep(PAUSE_S * attempt)
    said = "\n".join(f"    {line}" for line in (result.stderr or result.stdout).strip().splitlines()[-8:])
    raise BootstrapFailed(f"`{' '.join(command[:4])} ...` failed {TRIES_MAX} times; it said:\n{said}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the environment from uv.lock.")
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv")
    parser.add_argument("--extra", default="all")
    options = parser.parse_args(argv)
    if not is_supported(tuple(sys.version_info[:2])):
        print("bootstrap: Picklog needs Python 3.11, 3.12 or 3.13", file=sys.stderr)
        return 2
    try:
        build(options.venv.absolute(), options.extra)
    except BootstrapFailed as problem:
        print(f"bootstrap: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
