"""What commands that look at logs share: options, the progress bar, tables, JSON on stdout.

Text from a log may look like markup or hold control characters: it is printed as it is,
with what would move the cursor escaped. Progress goes to stderr, on a terminal only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from app.cli_errors import EXIT_USAGE, fail, printable
from app.marks import Marks

PIPED_WIDTH = 160  # columns of tables that no terminal shows
WHOLE = ("worker", "role", "model", "state")  # columns that a narrow terminal must not cut

LogOption = Annotated[
    Path | None,
    typer.Option("--log", help="A data directory, a capture or kafka:FILE (default: .run/data if there)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
FollowedFromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="M", help="First mark (default: begin; with --follow: end)."),
]
FollowedToOption = Annotated[
    str | None, typer.Option("--to", metavar="M", help="Mark to stop before (default: end).")
]


def range_of(marks: Marks, start: str, stop: str) -> tuple[int, int]:
    """Offsets of a range; ends the command where it runs backwards."""
    first, last, end = marks.offset(start), marks.offset(stop), marks.offset("end")
    if first > end:
        fail(EXIT_USAGE, f"mark {start} is beyond the log, whose newest record is {end - 1}")
    if last < first:
        fail(EXIT_USAGE, f"the range {start} to {stop} ({first} to {last}) runs backwards", "swap the marks")
    return first, last


def print_json(document: dict[str, Any]) -> None:
    """The one document on stdout. Numbers beyond 64 bits are printed too."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2)
    except TypeError:
        text = json.dumps(document, indent=2, default=str).encode()
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()


def plain_console() -> Console:
    """A console that takes text as it is: names of models and requests may look like markup."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def narrow_table(heads: Iterable[str], left: Collection[str], title: str | None = None) -> Table:
    """A table without lines, for 80 columns: names in `WHOLE` columns stay whole, all else may wrap."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in heads:
        side: Literal["left", "right"] = "left" if head in left else "right"
        table.add_column(head, justify=side, no_wrap=head in WHOLE, overflow="fold")
    return table


def say(console: Console, before: str = "", bold: str = "", after: str = "") -> None:
    """One line, whatever is in it, with one part in bold."""
    text = Text()
    for part, style in ((before, ""), (bold, "bold"), (after, "")):
        text.append(printable(part), style=style)
    console.print(text, soft_wrap=True)


def or_dash(value: object) -> str:
    """The value as text, a dash where there is none."""
    return "-" if value is None else str(value)


class StatusLine:
    """One line on stderr that is written over again and again, on a terminal only."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, text: str) -> None:
        """Take the place of the line before."""
        if sys.stderr.isatty():
            self._is_shown = True
            print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the place to others."""
        if self._is_shown:
            self._is_shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class ProgressBar:
    """A progress bar on stderr, on a terminal only; gives the function that moves it."""

    def __init__(self, start: int, stop: int, what: str) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._start = start
        self._task = self._bar.add_task(what, total=max(1, stop - start))

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda offset: self._bar.update(self._task, completed=offset - self._start)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
