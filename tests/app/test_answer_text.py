"""Answers as a table, JSON or CSV."""

import csv
import io
import json

import pytest

from app.answer_text import Format, write_answer
from app.audit_query import ROWS_MAX, Answer

ODD = 'a, "b"\n\x1b[2J [bold]$x$'
ANSWER = Answer(("name", "count", "is_new"), [(ODD, 3, True), (None, 10, False)], False)


def test_json_is_one_document_of_objects(capfd: pytest.CaptureFixture[str]) -> None:
    write_answer(ANSWER, Format.JSON)
    assert json.loads(capfd.readouterr().out) == [
        {"name": ODD, "count": 3, "is_new": True},
        {"name": None, "count": 10, "is_new": False},
    ]


def test_csv_comes_back_as_it_went(capfd: pytest.CaptureFixture[str]) -> None:
    write_answer(ANSWER, Format.CSV)
    assert list(csv.reader(io.StringIO(capfd.readouterr().out, newline=""))) == [
        ["name", "count", "is_new"],
        [ODD, "3", "true"],
        ["", "10", "false"],
    ]


def test_a_table_shows_odd_text_harmlessly_and_counts_rows(capfd: pytest.CaptureFixture[str]) -> None:
    write_answer(ANSWER, Format.TABLE)
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "[bold]$x$" in out
    assert out.endswith("2 rows\n")


def test_an_answer_that_was_cut_is_said_to_be(capfd: pytest.CaptureFixture[str]) -> None:
    write_answer(ANSWER._replace(cut=True), Format.CSV)
    assert f"cut at {ROWS_MAX} rows" in capfd.readouterr().err
