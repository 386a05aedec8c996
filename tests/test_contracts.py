"""The import contracts hold, and each of them bites: a forbidden import put into a copy breaks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import PRODUCT_FOLDERS, REPOSITORY

LINT = Path(sys.executable).parent / "lint-imports"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(LINT), "--no-logo"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copyfile(REPOSITORY / "pyproject.toml", folder / "pyproject.toml")
    for name in PRODUCT_FOLDERS:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_contracts_hold(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("projections/identity.py", "import time"),
        ("projections/load/store.py", "from asyncio import sleep"),
        ("projections/events/codec.py", "from projections import fold"),
        ("router/picker/pick.py", "import random"),
        ("router/picker/pick.py", "from router import settings"),
        ("router/pinning.py", "import asyncio"),
        ("router/service.py", "import grpc"),
        ("router/service.py", "from ingest.wire import zmtp"),
        ("ingest/log/appender.py", "import time"),
        ("ingest/wire/zmtp.py", "import socket"),
        ("ingest/wire/zmtp.py", "from projections.load import store"),
        ("ingest/discovery/settings.py", "from ingest.log import appender"),
        ("replay/verify.py", "from router import pinning"),
        ("replay/verify.py", "from ingest.wire import zmtp"),
        ("app/tail.py", "import time"),
        ("app/follower.py", "from ingest.log import segment_log"),
    ],
)
def test_contract_is_broken_by(copy: Path, path: str, line: str) -> None:
    file = copy / path
    text = file.read_text()
    file.write_text(f"{text}\n{line}\n")
    try:
        result = lint(copy)
    finally:
        file.write_text(text)
    assert result.returncode == 1, f"nobody minds `{line}` in {path}"
    assert "BROKEN" in result.stdout
