"""`picklog replay explain`: one pick for people and for scripts."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE
from app.marks import Marks
from app.replay_cli import replay_app
from app.replay_explain_cli import print_explanation
from replay.explain import explain
from tests.app.log_on_disk import some_picks, written
from tests.replay.prefix_log import KV, PrefixLog, ask
from tests.replay.recorded_log import RecordedLog

HOSTILE = "[/red]:smile:[bold]"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, [str(word) for word in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(some_picks(("first", HOSTILE)), tmp_path / "data")


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


def test_a_log_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    result = run("explain", "last", "--log", tmp_path / "nowhere")
    assert result.exit_code == EXIT_UNREACHABLE
    assert result.stderr.count("\n") == 1


@pytest.mark.req("KVP-13")
def test_explain_shows_what_each_rank_held_and_what_it_was_worth(tmp_path: Path) -> None:
    world = PrefixLog(kv=KV._replace(credit_decay=0.5))
    world.store(2, "a", 6)
    for worker, blocks in ((1, 10), (2, 12), (3, 90)):
        world.sample(worker, blocks)
    ask(world.replica(), "r", "a", 10)
    found = run("explain", "r", "--log", written(world, tmp_path / "data")).stdout
    assert "prefix: overlap (168 tokens read, 6 blocks held)" in found
    for words in ("device", "predicted", "credit", "decay", "adjusted", "6.00", "1.00", "10.50", "4.50"):
        assert words in found
