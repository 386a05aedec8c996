"""The adapter on the library `etcd3` keeps the same promises, in an environment of its own.

In ours the library does not import (it needs a protobuf below 4), so this builds the other
environment and runs `etcd3_cases.py` in it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.live import etcd3_venv
from tests.live.peers import etcd_binary, missing

CASES = Path(__file__).with_name("etcd3_cases.py")


@pytest.mark.live("etcd")
@pytest.mark.timeout(600)
def test_whole_suite_passes_in_the_librarys_own_environment() -> None:
    etcd_binary()
    try:
        python = etcd3_venv.build()
    except (OSError, subprocess.SubprocessError):
        missing("the environment of etcd3 cannot be built: python -m tests.live.etcd3_venv")
    # The library and its protobuf warn about themselves; all other warnings stay errors.
    ignored = ["-W", "ignore:Call to deprecated create function:DeprecationWarning"]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *ignored, str(CASES)]
    ran = subprocess.run(
        command, cwd=etcd3_venv.CHECKOUT, capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-1_000:]
    assert " passed" in ran.stdout
