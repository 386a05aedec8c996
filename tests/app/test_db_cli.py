"""`picklog db`: the schema is made, and told."""

import sqlite3
from pathlib import Path

import pytest

from app import cli
from app.audit_database import VERSION_TABLE, newest_revision
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE

Capture = pytest.CaptureFixture[str]


def test_a_database_is_made_and_its_schema_told(tmp_path: Path, capfd: Capture) -> None:
    file = str(tmp_path / "a.sqlite")
    assert cli.run(["db", "current", "--db", file]) == EXIT_UNREACHABLE
    assert "no such database" in capfd.readouterr().err
    for command in ("upgrade", "current"):
        assert cli.run(["db", command, "--db", file]) == EXIT_DONE
        assert capfd.readouterr().out == f"{newest_revision()}\n"


def test_the_database_of_a_data_directory_is_the_default(tmp_path: Path) -> None:
    assert cli.run(["db", "upgrade", "--log", str(tmp_path)]) == EXIT_DONE
    assert (tmp_path / "audit.sqlite").is_file()


def test_another_schema_is_found_wrong_and_not_touched(tmp_path: Path, capfd: Capture) -> None:
    file = str(tmp_path / "a.sqlite")
    cli.run(["db", "upgrade", "--db", file])
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    capfd.readouterr()
    assert cli.run(["db", "current", "--db", file]) == EXIT_FOUND_WRONG
    assert capfd.readouterr().out == "9999\n"
    assert cli.run(["db", "upgrade", "--db", file]) == EXIT_USAGE
    assert "newer than this release" in capfd.readouterr().err


def test_an_empty_database_has_no_schema(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "a.sqlite").touch()
    assert cli.run(["db", "current", "--db", str(tmp_path / "a.sqlite")]) == EXIT_FOUND_WRONG
    assert capfd.readouterr().out == "none\n"
