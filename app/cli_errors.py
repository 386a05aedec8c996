"""How every command ends: exit statuses, and errors as one line on stderr.

What, where, what to do; never a traceback for bad input or a missing peer. Whatever text
goes into such a line is made printable first: names of files and keys may hold anything.

Source: contract, section 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from projections.events.ports import LogCorrupt, LogError, OffsetGone

EXIT_DONE = 0
EXIT_FOUND_WRONG = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130
LINE_CHARACTERS_MAX = 2000


def fail(status: int, what: str, remedy: str = "") -> NoReturn:
    """End the command with one line on stderr."""
    say_error(what, remedy)
    raise typer.Exit(status)


def say_error(what: str, remedy: str = "") -> None:
    """One line on stderr: what is wrong, and what to do."""
    print(f"picklog: {one_line(what + (f': {remedy}' if remedy else ''))}", file=sys.stderr)


def one_line(text: str) -> str:
    """The text in one printable line of at most LINE_CHARACTERS_MAX characters."""
    joined = printable(" ".join(text.split()))
    return joined if len(joined) <= LINE_CHARACTERS_MAX else joined[: LINE_CHARACTERS_MAX - 3] + "..."


def printable(text: str) -> str:
    """The text with everything escaped that would move a terminal's cursor or break its encoding."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def refusals_told() -> Iterator[None]:
    """Turn what logs and files raise into one line and the right status."""
    try:
        yield
    except LogCorrupt as problem:
        fail(EXIT_FOUND_WRONG, str(problem))
    except OffsetGone as problem:
        fail(EXIT_USAGE, str(problem))
    except LogError as problem:
        fail(EXIT_UNREACHABLE, str(problem))
    except BrokenPipeError:
        raise  # whoever read our output has gone: no error of ours
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        fail(EXIT_UNREACHABLE, where + (problem.strerror or str(problem) or type(problem).__name__))
    except KeyboardInterrupt:
        fail(EXIT_INTERRUPTED, "interrupted")
