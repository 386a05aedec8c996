"""`make run` as a newcomer types it, and what its log is good for afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.demo import install_dynamo
from tests.live import peers

REPOSITORY = Path(__file__).resolve().parents[2]
PICKLOG = Path(sys.executable).parent / "picklog"

pytestmark = pytest.mark.live("dynamo")


def make_run(run_dir: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """As typed in a shell: nothing of this make's own state reaches it."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "run", "ONCE=1", f"RUN_DIR={run_dir}", *settings]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize("release", ["1.6.1", "1.4.2", "1.5.0"])
def test_one_run_pins_every_chat_and_its_log_replays_elsewhere(tmp_path: Path, release: str) -> None:
    if not install_dynamo.is_installed(release):
        peers.missing(peers.GET_DYNAMO.format(release=release))
    run_dir = tmp_path / "run"
    result = make_run(run_dir, f"DYNAMO={release}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len([line for line in result.stdout.splitlines() if line.startswith("router http://")]) == 1
    assert "8 of 8 chats were answered by the picked workers" in result.stdout
    alone, apart = map(result.stdout.count, ("one worker computed all turns", "2 workers computed the turns"))
    assert alone >= 4 and alone + apart == 6  # by load alone all may go to one, too
    assert result.stdout.count(" now says dynamo.kv.enabled: ") == 2
    assert "kv_aware: " in result.stdout

    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run_dir / "data", elsewhere)
    command = [str(PICKLOG), "replay", "verify", "--json", "--log", str(elsewhere)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert verified.returncode == 0, verified.stderr
    document = json.loads(verified.stdout)
    assert (document["picks"], document["equal"], document["different"]) == (32, 32, 0)
