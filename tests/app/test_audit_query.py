"""Questions to the audit database: only questions, a bounded answer, one kind of value."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.audit_database import AuditAway, AuditRefused
from app.audit_query import ROWS_MAX, STATEMENT_CHARACTERS_MAX, ask, plain, refuse_other_than_questions, run
from tests.app.audit_site import eventful, sqlite_url, write


@pytest.fixture
async def site(tmp_path: Path) -> Path:
    await write(eventful().log, sqlite_url(tmp_path))
    return tmp_path


async def test_an_answer_has_columns_and_plain_values(site: Path) -> None:
    answer = await ask(sqlite_url(site), "SELECT request_id, asked_at FROM picks ORDER BY log_offset LIMIT 1")
    assert answer.columns == ("request_id", "asked_at")
    assert answer.rows == [("first-0", "1970-01-01T00:00:02.000000Z")]
    assert not answer.cut


async def test_more_rows_than_the_ceiling_are_cut_and_said_to_be(site: Path) -> None:
    count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"
    answer = await ask(sqlite_url(site), count.format(ROWS_MAX + 1))
    assert (len(answer.rows), answer.cut) == (ROWS_MAX, True)
    answer = await ask(sqlite_url(site), count.format(ROWS_MAX))
    assert (len(answer.rows), answer.cut) == (ROWS_MAX, False)


async def test_colons_and_percent_signs_are_text(site: Path) -> None:
    answer = await ask(sqlite_url(site), "SELECT ':name %s \\:x ' AS a, '12:30::5' AS a, 7 % 4 AS b")
    assert answer.columns == ("a", "a_2", "b")
    assert answer.rows[0][1:] == ("12:30::5", 3)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM picks",
        "PRAGMA query_only = off",
        "ATTACH 'x.sqlite' AS x",
        "VACUUM INTO 'x.sqlite'",
        "-- SELECT\nDROP TABLE picks",
        "/* SELECT */ UPDATE picks SET model = 'x'",
        "",
        "select" * STATEMENT_CHARACTERS_MAX,
    ],
)
def test_only_questions_are_asked(sql: str) -> None:
    with pytest.raises(AuditRefused):
        refuse_other_than_questions(sql)


@pytest.mark.parametrize(
    "sql", ["select 1", "(SELECT 1)", "-- why\n /* x */ WITH a AS (SELECT 1) SELECT * FROM a", "VALUES (1)"]
)
def test_questions_are(sql: str) -> None:
    refuse_other_than_questions(sql)
    assert sql


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("WITH x AS (SELECT 1) DELETE FROM picks", "readonly database"),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("SELECT 1; DELETE FROM picks", "one statement at a time"),
        ("SELECT writefile('x', 'y')", "no such function"),
    ],
)
async def test_what_the_database_refuses_is_one_line(site: Path, sql: str, told: str) -> None:
    with pytest.raises(AuditRefused, match=told) as refused:
        await ask(sqlite_url(site), sql)
    assert "\n" not in str(refused.value)
    assert (await ask(sqlite_url(site), "SELECT count(*) FROM picks")).rows == [(8,)]


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.sqlite").write_bytes(b"a letter, not a database, and a rather long one" * 30)
    with pytest.raises(AuditRefused, match="is no SQLite database"):
        await ask(sqlite_url(tmp_path), "SELECT 1 FROM picks")


def test_a_missing_database_is_away_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(AuditAway, match="no such database"):
        run(ask(sqlite_url(tmp_path), "SELECT 1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006Z"),  # noqa: DTZ001
        ("2026-01-02 03:04:05.000006", "2026-01-02T03:04:05.000006Z"),
        ("2026-01-02 03:04", "2026-01-02 03:04"),
        (Decimal("12"), 12),
        (Decimal("12.50"), 12.5),
        (b"\x01\xff", "01ff"),
        (True, True),
        (None, None),
        (["odd"], "['odd']"),
    ],
)
def test_values_come_as_json_has_them(value: Any, expected: Any) -> None:
    assert plain(value) == expected
