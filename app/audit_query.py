"""Asks the audit database, so that nothing can be changed by asking.

One statement that begins as a question does, on a connection that cannot write, at most
ROWS_MAX rows of which are taken. Values come as JSON has them: times in RFC 3339 whichever
database they come from, exact numbers as numbers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from app.audit_database import (
    AuditError,
    AuditRefused,
    cause_of,
    is_of_driver,
    is_sqlite,
    reading_engine,
    shown,
    translated,
)

ROWS_MAX = 10_000
STATEMENT_CHARACTERS_MAX = 100_000
QUESTIONS = ("select", "with", "values", "explain")
_SKIPPED = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*", re.DOTALL)
_SQLITE_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d\.\d{6})")

_T = TypeVar("_T")


class Answer(NamedTuple):
    """Rows of an answer. cut: there were more than ROWS_MAX."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    cut: bool


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's asynchronous part."""
    return asyncio.run(_settled(work))


async def _settled(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await work
    except AuditError:
        await asyncio.sleep(0.05)  # the driver's thread reports a failed connect to this loop once more
        raise


def refuse_other_than_questions(sql: str) -> None:
    """Raises AuditRefused for a statement that does not begin as a question."""
    if len(sql) > STATEMENT_CHARACTERS_MAX:
        raise AuditRefused(f"the statement has more than {STATEMENT_CHARACTERS_MAX} characters")
    skipped = _SKIPPED.match(sql)
    word = re.match(r"\w*", sql[skipped.end() :] if skipped else sql)
    if word is None or word[0].lower() not in QUESTIONS:
        raise AuditRefused("only questions are asked here: begin with SELECT, WITH, VALUES or EXPLAIN")


async def ask(url: URL, sql: str) -> Answer:
    """The answer of a database. Raises AuditRefused for the statement, AuditAway for the database."""
    refuse_other_than_questions(sql)
    engine = reading_engine(url)
    try:
        with translated():
            async with engine.connect() as connection:
                try:
                    result = await connection.stream(text(sql.replace(":", "\\:")))
                    columns = tuple(_unique(result.keys()))
                    found = await result.fetchmany(ROWS_MAX + 1)
                except OperationalError as problem:
                    if is_sqlite(url) and "locked" in str(problem.orig):
                        raise
                    raise AuditRefused(_refusal(problem, url)) from problem
                except Exception as problem:
                    if isinstance(problem, DBAPIError) or is_of_driver(problem):
                        raise AuditRefused(_refusal(problem, url)) from problem
                    raise
    finally:
        await engine.dispose()
    rows = [tuple(map(plain, row)) for row in found[:ROWS_MAX]]
    return Answer(columns, rows, len(found) > ROWS_MAX)


def _refusal(problem: Exception, url: URL) -> str:
    cause = cause_of(problem)
    if "not a database" in cause:
        return f"{shown(url)} is no SQLite database"
    return f"{shown(url)}: {cause}"


def _unique(names: Any) -> list[str]:
    """Names of columns; one that stands twice gets a number, so that no value is lost in JSON."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "") + "Z"
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, str):
        time = _SQLITE_TIME.fullmatch(value)
        return f"{time[1]}T{time[2]}Z" if time is not None else value
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
