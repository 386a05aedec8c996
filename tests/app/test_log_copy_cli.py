"""`picklog log copy`: what it prints and how it ends. With Kafka: tests/live/test_kafka_copy.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from ingest.log.log_copy import digest_log
from tests.app.log_on_disk import some_picks, written

Captured = pytest.CaptureFixture[str]


def command(*words: str | Path) -> int:
    return run(["log", "copy", *map(str, words)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(some_picks(), tmp_path / "source")


def test_both_digests_are_printed(source: Path, tmp_path: Path, capsys: Captured) -> None:
    assert command(source, tmp_path / "copy") == EXIT_DONE
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("log ") and " records copied, " in told[1]
    assert told[2].removeprefix("source ") == told[3].removeprefix("target ").removesuffix(" (equal)")
    assert command(source, tmp_path / "copy", "--json") == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["copied"], found["equal"], found["base"]) == (0, True, None)
    assert (found["source"], found["target"]) == (str(source), str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0


def test_a_target_that_differs_is_found_wrong(
    source: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "app.log_copying.digest_log", lambda *rest: digest_log(*rest)._replace(records=id(rest[0]))
    )
    assert command(source, tmp_path / "copy") == EXIT_FOUND_WRONG
    told = capsys.readouterr()
    assert "(different)" in told.out and "the target differs from the source" in told.err


def test_places_that_cannot_be_are_refused(source: Path, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    other = written(some_picks(("only",)), tmp_path / "other")
    for first, second, status, words in (
        (source, source, EXIT_USAGE, "is the source itself"),
        (source, file, EXIT_USAGE, "is a file: name a directory or kafka:FILE"),
        (source, other, EXIT_USAGE, "name an empty place"),
        (tmp_path / "nowhere", tmp_path / "copy", EXIT_UNREACHABLE, "no such file or directory"),
        (source, "kafka:nowhere.yaml", EXIT_UNREACHABLE, "nowhere.yaml"),
        ("kafka:nowhere.yaml", tmp_path / "copy", EXIT_UNREACHABLE, "nowhere.yaml"),
    ):
        assert command(first, second) == status
        assert words in capsys.readouterr().err
