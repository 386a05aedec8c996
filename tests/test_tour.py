"""The reader of `docs/tour.md` reads it as a shell would and notices what departs; the page's commands exist.

What the page shows is compared with a real run in `tests/live/test_tour.py`.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main

from app.cli import console
from tests.live.tour import Step, TourUnreadable, departure, steps
from tests.sources import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tour.md").read_text()
SUBSTITUTED = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)")

SAMPLE = """
Words.

```console
$ picklog log stat
log 13c1a2c0d5e377d32777566904d3265c, offsets 0 to 197
...
$ picklog audit query "SELECT 1
> FROM picks"
picklog: no such database
# exit status 3
```

```sh
make run
```

```console numbers
$ true
```
"""


def step(*output: str, is_paced: bool = False, exit_status: int = 0) -> Step:
    return Step(1, "true", output, exit_status, is_paced)


def fits(expected: str, printed: str, is_paced: bool = False) -> bool:
    return departure(step(*expected.splitlines(), is_paced=is_paced), printed, 0) is None


def picklog_calls(command: str) -> list[list[str]]:
    """The words of every call of picklog in a command for `sh`, those in `$(...)` too."""
    inner = [found[1] for found in SUBSTITUTED.finditer(command)]
    text = SUBSTITUTED.sub("0", command.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&()<>"):
            if words[:1] == ["picklog"]:
                calls.append(words[1:])
            words = []
        else:
            words.append(word)
    return calls + [call for part in inner for call in picklog_calls(part)]


def test_steps_are_the_commands_of_console_blocks_with_what_follows_them() -> None:
    assert steps(SAMPLE) == [
        Step(
            5,
            "picklog log stat",
            ("log 13c1a2c0d5e377d32777566904d3265c, offsets 0 to 197", "..."),
            0,
            False,
        ),
        Step(8, 'picklog audit query "SELECT 1\nFROM picks"', ("picklog: no such database",), 3, False),
        Step(19, "true", (), 0, True),
    ]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```console\n$ true", "line 1: the block has no end"),
        ("\n```console\nhello\n```", "line 3: output without a command"),
        ("```console loose\n$ true\n```", "line 1: a console block may say `numbers`"),
    ],
)
def test_page_that_is_no_script_is_refused_with_its_line(page: str, words: str) -> None:
    with pytest.raises(TourUnreadable, match=words):
        steps(page)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("8 picks: 8 equal", "8 picks: 8 equal\n"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("a\n...\nd", "a\nd"),
        ("...", ""),
        ("...\nb\n...", "a\nb\nb\nc"),
        ("replica ... of release", "replica vm:2858 of release"),
        ("dynamo/18414134031107218166 rank 0", "dynamo/6393150247947976354 rank 0"),
        ("asked 2026-11-29T19:51:48.705918Z", "asked 2027-01-02T03:04:05.000001Z"),
        ("┏━━┳━┓\n┃ a ┃ b ┃\n└──┴─┘", "┏━━━━┳━┓\n┃   a  ┃ b   ┃\n└────┴─┘"),
        ("a b", "\na   b\n\n"),
        (
            "head\nx/1111111111#0 decode\nx/2222222222#0 prefill",
            "head\nx/1111111111#0 prefill\nx/2222222222#0 decode",
        ),
        ("first byte after 9.0 ms", "first byte after 1.25 s"),
    ],
)
def test_what_runs_have_differently_fits(expected: str, printed: str) -> None:
    assert fits(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("8 picks: 8 equal", "8 picks: 7 equal"),
        ("8 picks: 8 equal", ""),
        ("", "8 picks: 8 equal"),
        ("a\n...\nd", "a\nb"),
        ("a\n...\nd", "a\nd\ne"),
        ("a ... c", "a b d"),
        ("repeated: equal", "repeated: different"),
        ("│ ok │ 200 │", "│ ok │ 503 │"),
        ("┃ a ┃", "┏━━┓"),
        ("│ fresh │ 1 │", "│ quiet │ 1 │"),
        ("x/1111111111#0 decode\nx/2222222222#0 prefill", "x/1111111111#0 decode\nx/2222222222#0 decode"),
    ],
)
def test_what_is_wrong_does_not_fit(expected: str, printed: str) -> None:
    assert not fits(expected, printed)


def test_paced_block_lets_numbers_verdicts_and_reasons_differ_and_nothing_else() -> None:
    row = "│ dynamo/18414134031107218166 │ 0 │ - │ 25.0% │ 11.772 s │ quiet │ round_robin_stale │"
    assert fits(row, "│ dynamo/4 │ 0 │ 1.5 │ - │ - │ fresh │ load │".replace("/4", "/" + "4" * 19), True)
    assert fits("reason load, margin 0.000000, rotation 2", "reason round_robin_stale, rotation 0", True)
    assert not fits(row, row.replace("dynamo", "other"), True)
    assert not fits(row, row.replace("quiet", "excluded"), True)


def test_departure_shows_the_line_that_failed_and_all_that_was_printed() -> None:
    said = departure(step("same", "8 picks: 8 equal", "tail"), "same\n8 picks: 7 equal\ntail\n", 0)
    assert said is not None
    assert said.splitlines() == [
        "docs/tour.md, line 1: $ true",
        "the page says:",
        "  same",
        "! 8 picks: 8 equal",
        "  tail",
        "it printed:",
        "  same",
        "  8 picks: 7 equal",
        "  tail",
    ]


def test_departure_in_the_exit_status_alone_is_told() -> None:
    assert departure(step("x", exit_status=3), "x", 3) is None
    said = departure(step("x", exit_status=3), "x", 0)
    assert said is not None
    assert "ends with status 0, not 3" in said


def test_output_beyond_what_the_page_shows_is_told() -> None:
    said = departure(step("x"), "x\ny", 0)
    assert said is not None
    assert "! (nothing more)" in said


def test_calls_inside_a_command_are_found() -> None:
    command = 'cd a && picklog x "$(picklog y "count(*)" | tail -n 1)" > f; ls | picklog z --at=-1s'
    assert picklog_calls(command) == [["x", "0"], ["z", "--at=-1s"], ["y", "count(*)"]]


@pytest.mark.parametrize("found", steps(PAGE), ids=lambda found: f"line {found.line}")
def test_command_of_the_tour_exists_with_its_options(found: Step) -> None:
    for words in picklog_calls(found.command):
        command: Any = typer.main.get_command(console(words))
        left = list(words)
        while hasattr(command, "get_command"):
            context = command.make_context("picklog", [], resilient_parsing=True)
            command = command.get_command(context, left.pop(0))
            assert command is not None, words
        command.make_context("picklog", left)  # raises for an option that is not there


def test_tour_shows_every_way_of_asking() -> None:
    shown = {tuple(words[:2]) for found in steps(PAGE) for words in picklog_calls(found.command)}
    replayed = {("replay", verb) for verb in ("explain", "verify", "state", "whatif", "feed")}
    assert replayed | {("capture", verb) for verb in ("export", "show", "import")} <= shown
    asked = [words for found in steps(PAGE) for words in picklog_calls(found.command)]
    assert any("--diff" in words for words in asked)
    assert sum(words[:2] == ["audit", "query"] and "--format" not in words for words in asked) >= 3
