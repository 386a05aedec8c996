"""Every command ends with one printable line and the status that the contract names."""

import errno

import pytest
import typer

from app.cli_errors import (
    EXIT_FOUND_WRONG,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    LINE_CHARACTERS_MAX,
    fail,
    one_line,
    refusals_told,
)
from projections.events.ports import LogCorrupt, LogError, OffsetGone


def status_of(problem: BaseException) -> int:
    with pytest.raises(typer.Exit) as ended, refusals_told():
        raise problem
    return ended.value.exit_code


@pytest.mark.parametrize(
    ("problem", "status", "words"),
    [
        (LogCorrupt("segment 3, byte 9: restore it"), EXIT_FOUND_WRONG, "segment 3, byte 9: restore it"),
        (OffsetGone(5, 9), EXIT_USAGE, "offset 5 is gone, the oldest kept is 9"),
        (LogError("no log here"), EXIT_UNREACHABLE, "no log here"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/y"),
            EXIT_UNREACHABLE,
            "/x/y: No such",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), EXIT_UNREACHABLE, "/x: Permission denied"),
        (OSError(errno.EADDRINUSE, "Address already in use"), EXIT_UNREACHABLE, "Address already in use"),
        (OSError(), EXIT_UNREACHABLE, "OSError"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "interrupted"),
    ],
)
def test_what_logs_and_files_raise_is_one_line_and_a_status(
    problem: BaseException, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(problem) == status
    told = capsys.readouterr().err
    assert told.startswith(f"picklog: {words}")
    assert told.count("\n") == 1


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), refusals_told():
        raise ZeroDivisionError


def test_a_reader_that_went_away_is_no_error_of_ours() -> None:
    with pytest.raises(BrokenPipeError), refusals_told():
        raise BrokenPipeError


def test_a_line_says_what_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        fail(EXIT_USAGE, "no such mark", "give an offset")
    assert ended.value.exit_code == EXIT_USAGE
    assert capsys.readouterr().err == "picklog: no such mark: give an offset\n"


@pytest.mark.parametrize("text", ["a\nb\rc", "\x1b[31mred", "\ud800", "\x00\x9b"])
def test_a_line_stays_one_printable_line_whatever_is_in_it(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    line.encode()


def test_a_line_has_a_ceiling() -> None:
    assert len(one_line("x" * 1_000_000)) == LINE_CHARACTERS_MAX
