"""What happens to a router's process and its files at the worst moment: kills, deletions, closed streams."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ingest.log.durable_mark import MARK_NAME
from tests.live.hostile_peers import Hostile, hostile
from tests.live.router_process import REPOSITORY, picklog, until

PLAIN = b'{"model":"tiny-chat","messages":[]}'
KILLS = 4


def chats_until(peers: Hostile, ending: threading.Event, prefix: str, answered: list[str]) -> None:
    """Chats, one after the other; the ids of those that were answered."""
    number = 0
    while not ending.is_set():
        number += 1
        identifier = f"{prefix}-{number}"
        try:
            if peers.status(PLAIN, b"x-request-id: " + identifier.encode()) == 200:
                answered.append(identifier)
        except (OSError, IndexError, ValueError):  # it is not there, or died while it answered
            time.sleep(0.01)


def test_kills_at_any_moment_under_traffic_lose_no_answered_pick(tmp_path: Path) -> None:
    draw = random.Random(5)
    answered: list[str] = []
    with hostile(tmp_path) as peers:
        for kill in range(KILLS):
            if kill:
                peers.router.start()
            ending = threading.Event()
            threads = [
                threading.Thread(target=chats_until, args=(peers, ending, f"{kill}-{n}", answered))
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            time.sleep(draw.uniform(0.05, 1.2))
            peers.router.kill()
            ending.set()
            for thread in threads:
                thread.join()
            assert picklog("log", "verify", "--log", str(peers.router.data)).returncode == 0
        peers.router.verify()
        logged = {record["fields"]["question"]["request_id"] for record in peers.router.records("PickMade")}
    assert len(answered) > KILLS
    assert set(answered) <= logged


def test_a_data_directory_that_is_removed_ends_the_router_and_the_next_one_begins_anew(
    tmp_path: Path,
) -> None:
    with hostile(tmp_path) as peers:
        assert peers.status(PLAIN) == 200
        shutil.rmtree(peers.router.data)
        assert peers.router.wait_end() == 3
        assert peers.router.log_lines("the process ends", "deleted")
        peers.router.start()
        assert peers.status(PLAIN) == 200
        assert peers.router.verify()["picks"] >= 1
        assert peers.router.stop() == 0
        for segment in (peers.router.data / "log").glob("*.seg*"):
            segment.unlink()
        peers.router.start(ready=False)
        assert peers.router.wait_end() == 1
        assert peers.router.log_lines("were acknowledged and no segment is there", MARK_NAME)


@pytest.mark.parametrize("closed", ["<&-", ">&- 2>&-"])
def test_a_router_without_standard_streams_serves_and_stops(tmp_path: Path, closed: str) -> None:
    with hostile(tmp_path) as peers:
        assert peers.router.stop() == 0
        argv = [sys.executable, "-m", "app", "serve", "-c", str(peers.router.file)]
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closed}', "sh", *argv, "--data", str(peers.router.data)], cwd=REPOSITORY
        )
        try:
            until(lambda: peers.router.ready()[0] == 200, "ready")
            assert peers.status(PLAIN) == 200
            process.terminate()
            assert process.wait(40) == 0
        finally:
            process.kill()
            process.wait()


def test_a_file_where_a_directory_should_be_is_one_line(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"server": {"bind_address": "127.0.0.1:0"}}))
    for data in (place, place / "below"):
        told = picklog("serve", "-c", str(config), "--data", str(data))
        assert told.returncode == 3, told
        assert "Traceback" not in told.stderr
        assert told.stderr.splitlines()[-1].startswith("picklog: ")
