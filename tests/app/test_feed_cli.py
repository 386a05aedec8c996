"""`picklog replay feed`: staged, asked under another configuration, without a socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint_store import CheckpointFolder
from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE
from app.log_places import checkpoint_folder, open_log
from ingest.log.segment_log import SegmentLog
from replay.log_walk import records_of
from tests.app.log_on_disk import SETTINGS, written
from tests.replay.captured import busy_log, checkpoint_at

Captured = pytest.CaptureFixture[str]

NO_SOCKETS = """
import os, sys
FORBIDDEN = {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"}
def watch(event, arguments):
    if event in FORBIDDEN:
        os.write(2, f"a socket: {event} {arguments}\\n".encode())
        os._exit(97)
sys.addaudithook(watch)
from app.cli import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    world = busy_log()
    data = written(world, tmp_path / "data")
    checkpoint_at(world, CheckpointFolder(checkpoint_folder(data)), 30)
    return data


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.yaml"
    path.write_text("dynamo: {load: {max_staleness: 100ms}}\n")
    return path


def feed(*words: str | Path) -> int:
    return run(["replay", "feed", *map(str, words)])


def records(place: Path) -> list[tuple[int, bytes]]:
    with open_log(place) as opened:
        return [*records_of(opened.reader, opened.reader.first_offset())]


def staged_end(staging: Path) -> int:
    """How far a staging log is, 0 before it is there."""
    if not any(staging.glob("log/*.seg")):
        return 0
    with open_log(staging) as opened:
        return opened.reader.end_offset()


def one_error_line(capsys: Captured) -> str:
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("picklog: ")]
    assert len(told) == 1
    return told[0]


@pytest.mark.req("EVS-12")
def test_a_feed_with_another_configuration_opens_no_socket(data: Path, other: Path, tmp_path: Path) -> None:
    words = [
        "replay",
        "feed",
        "--log",
        str(data),
        "--to",
        str(tmp_path / "staging"),
        "-c",
        str(other),
        "--json",
    ]
    started = [sys.executable, "-c", NO_SOCKETS, *words]
    done = subprocess.run(started, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == EXIT_DONE, done.stderr
    document: Any = json.loads(done.stdout)
    assert document["other"]["same"] + document["other"]["moved"] == 24
    assert document["other"]["moved"] > 0
    assert document["breaks"] == [] and document["stopped"] is None
    assert records(tmp_path / "staging") == records(data)


def test_the_watch_over_sockets_sees_one(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        NO_SOCKETS.replace(
            "from app.cli import run", "import socket; socket.socket().connect(('127.0.0.1', 9))"
        ),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 97


@pytest.mark.req("EVS-12", "DYN-12")
def test_rows_of_both_pickers_stand_in_the_staging_database(
    data: Path, other: Path, tmp_path: Path, capsys: Captured
) -> None:
    staging = tmp_path / "staging"
    assert feed("--log", data, "--to", staging, "-c", other) == EXIT_DONE
    told = capsys.readouterr().out
    assert "under " in told and "24 picks asked" in told
    sql = "SELECT count(*) AS n, sum(moved) AS m FROM picks JOIN shadow_picks USING (lane, log_offset)"
    assert run(["audit", "query", sql, "--log", str(staging), "--format", "json"]) == EXIT_DONE
    found: Any = json.loads(capsys.readouterr().out)
    row = (found["rows"] if isinstance(found, dict) else found)[0]
    values = [*row.values()] if isinstance(row, dict) else row
    assert values[0] == 24
    assert run(["replay", "verify", "--log", str(staging)]) == EXIT_DONE
    assert "24 equal, 0 different, 0 unverifiable" in capsys.readouterr().out


def test_a_second_feed_goes_on_where_the_first_ended(data: Path, tmp_path: Path, capsys: Captured) -> None:
    staging = tmp_path / "staging"
    assert feed("--log", data, "--to", staging, "--no-audit") == EXIT_DONE
    capsys.readouterr()
    store = SegmentLog.open_owner(data, SETTINGS)
    store.commit([records(data)[-1][1]])
    store.close()
    assert feed("--log", data, "--to", staging, "--no-audit", "--json") == EXIT_DONE
    document = json.loads(capsys.readouterr().out)
    assert document["records"] == 1
    assert records(staging) == records(data)
    assert not (staging / "audit.sqlite").exists()


def test_a_capture_is_fed_like_a_log(data: Path, other: Path, tmp_path: Path, capsys: Captured) -> None:
    capture = tmp_path / "a.capture"
    run(["capture", "export", "--log", str(data), "--out", str(capture), "--from", "34", "--redact"])
    capsys.readouterr()
    assert feed("--log", capture, "--to", tmp_path / "staging", "--json") == EXIT_DONE
    document = json.loads(capsys.readouterr().out)
    assert document["breaks"] == []
    assert records(tmp_path / "staging") == records(capture)


@pytest.mark.req("EVS-12")
def test_a_growing_log_is_followed_until_a_signal(data: Path, other: Path, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    words = ["--log", str(data), "--to", str(staging), "--follow", "-c", str(other), "--json"]
    store = SegmentLog.open_owner(data, SETTINGS)
    started = subprocess.Popen(
        [sys.executable, "-c", NO_SOCKETS, "replay", "feed", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        newest = records(data)[-1][1]
        deadline = time.monotonic() + 60
        for _ in range(3):
            end = store.commit([newest]) + 1
            while staged_end(staging) < end:
                assert started.poll() is None and time.monotonic() < deadline
        started.send_signal(signal.SIGTERM)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.communicate()
        store.close()
    assert started.returncode == EXIT_DONE, err
    document = json.loads(out)
    assert document["end_offset"] == end
    assert document["other"]["same"] + document["other"]["moved"] == 24


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (("--to", "data"), "is the log itself", EXIT_USAGE),
        (("--to", "other", "-c", "missing.yaml"), "picklog: missing.yaml: cannot be read", EXIT_UNREACHABLE),
        (("--to", "staging", "--from", "nonsense"), "nonsense", EXIT_USAGE),
        (("--to", "staging", "--from", "99999"), "beyond the log", EXIT_USAGE),
        (("--to", "staging", "--listen", "garbage"), "--listen garbage", EXIT_USAGE),
    ],
)
def test_bad_usage_is_one_line_and_makes_nothing(
    data: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    told: str,
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert feed("--log", "data", *words) == status
    assert told in one_error_line(capsys)
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_a_capture_is_not_followed_and_another_log_s_staging_not_fed(
    data: Path, tmp_path: Path, capsys: Captured
) -> None:
    capture = tmp_path / "a.capture"
    run(["capture", "export", "--log", str(data), "--out", str(capture)])
    capsys.readouterr()
    assert feed("--log", capture, "--to", tmp_path / "staging", "--follow") == EXIT_USAGE
    assert "never grows" in one_error_line(capsys)
    assert feed("--log", data, "--to", tmp_path / "staging", "--no-audit") == EXIT_DONE
    another = written(busy_log(2), tmp_path / "another")
    capsys.readouterr()
    assert feed("--log", another, "--to", tmp_path / "staging") == EXIT_USAGE
    assert "of another log" in one_error_line(capsys)
