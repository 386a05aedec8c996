"""`picklog replay state`: at any mark, for people and for scripts; with --diff in words."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.checkpoint_store import state_file_records, write_state_file
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from app.cli_output import plain_console
from app.replay_cli import replay_app
from app.replay_state_cli import print_state
from projections.checkpoint import checkpoint_facts, closing_of
from projections.events.codec import encode_record
from projections.events.held import CheckpointOpened, SampleHeld
from tests.app.log_on_disk import some_picks, written


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, [str(word) for word in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(some_picks(("first", "[red]")), tmp_path / "data")


def test_a_state_is_told_for_people(data: Path) -> None:
    result = run("state", "--log", data)
    assert result.exit_code == EXIT_DONE
    for words in ("state at ", "settings version 1", "3 workers, 3 ranks", "dynamo/1", "fresh", "kv_metrics"):
        assert words in result.stdout


def test_a_state_as_json_is_the_document(data: Path) -> None:
    document = json.loads(run("state", "--log", data, "--at", "0:5", "--json").stdout)
    assert document["mark"] == "0:5"


def test_a_difference_is_told_in_words_and_as_a_document(data: Path) -> None:
    result = run("state", "--log", data, "--at", "begin", "--diff", "end")
    assert result.exit_code == EXIT_DONE
    assert "  - 3 workers joined at " in result.stdout
    assert "  - 2 picks were made" in result.stdout
    document = json.loads(run("state", "--log", data, "--at", "2", "--diff", "end", "--json").stdout)
    assert document.keys() >= {"from", "to", "workers", "load", "index", "config", "words"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--at", "999"], "this log has offsets 0 to "),
        (["--at", "7:3"], "one lane"),
        (["--at", "yesterday"], "an ISO time"),
        (["--at", "1960-01-01"], "lies before the log's first record"),
        (["--at", "2200-01-01"], "lies behind the log's newest record"),
        (["--at", "6", "--diff", "3"], "swap the marks"),
    ],
)
def test_marks_outside_the_log_are_one_line_and_bad_usage(
    arguments: list[str], words: str, data: Path
) -> None:
    result = run("state", "--log", data, *arguments)
    assert result.exit_code == EXIT_USAGE
    assert result.stderr.count("\n") == 1 and words in result.stderr
    assert result.stdout == ""


def test_a_state_in_a_file_is_held_to_the_log_and_a_difference_ends_with_status_1(tmp_path: Path) -> None:
    golden = Path("tests/golden/run-kv-1.6.1")
    file = sorted((golden / "checkpoints").iterdir())[-1]
    same = run("state", "--log", golden, "--against", file)
    assert (same.exit_code, same.stderr) == (EXIT_DONE, "") and "folds to the same state" in same.stdout
    opened, *held, _ = checkpoint_facts(state_file_records(file))
    assert isinstance(opened, CheckpointOpened)
    facts = [fact._replace(sequence=1) if isinstance(fact, SampleHeld) else fact for fact in held]
    records = (encode_record(1, bytes(16), 0, 1, fact) for fact in (opened, *facts, closing_of(facts)))
    write_state_file(tmp_path / "wrong.state", opened.log_id, opened.time, records)
    other = run("state", "--log", golden, "--against", tmp_path / "wrong.state")
    assert other.exit_code == EXIT_FOUND_WRONG and "digests of load differ" in other.stdout
    told = run("state", "--log", golden, "--against", tmp_path / "wrong.state", "--json")
    document = json.loads(told.stdout)
    assert (told.exit_code, document["digests"]) == (EXIT_FOUND_WRONG, ["load"])
    assert document.keys() == {"mark", "at", "file", "digests", "parts", "log_agrees"}


@pytest.mark.parametrize("option", ["--at", "--diff"])
def test_a_file_names_its_mark_by_itself(option: str, data: Path) -> None:
    result = run("state", "--log", data, "--against", data / "x.state", option, "3")
    assert result.exit_code == EXIT_USAGE and "leave --at and --diff out" in result.stderr


def test_a_file_that_is_no_state_is_bad_usage_and_one_that_is_not_there_is_unreachable(data: Path) -> None:
    (data / "x.state").write_bytes(b"x")
    result = run("state", "--log", data, "--against", data / "x.state")
    assert (result.exit_code, result.stdout) == (EXIT_USAGE, "") and result.stderr.count("\n") == 1
    gone = run("state", "--log", data, "--against", data / "y.state")
    assert gone.exit_code == EXIT_UNREACHABLE and f"{data / 'y.state'}: No such file" in gone.stderr


def test_a_log_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    assert run("state", "--log", tmp_path / "nowhere").exit_code == EXIT_UNREACHABLE


def test_whose_blocks_are_known_is_told_where_any_are(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "namespace": "dynamo",
        "worker_id": "26",
        "dp_rank": 1,
        "blocks": 512,
        "engine_hash_xor": "18446744073709551615",
        "last_event_id": 77,
    }
    index = {"nodes": 400, "ownerships": 512, "predictions": 3, "ranks": [row]}
    found = {
        "at": "t",
        "mark": "0:5",
        "config_version": 1,
        "generation": 2,
        "workers": [],
        "load": [],
        "index": index,
        "subscriptions": [],
        "ledger": {"unanswered": 0, "picks": []},
    }
    print_state(found, plain_console())
    told = capsys.readouterr().out
    for words in ("400 different blocks, 512 held", "dynamo/26#1", "18446744073709551615", "77"):
        assert words in told
    print_state({**found, "index": {**index, "ranks": []}}, plain_console())
    assert "blocks" not in capsys.readouterr().out
