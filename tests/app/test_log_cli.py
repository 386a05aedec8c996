"""`picklog log`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from ingest.log.durable_mark import MARK_NAME
from ingest.log.segment_files import log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue
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
