"""`picklog replay whatif`: terminal, JSON, CSV and page; sweeps; bad input in one line."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE
from app.replay_cli import replay_app
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
