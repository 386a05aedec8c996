"""`picklog log`: what it prints and how it ends."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_INTERRUPTED, EXIT_UNREACHABLE, EXIT_USAGE
from ingest.log.durable_mark import MARK_NAME
from ingest.log.segment_files import log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, Pinged
from tests.app.captures import capture_of
from tests.app.log_on_disk import some_picks
from tests.app.timed_log import WRITER, offset_of_second, write_seconds

SETTINGS = SegmentSettings(segment_bytes=16 << 10, reserve_bytes=0, durable=False, allocate_bytes=4096)
SECONDS = 60
END = 1 + SECONDS * 10

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = SegmentLog.open_owner(tmp_path, SETTINGS)
    write_seconds(log, SECONDS)
    log.close()
    return tmp_path


def command(*words: str | Path) -> int:
    return run(["log", *map(str, words)])


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_stat_tells_ranges_sizes_and_rates(data: Path, capsys: Captured) -> None:
    assert command("stat", "--log", data, "--json") == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["first_offset"], found["end_offset"], found["records"]) == (0, END, END)
    assert found["span_seconds"] == pytest.approx(SECONDS, abs=0.2)
    assert found["records_per_second"] == pytest.approx(10, rel=0.1)
    assert len(found["segments"]) > 2
    assert found["stored_bytes"] == sum(path.stat().st_size for path in log_folder(data).glob("*.seg"))
    assert found["first_at"].startswith("2026-09-21T14:13:20")
    assert found["has_owner"] is False
    assert command("stat", "--log", data) == EXIT_DONE
    assert f"offsets 0 to {END - 1}" in capsys.readouterr().out


def test_cat_prints_records_as_lines(data: Path, capsys: Captured) -> None:
    assert command("cat", "--log", data, "--from", "1", "--to", "0:4") == EXIT_DONE
    found = lines(capsys.readouterr().out)
    assert [row["offset"] for row in found] == [1, 2, 3]
    assert [row["kind"] for row in found] == ["ClockTicked", "Pinged", "CheckpointDue"]
    assert found[0]["at"] == "2026-09-21T14:13:20.000001Z"
    assert found[1]["at"] is None


def test_cat_takes_times_and_kinds(data: Path, capsys: Captured) -> None:
    start, stop = "2026-09-21T14:13:30Z", "2026-09-21T14:13:35Z"
    assert command("cat", "--log", data, "--from", start, "--to", stop, "--kind", "ClockTicked") == EXIT_DONE
    found = [row["offset"] for row in lines(capsys.readouterr().out)]
    assert found == [offset_of_second(n) for n in range(10, 15)]


def test_cat_shows_the_whole_log_by_default(data: Path, capsys: Captured) -> None:
    assert command("cat", "--log", data) == EXIT_DONE
    assert [row["offset"] for row in lines(capsys.readouterr().out)] == list(range(END))


def test_cat_shows_what_it_cannot_decode_and_goes_on(data: Path, capsys: Captured) -> None:
    log = SegmentLog.open_owner(data, SETTINGS)
    log.commit([b"not a record at all", encode_record(5, WRITER, 1, 9999, CheckpointDue("x"))])
    log.close()
    assert command("cat", "--log", data, "--from", str(END)) == EXIT_DONE
    odd, good = lines(capsys.readouterr().out)
    assert odd["refused"] == "check word differs"
    assert good["kind"] == "CheckpointDue"


@pytest.mark.parametrize(
    "words",
    [["--from", "yesterday"], ["--from", "99999"], ["--to", "1:5"], ["--kind", "Nonsense"]],
)
def test_cat_refuses_what_it_does_not_understand(data: Path, capsys: Captured, words: list[str]) -> None:
    assert command("cat", "--log", data, *words) == EXIT_USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1


def test_verify_walks_a_good_log(data: Path, capsys: Captured) -> None:
    assert command("verify", "--log", data, "--json") == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["good"], found["records"], found["first_bad"]) == (True, END, None)
    assert found["anchor"] == "00" * 32
    assert command("verify", "--log", data) == EXIT_DONE
    assert "anchor 0000" in capsys.readouterr().out


def test_verify_names_the_first_bad_place(data: Path, capsys: Captured) -> None:
    path = log_folder(data) / segment_name(0)
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    assert command("verify", "--log", data, "--json") == EXIT_FOUND_WRONG
    told = capsys.readouterr()
    bad = json.loads(told.out)["first_bad"]
    assert bad["segment"] == segment_name(0)
    assert 0 < bad["byte"] <= 5000
    assert f"offset {bad['offset']}" in told.err
    assert len(told.err.splitlines()) == 1


def test_verify_reports_acknowledged_records_that_are_missing(data: Path, capsys: Captured) -> None:
    newest = sorted(log_folder(data).glob("*.seg"))[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    assert command("verify", "--log", data, "--json") == EXIT_FOUND_WRONG
    told = capsys.readouterr()
    assert json.loads(told.out)["missing_acknowledged"] == 10
    assert "were acknowledged" in told.err
    (log_folder(data) / MARK_NAME).unlink()
    assert command("verify", "--log", data) == EXIT_DONE
    assert "unfinished batch" in capsys.readouterr().out


def test_a_log_in_use_can_be_looked_at(data: Path, capsys: Captured) -> None:
    log = SegmentLog.open_owner(data, SETTINGS)
    for words in (["verify"], ["stat", "--json"], ["cat", "--from", "end"]):
        assert command(*words, "--log", data) == EXIT_DONE
    assert '"has_owner": true' in capsys.readouterr().out
    log.close()


@pytest.mark.parametrize("verb", ["stat", "cat", "verify"])
def test_where_there_is_no_log_that_is_told(tmp_path: Path, capsys: Captured, verb: str) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        assert command(verb, "--log", place) == EXIT_UNREACHABLE
        assert len(capsys.readouterr().err.splitlines()) == 1


@contextmanager
def followed(data: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    started = [sys.executable, "-m", "app", "log", "cat", "--follow", "--log", str(data), *words]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def next_offset(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["offset"])


def test_cat_follows_a_log_over_owners_until_it_is_interrupted(data: Path) -> None:
    with followed(data, "--from", str(END - 1)) as process:
        assert next_offset(process) == END - 1
        for number in range(3):
            log = SegmentLog.open_owner(data, SETTINGS)
            log.commit([encode_record(5, WRITER, 1, 9_000 + number, CheckpointDue("x"))])
            assert next_offset(process) == END + number, "it is written as soon as it is visible"
            log.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (EXIT_INTERRUPTED, "", "picklog: interrupted\n")


def test_cat_follows_from_the_end_and_shows_the_kind_that_is_wanted(data: Path) -> None:
    log = SegmentLog.open_owner(data, SETTINGS)
    record = encode_record(5, WRITER, 1, 9_000, CheckpointDue("x"))
    ping = encode_record(5, WRITER, 0, 9_001, Pinged(WRITER, 1, 1))
    with followed(data, "--kind", "CheckpointDue") as process:
        assert process.stdout is not None
        shown = select.poll()
        shown.register(process.stdout, select.POLLIN)
        while not shown.poll(50):  # it may not have begun
            assert process.poll() is None
            log.commit([ping, record])
        found = json.loads(process.stdout.readline())
    log.close()
    assert found["kind"] == "CheckpointDue" and found["offset"] > END


def test_cat_that_follows_ends_quietly_once_nobody_reads_it(data: Path) -> None:
    with followed(data, "--from", str(END - 1)) as process:
        assert next_offset(process) == END - 1
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGPIPE
        assert process.stderr.read() == ""


def test_cat_follows_nothing_that_ends(data: Path, tmp_path: Path, capsys: Captured) -> None:
    assert command("cat", "--log", data, "--follow", "--to", "5") == EXIT_USAGE
    assert "leave --to out" in capsys.readouterr().err
    capture_of(some_picks().log, None, tmp_path / "a.capture", 12)
    assert command("cat", "--log", tmp_path / "a.capture", "--follow") == EXIT_USAGE
    assert "never grows" in capsys.readouterr().err
