"""How every command ends: exit statuses, and errors as one line on stderr.

What, where, what to do; never a traceback for bad input or a missing peer.
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


def fail(status: int, what: str, remedy: str = "") -> NoReturn:
    """End the command with one line on stderr."""
    print(f"picklog: {what}" + (f": {remedy}" if remedy else ""), file=sys.stderr)
    raise typer.Exit(status)


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
    except FileNotFoundError as problem:
        fail(EXIT_UNREACHABLE, f"{problem.filename or problem}: no such file or directory")
    except PermissionError as problem:
        fail(EXIT_UNREACHABLE, f"{problem.filename or problem}: permission denied")
    except KeyboardInterrupt:
        fail(EXIT_INTERRUPTED, "interrupted")
