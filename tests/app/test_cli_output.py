"""What the verbs share: ranges, JSON, and text that is printed as it is."""

import io
import json
import sys

import pytest
import typer
from rich.console import Console

from app.cli_output import ProgressBar, StatusLine, or_dash, plain_console, print_json, range_of, say
from app.marks import Marks
from tests.app.log_on_disk import some_picks


def test_tables_that_no_terminal_shows_are_wide_enough_for_names() -> None:
    assert plain_console().width >= 120


def test_a_range_that_runs_backwards_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    marks = Marks(some_picks().log)
    assert range_of(marks, "begin", "4") == (0, 4)
    with pytest.raises(typer.Exit) as ended:
        range_of(marks, "5", "4")
    assert ended.value.exit_code == 2
    assert "runs backwards" in capsys.readouterr().err


def test_a_document_is_printed_whatever_numbers_it_holds(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print_json({"small": 1, "large": 1 << 70})
    assert json.loads(capsysbinary.readouterr().out) == {"small": 1, "large": 1 << 70}


def test_a_line_shows_markup_and_escapes_what_moves_the_cursor() -> None:
    out = io.StringIO()
    say(Console(file=out, width=40), "[red]", "\x1b[2J", " after")
    assert out.getvalue() == "[red]\\x1b[2J after\n"
    assert (or_dash(None), or_dash(0)) == ("-", "0")


def test_no_bar_is_drawn_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(0, 10, "working") as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stderr that people look at."""

    def isatty(self) -> bool:
        return True


def test_a_status_is_one_line_that_is_written_over_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = StatusLine()
    line.show("1 pick")
    line.clear()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    line.show("2 picks\x1b")
    line.clear()
    line.clear()
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue() == "\r\x1b[K2 picks\\x1b\r\x1b[K"
