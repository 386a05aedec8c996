"""`picklog replay`: reports for people and for scripts, and the status that says which it was."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from app.marks import Marks
from app.replay_cli import plain_console, print_explanation, replay_app
from projections.events.picks import PickMade
from replay.explain import explain
from tests.app.log_on_disk import some_picks, written
from tests.replay.recorded_log import RecordedLog

HOSTILE = "[/red]:smile:[bold]"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, [str(word) for word in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(some_picks(("first", HOSTILE)), tmp_path / "data")


def altered(world: RecordedLog) -> RecordedLog:
    """The same log with one more pick whose record claims another winner than the picker finds."""
    replica = world.replica()
    fact = replica.choose("forged", tokens=64)
    chosen = fact.outcome.decode.chosen
    assert chosen is not None
    decode = fact.outcome.decode._replace(chosen=chosen._replace(instance_id=2))
    forged: PickMade = fact._replace(outcome=fact.outcome._replace(decode=decode))
    world.say(forged, replica.id)
    return world


@pytest.mark.req("EVS-06")
def test_verify_of_an_honest_log_counts_its_picks_and_ends_with_0(data: Path) -> None:
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_DONE
    assert "2 picks: 2 equal, 0 different, 0 unverifiable" in result.stdout
    assert f"of {data}" in result.stdout


def test_verify_as_json_is_one_document(data: Path) -> None:
    result = run("verify", "--log", data, "--json")
    document = json.loads(result.stdout)
    assert (document["picks"], document["equal"], document["different"]) == (2, 2, 0)
    assert document["first_difference"] is None
    assert {"unverifiable", "seconds", "records_per_second"} <= document.keys()


def test_verify_names_the_first_difference_and_ends_with_1(tmp_path: Path) -> None:
    data = written(altered(some_picks()), tmp_path / "data")
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_FOUND_WRONG
    assert "3 picks: 2 equal, 1 different, 0 unverifiable" in result.stdout
    assert "instance_id: recorded 2, repeated " in result.stdout
    offset = json.loads(run("verify", "--log", data, "--json").stdout)["first_difference"]["log_offset"]
    assert f"repeat: picklog replay explain {offset} --log {data}" in result.stdout
    assert json.loads(run("explain", str(offset), "--log", data, "--json").stdout)["repeated"] == "different"


def test_verify_over_an_empty_range_warns_and_ends_with_0(data: Path) -> None:
    result = run("verify", "--log", data, "--from", "end")
    assert result.exit_code == EXIT_DONE
    assert "0 picks" in result.stdout
    assert "warning: no picks in this range" in result.stderr


def test_explain_shows_candidates_winner_end_and_verdict(data: Path) -> None:
    result = run("explain", "first", "--log", data)
    assert result.exit_code == EXIT_DONE
    for words in ("request first", "dynamo/1", "dynamo/2", "dynamo/3", "end: ok", "repeated: equal"):
        assert words in result.stdout


def test_explain_as_json_is_the_document(data: Path) -> None:
    document = json.loads(run("explain", "last", "--log", data, "--json").stdout)
    assert document["pick"]["request_id"] == HOSTILE
    assert document["repeated"] == "equal"


def test_names_that_look_like_markup_are_printed_as_they_are(data: Path) -> None:
    result = run("explain", "last", "--log", data)
    assert result.exit_code == EXIT_DONE
    assert f"request {HOSTILE}" in result.stdout


def test_a_name_cannot_move_the_cursor() -> None:
    world = some_picks()
    found: dict[str, Any] = explain(world.log, None, "last", Marks(world.log).time_text)
    found["question"]["model"] = "\x1b[2J\rtiny"
    found["phases"]["decode"]["candidates"][0]["namespace"] = "\x1b]0;x\x07"
    out = io.StringIO()
    print_explanation(found, Console(file=out, markup=False, emoji=False, highlight=False, width=200))
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()


def test_explain_of_a_pick_without_end_says_so(tmp_path: Path) -> None:
    world = RecordedLog()
    world.replica().ask("alone")
    result = run("explain", "alone", "--log", written(world, tmp_path / "data"))
    assert "end: none yet" in result.stdout


def test_explain_of_an_unknown_pick_is_bad_usage(data: Path) -> None:
    result = run("explain", "nobody", "--log", data)
    assert result.exit_code == EXIT_USAGE
    assert result.stderr.count("\n") == 1 and "no pick 'nobody'" in result.stderr


@pytest.mark.parametrize("verb", [["verify"], ["explain", "last"]])
def test_a_log_that_is_not_there_is_unreachable(verb: list[str], tmp_path: Path) -> None:
    result = run(*verb, "--log", tmp_path / "nowhere")
    assert result.exit_code == EXIT_UNREACHABLE
    assert result.stderr.count("\n") == 1


def test_a_corrupt_segment_is_told_after_what_could_be_read(data: Path) -> None:
    [segment] = (data / "log").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_FOUND_WRONG
    assert "0 different" in result.stdout
    assert "segment" in result.stderr and result.stderr.splitlines()[-1].startswith("picklog: ")


def test_tables_that_no_terminal_shows_are_wide_enough_for_names() -> None:
    assert plain_console().width >= 120
