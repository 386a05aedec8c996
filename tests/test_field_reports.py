"""The page of field reports and the tests that carry its ids name each other, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.sources import REPOSITORY, functions, modules

PAGE = REPOSITORY / "docs" / "field-reports.md"
NOT_APPLICABLE = "not applicable, because "
ROW = re.compile(r"^\| (B-\d{3}) \|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[^`:]+::test_\w+)`")


def table() -> dict[str, list[str]]:
    """Id -> the other cells of its row: source, what bit others, what we do, test."""
    rows = ROW.findall(PAGE.read_text())
    assert len({name for name, _ in rows}) == len(rows), "each id has one row"
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def named() -> set[tuple[str, str]]:
    """(id, path::test) of the table."""
    return {(name, test) for name, cells in table().items() for test in TEST.findall(cells[-1])}


def marked() -> set[tuple[str, str]]:
    """(id, path::test) of the marks."""
    return {
        (name, f"{module.path}::{function.name}")
        for module in modules("tests")
        for function in functions(module)
        if function.name.startswith("test_")
        for name in marks_of(function)
    }


def marks_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.field":
            for argument in decorator.args:
                assert isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                yield argument.value


def test_each_test_that_the_page_names_carries_the_mark() -> None:
    assert sorted(named() - marked()) == []


def test_each_mark_is_on_the_page() -> None:
    assert sorted(marked() - named()) == []


def test_each_row_is_whole_and_names_a_test_or_says_why_there_is_none() -> None:
    rows = table()
    assert list(rows) == sorted(rows)
    for name, cells in rows.items():
        assert len(cells) == 4 and all(cells), name
        tests, without = TEST.findall(cells[-1]), cells[-1].startswith(NOT_APPLICABLE)
        assert bool(tests) != without, name
        assert without or "<br>".join(f"`{test}`" for test in tests) == cells[-1], name


def test_no_row_of_the_table_is_listed_as_later() -> None:
    rows = table()
    _, _, later = PAGE.read_text().partition("\n## Later\n")
    listed = re.findall(r"B-\d{3}", later)
    assert listed and len(set(listed)) == len(listed)
    assert set(listed).isdisjoint(rows)
