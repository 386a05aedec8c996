"""The environment of the extra `etcd3`, apart from ours: the library needs a protobuf below 4.

`python -m tests.live.etcd3_venv` builds `.venvs/etcd3` in the checkout and prints its interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / ".venvs" / "etcd3"
BUILD_S_MAX = 300
# What the adapter and its tests import, and nothing of the rest of Picklog.
PACKAGES = (
    "etcd3==0.12.0",
    "protobuf>=3.20,<4",
    "grpcio>=1.66",
    "blake3",
    "xxhash",
    "msgpack",
    "cryptography",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "looptime",
)


def interpreter() -> Path:
    return FOLDER / "bin" / "python"


def is_built() -> bool:
    """Whether the environment is there and its library imports."""
    if not interpreter().exists():
        return False
    probe = [str(interpreter()), "-c", "import etcd3, grpc, blake3, xxhash, msgpack, pytest, looptime"]
    return subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0


def build() -> Path:
    """Build it where it is missing. Raises CalledProcessError when the packages cannot be had."""
    if is_built():
        return interpreter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    uv = shutil.which("uv")
    if uv is not None:
        _run([uv, "venv", "-q", "--python", sys.executable, str(FOLDER)])
        _run([uv, "pip", "install", "-q", "--python", str(interpreter()), *PACKAGES])
    else:
        _run([sys.executable, "-m", "venv", str(FOLDER)])
        _run([str(interpreter()), "-m", "pip", "install", "-q", *PACKAGES])
    return interpreter()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=BUILD_S_MAX, cwd=CHECKOUT, env=dict(os.environ))


if __name__ == "__main__":
    print(build())
