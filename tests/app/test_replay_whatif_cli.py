"""`picklog replay whatif`: terminal, JSON, CSV and page; sweeps; bad input in one line."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from app.replay_cli import replay_app
from projections.events.control import FoldModeAdopted, Pinged
from tests.app.log_on_disk import written
from tests.replay.prefix_log import PrefixLog, ask
from tests.replay.test_whatif import busy

OTHER = """
dynamo:
  enabled: true
  picker: round_robin
  discovery: {source: file, file: {root: ".", namespace: dynamo}}
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, ["whatif", *(str(word) for word in arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(busy(), tmp_path / "data")


@pytest.mark.req("EVS-08")
def test_another_configuration_moves_picks_and_ends_with_0(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(OTHER)
    result = run("-c", other, "--log", data)
    assert result.exit_code == EXIT_DONE, result.stderr
    assert "of 29 picks move" in result.stdout and "under other.yaml" in result.stdout
    assert "1 picks cannot be asked again: suspect 1" in result.stdout
    assert "the reason is round_robin_stale instead of load" in result.stdout
    assert "that is not simulated" in result.stdout


def test_json_csv_and_page_agree(data: Path, tmp_path: Path) -> None:
    table, page = tmp_path / "picks.csv", tmp_path / "page.html"
    result = run("--sweep", "picker=round_robin", "--log", data, "--json", "--csv", table, "--html", page)
    document = json.loads(result.stdout)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == document["picks"] == 29
    assert sum(int(row["moved"]) for row in rows) == document["moved"] > 0
    assert f"{document['moved']:,} of 29" in page.read_text()
    assert [path.name for path in tmp_path.glob(".*.tmp")] == []


def test_a_sweep_of_two_settings_asks_every_combination(data: Path) -> None:
    result = run(
        "--sweep", "max_staleness=1ms,3s", "--sweep", "picker=load_based,round_robin", "--log", data, "--json"
    )
    rows = json.loads(result.stdout)["sweep"]
    assert [row["values"] for row in rows] == [
        {"max_staleness": "1ms", "picker": "load_based"},
        {"max_staleness": "1ms", "picker": "round_robin"},
        {"max_staleness": "3s", "picker": "load_based"},
        {"max_staleness": "3s", "picker": "round_robin"},
    ]
    assert rows[2]["moved"] == 0 and rows[3]["moved"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no other settings are named"),
        (["--sweep", "server.port=1"], "picks read no such setting"),
        (["--sweep", "max_staleness"], "write KEY=V1,V2"),
        (["--sweep", "max_staleness=soon"], "is not a duration"),
        (["--sweep", "picker=best"], "names no picker"),
        (["--sweep", "dynamo.kv.overlap_score_credit=-1"], "is no number between 0 and 1e100"),
        (["--sweep", "overlap_score_credit=nan"], "is no number between 0 and 1e100"),
        (["--sweep", "prefill_load_scale=much"], "is no number between 0 and 1e100"),
        (["--sweep", "namespaces=+"], "names no namespace"),
        (["--sweep", "dynamo.kv.enabled=yes"], "is neither true nor false"),
        (["--sweep", "enabled=true"], "picks read no such setting"),
        (["--sweep", "kv.enabled=true", "--sweep", "dynamo.kv.enabled=false"], "swept twice"),
        (["--redecode", "--follow"], "leave --follow or it out"),
        (["--sweep", "picker=load_based", "--follow", "--to", "5"], "leave --to out"),
        (["--sweep", "picker=load_based", "--for", "5s"], "add --follow"),
        (["--sweep", "picker=load_based", "--follow", "--for", "soon"], "is not a duration"),
        (["--sweep", "picker=load_based", "--follow", "--from", "999"], "beyond the log"),
        (2 * ["--sweep", "max_staleness=1s"], "swept twice"),
        (
            3 * ["--sweep", "picker=load_based"],
            "3 settings are swept",
        ),
        (["--sweep", "max_staleness=" + ",".join(f"{n}s" for n in range(65))], "65 combinations"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], words: str, data: Path) -> None:
    result = run("--log", data, *arguments)
    assert result.exit_code == EXIT_USAGE
    assert result.stderr.count("\n") == 1 and words in result.stderr


def test_an_invalid_configuration_is_one_line_that_names_the_file(data: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("dynamo: {picker: best}\n")
    result = run("-c", bad, "--log", data)
    assert result.exit_code == EXIT_USAGE
    assert result.stderr.count("\n") == 1 and str(bad) in result.stderr
    assert run("-c", tmp_path / "absent.yaml", "--log", data).exit_code == EXIT_UNREACHABLE


def test_no_partial_file_is_left_where_it_cannot_be_written(data: Path, tmp_path: Path) -> None:
    result = run("--sweep", "picker=round_robin", "--log", data, "--csv", tmp_path / "no" / "picks.csv")
    assert result.exit_code == EXIT_UNREACHABLE and result.stderr.count("\n") == 1
    assert f"picklog: {tmp_path / 'no' / 'picks.csv'}: No such file" in result.stderr
    os.mkfifo(tmp_path / "pipe")
    result = run("--sweep", "picker=round_robin", "--log", data, "--html", tmp_path / "pipe")
    assert result.exit_code == EXIT_UNREACHABLE and "pipe: it is no ordinary file" in result.stderr
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "taken.html").mkdir()
    result = run("--sweep", "picker=round_robin", "--log", data, "--html", tmp_path / "taken.html")
    assert result.exit_code == EXIT_UNREACHABLE
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.req("EVS-08", "KVP-02")
def test_a_sweep_of_the_prefix_terms_weight_tells_blocks_held(tmp_path: Path) -> None:
    world = PrefixLog()
    world.store(2, "a", 8)
    for worker, blocks in ((1, 10), (2, 20), (3, 90)):
        world.sample(worker, blocks)
    ask(world.replica(), "r", "a", 10)
    data = written(world, tmp_path / "data")
    sweep = ("--sweep", "dynamo.kv.overlap_score_credit=0,0.5,1", "--log", data)
    rows = json.loads(run(*sweep, "--json").stdout)["sweep"]
    assert [row["values"]["overlap_score_credit"] for row in rows] == ["0", "0.5", "1"]
    assert [row["overlap_blocks"] for row in rows] == [[8, 0], [8, 8], [8, 8]]
    assert [row["moved"] for row in rows] == [1, 0, 0]
    told = run(*sweep).stdout
    assert "blocks of prompts that the ranks that prefill held: 8 -> 0" in told
    assert "of 8 blocks held: credit" in told


@pytest.mark.req("EVS-08", "KVP-02")
def test_the_prefix_term_is_swept_on_a_log_that_had_it_and_told_to_say_nothing_on_one_that_had_not(
    data: Path, tmp_path: Path
) -> None:
    world = PrefixLog()
    world.store(2, "a", 8)
    for worker, blocks in ((1, 10), (2, 20), (3, 90)):
        world.sample(worker, blocks)
    ask(world.replica(), "r", "a", 10)
    sweep = ("--sweep", "dynamo.kv.enabled=true,false", "--json", "--log")
    rows = json.loads(run(*sweep, written(world, tmp_path / "kv")).stdout)["sweep"]
    assert [(row["values"]["kv.enabled"], row["moved"]) for row in rows] == [("true", 0), ("false", 1)]
    without = json.loads(run(*sweep, data).stdout)
    assert [row["moved"] for row in without["sweep"]] == [0, 0]
    assert "prefix term was off" in without["limits"][-1]
    assert "note: 29 of these picks were made while" in run(*sweep[:2], "--log", data).stdout


def test_an_empty_range_is_warned_about(data: Path) -> None:
    result = run("--sweep", "picker=round_robin", "--log", data, "--from", "end")
    assert result.exit_code == EXIT_DONE and "0 of 0 picks move" in result.stdout
    assert "warning: no picks in this range" in result.stderr


@pytest.mark.req("EVS-08")
def test_a_followed_log_gives_the_same_document_page_and_rows(data: Path, tmp_path: Path) -> None:
    sweep = ("--sweep", "picker=round_robin,load_based", "--sweep", "max_staleness=1ms,3s", "--log", data)
    names = ("--csv", tmp_path / "rows.csv", "--html", tmp_path / "page.html", "--json")
    whole = run(*sweep, *names).stdout
    rows, page = ((tmp_path / name).read_text() for name in ("rows.csv", "page.html"))
    followed = run(*sweep, *names, "--follow", "--from", "begin", "--for", "500ms")
    assert followed.exit_code == EXIT_DONE, followed.stderr
    assert json.loads(followed.stdout) == json.loads(whole)
    assert (tmp_path / "rows.csv").read_text() == rows and (tmp_path / "page.html").read_text() == page
    quiet = run(*sweep, "--follow", "--for", "10ms")
    assert quiet.exit_code == EXIT_DONE and "0 of 0 picks move" in quiet.stdout, "it begins at the end"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_rows_appear_as_they_are_found_and_a_signal_ends_it_with_the_rest(
    tmp_path: Path, number: signal.Signals
) -> None:
    world = busy()
    world.say(Pinged(bytes([101]) * 16, 0, world.log.end_offset() - 1), bytes([101]) * 16)
    table, page = tmp_path / "picks.csv", tmp_path / "page.html"
    words = ["--sweep", "picker=round_robin", "--log", str(written(world, tmp_path / "data")), "--follow"]
    words += ["--from", "begin", "--csv", str(table), "--html", str(page)]
    with subprocess.Popen(
        [sys.executable, "-m", "app", "replay", "whatif", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not table.exists() or table.read_text().count("\n") < 30:
            assert process.poll() is None
        assert not page.exists()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_DONE, err
    assert "of 29 picks move" in out and "of 29" in page.read_text()
    assert len([*csv.DictReader(table.read_text().splitlines())]) == 29


def test_what_ends_following_by_itself_is_told_behind_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--sweep", "picker=round_robin", "--follow", "--from", "begin", "--log")
    world = busy(5)
    world.say(FoldModeAdopted((99_999,)))
    world.say(Pinged(bytes([101]) * 16, 0, world.log.end_offset() - 1), bytes([101]) * 16)
    stopped = run(*words, written(world, tmp_path / "a"))
    assert stopped.exit_code == EXIT_FOUND_WRONG and "of 5 picks move" in stopped.stdout
    assert stopped.stderr.splitlines()[-1].startswith("picklog: fold stopped at offset")
    data = written(busy(5), tmp_path / "c")
    [segment] = (data / "log").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    damaged = run(*words, data)
    assert damaged.exit_code == EXIT_FOUND_WRONG and "picks move" in damaged.stdout
    assert "segment" in damaged.stderr.splitlines()[-1]
    monkeypatch.setattr("app.following.stored_segments", lambda folder: [])
    gone = run(*words, written(busy(5), tmp_path / "b"))
    assert gone.exit_code == EXIT_UNREACHABLE and "of 5 picks move" in gone.stdout
    assert gone.stderr.splitlines()[-1].startswith(f"picklog: {tmp_path / 'b'}: the log is gone")


def test_files_that_cannot_be_written_are_told_before_anything_is_asked(data: Path, tmp_path: Path) -> None:
    words = ("--sweep", "picker=round_robin", "--log", data, "--follow")
    (tmp_path / "taken").mkdir()
    for name in ("--csv", "--html"):
        for path in (tmp_path / "no" / "file", tmp_path / "taken"):
            result = run(*words, name, path)
            assert result.exit_code == EXIT_UNREACHABLE and result.stdout == ""
            assert result.stderr.startswith(f"picklog: {path}: ") and result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
