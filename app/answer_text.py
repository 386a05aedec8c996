"""How the rows of an answer are written: a table to read, JSON or CSV to go on with."""

from __future__ import annotations

import csv
import os
import sys
from enum import StrEnum
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from app.audit_query import ROWS_MAX, Answer
from app.cli_errors import printable

PIPED_WIDTH = 160  # columns of a table that no terminal shows, at least
COLUMN_WIDTH = 22
CELL_CHARACTERS_MAX = 2000


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def write_answer(answer: Answer, form: Format) -> None:
    """Write it on stdout; that it was cut is said on stderr."""
    if answer.cut:
        print(f"warning: cut at {ROWS_MAX} rows, there are more: ask for less, or use LIMIT", file=sys.stderr)
    if form is Format.JSON:
        document = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        sys.stdout.buffer.write(orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2) + b"\n")
        sys.stdout.buffer.flush()
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator=os.linesep)
        writer.writerow(answer.columns)
        writer.writerows([_csv_cell(value) for value in row] for row in answer.rows)
        sys.stdout.flush()
    else:
        _print_table(answer)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _print_table(answer: Answer) -> None:
    width = None if sys.stdout.isatty() else max(PIPED_WIDTH, COLUMN_WIDTH * len(answer.columns))
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    table = Table()
    for place, name in enumerate(answer.columns):
        numbers = all(isinstance(row[place], int | float | None) for row in answer.rows)
        table.add_column(
            printable(name), justify="right" if numbers and answer.rows else "left", overflow="fold"
        )
    for row in answer.rows:
        table.add_row(*map(_cell, row))
    console.print(table)
    print(f"{len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (
        "\n".join(printable(line) for line in str(value).split("\n"))
        if isinstance(value, str)
        else str(value)
    )
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 3] + "..."
