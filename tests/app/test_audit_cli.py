"""`picklog audit`: answers for people and scripts, one line for what is wrong, and its status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app import cli
from app.audit_query import ROWS_MAX, run
from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE
from app.sql_queries import REPORTS
from tests.app.audit_site import eventful, rows, sqlite_url
from tests.app.log_on_disk import written

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with its audit database."""
    data = written(eventful(), tmp_path_factory.mktemp("site") / "data")
    assert cli.run(["audit", "backfill", "--log", str(data), "--candidates", "8"]) == EXIT_DONE
    return data


def audit(capfd: Capture, *words: str | Path) -> tuple[int, str, str]:
    status = cli.run(["audit", *map(str, words)])
    out = capfd.readouterr()
    return status, out.out, out.err


def test_backfill_says_which_logs_it_reads(capfd: Capture) -> None:
    status, out, _ = audit(capfd, "backfill", "--help")
    assert status == EXIT_DONE and "kafka:FILE" in out and "a capture" in out


@pytest.mark.req("EVS-09")
def test_backfill_writes_what_the_log_holds_and_says_how_much(tmp_path: Path, capfd: Capture) -> None:
    data = written(eventful(), tmp_path / "data")
    status, out, _ = audit(capfd, "backfill", "--log", data)
    assert status == EXIT_DONE
    assert f"from {data}, records 0 to " in out
    found = run(rows(sqlite_url(data)))
    assert len(found["picks"]) == sum(row["picks"] for row in found["rollups"]) == 8
    status, again, _ = audit(capfd, "backfill", "--log", data, "--db", tmp_path / "other.sqlite")
    assert (status, again) == (EXIT_DONE, out)
    assert run(rows(sqlite_url(tmp_path, "other.sqlite"))) == run(rows(sqlite_url(data)))


def test_a_query_is_answered_as_table_json_and_csv(site: Path, capfd: Capture) -> None:
    sql = "SELECT request_id, suspect FROM picks ORDER BY log_offset LIMIT 2"
    status, out, _ = audit(capfd, "query", sql, "--log", site)
    assert (status, "first-0" in out, out.endswith("2 rows\n")) == (EXIT_DONE, True, True)
    _, out, _ = audit(capfd, "query", sql, "--log", site, "--format", "csv")
    assert out.splitlines() == ["request_id,suspect", "first-0,0", "first-1,0"]
    for words in (["--format", "json"], ["--json"]):
        _, out, _ = audit(capfd, "query", sql, "--log", site, *words)
        assert [row["request_id"] for row in json.loads(out)] == ["first-0", "first-1"]


def test_an_answer_beyond_the_ceiling_is_cut_and_said_to_be(site: Path, capfd: Capture) -> None:
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10001) SELECT i FROM n"
    status, out, err = audit(capfd, "query", sql, "--log", site, "--format", "csv")
    assert status == EXIT_DONE
    assert len(out.splitlines()) == 1 + ROWS_MAX
    assert "cut at 10000 rows" in err


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("query", "DELETE FROM picks"), EXIT_USAGE, "only questions"),
        (("query", "SELECT * FROM nowhere"), EXIT_USAGE, "no such table: nowhere"),
        (("query", "SELECT 1", "--db", "mysql://u:hunter2@h/x"), EXIT_USAGE, "no audit database"),
        (("query", "SELECT 1", "--db", "nowhere.sqlite"), EXIT_UNREACHABLE, "no such database"),
        (("query", "SELECT 1", "--log", "nowhere"), EXIT_UNREACHABLE, "no data directory"),
        (("report", "frob"), EXIT_USAGE, "one of workers, spread"),
        (("report", "workers", "--from", "yesterday"), EXIT_USAGE, "no ISO time"),
        (("report", "workers", "--plot", "x.gif"), EXIT_USAGE, ".png or an .svg"),
        (("report", "workers", "--plot", "none/x.png"), EXIT_UNREACHABLE, "No such file or directory"),
        (("backfill", "--candidates", "some"), EXIT_USAGE, "0 to 65536, or all"),
        (("backfill", "--db", "postgresql://u:hunter2@127.0.0.1:1/x"), EXIT_UNREACHABLE, "is the database"),
        (("frob",), EXIT_USAGE, "No such command"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: tuple[str, ...], status: int, told: str, site: Path, capfd: Capture
) -> None:
    where = () if "--log" in words or words[0] == "frob" else ("--log", site)
    found, out, err = audit(capfd, *words, *where)
    assert (found, out) == (status, "")
    assert err.count("\n") == 1
    assert told in err
    assert "hunter2" not in err


def test_a_log_that_the_database_does_not_know_is_refused(site: Path, tmp_path: Path, capfd: Capture) -> None:
    other = written(eventful(), tmp_path / "data")
    database = tmp_path / "copy.sqlite"
    database.write_bytes((site / "audit.sqlite").read_bytes())
    status, out, err = audit(capfd, "backfill", "--log", other, "--db", database)
    assert (status, out) == (EXIT_USAGE, "")
    assert "follows log" in err


def test_reports_are_listed_and_each_is_given(site: Path, capfd: Capture) -> None:
    _, out, _ = audit(capfd, "report", "--json")
    assert [row["name"] for row in json.loads(out)] == list(REPORTS)
    for name in REPORTS:
        status, out, _ = audit(capfd, "report", name, "--log", site)
        assert status == EXIT_DONE, name
        assert out.rstrip().endswith(("rows", "row"))


def test_the_report_on_settings_says_what_changed(site: Path, capfd: Capture) -> None:
    _, out, _ = audit(capfd, "report", "configs", "--log", site, "--json")
    changed = [row["changed"] for row in json.loads(out)]
    assert changed == ["first version", 'dynamo.picker: absent -> "load_based"']


def test_a_window_bounds_the_picks_of_a_report(site: Path, capfd: Capture) -> None:
    window = ("--from", "1970-01-01T00:00:03Z", "--to", "1970-01-01T02:00:04+02:00")
    _, out, _ = audit(capfd, "report", "slowest", "--log", site, "--json", *window)
    assert [row["request_id"] for row in json.loads(out)] == ["first-1"]


def test_a_report_is_drawn_and_an_empty_one_is_warned_of(site: Path, tmp_path: Path, capfd: Capture) -> None:
    status, out, err = audit(capfd, "report", "workers", "--log", site, "--plot", tmp_path / "w.png")
    assert (status, out, err) == (EXIT_DONE, "", "")
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    _, _, err = audit(capfd, "report", "shadow", "--log", site, "--plot", tmp_path / "s.svg")
    assert "no rows" in err


def test_without_a_word_it_follows_a_data_directory(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def follow(*arguments: object) -> int:
        calls.append(arguments)
        return EXIT_UNREACHABLE

    monkeypatch.setattr("app.serve.follow", follow)
    monkeypatch.setattr("app.process_log.set_up_process_log", lambda settings: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["audit", "--data", str(site)]) == EXIT_UNREACHABLE
    [(data, loaded, with_parent, addresses)] = calls
    assert (data, with_parent, addresses) == (site, False, ())
    assert loaded is not None
    cli.run(["audit", "--data", str(site), "--bind", "127.0.0.1:0"])
    assert calls[1][3] == ("127.0.0.1:0",)


@pytest.mark.parametrize(
    ("audit", "told"),
    [
        ({}, "audit.sink is not stream: the follower writes into the database itself"),
        ({"sink": "stream"}, "log.kafka.bootstrap_servers: is empty, and audit.sink is stream"),
    ],
)
def test_a_stream_worker_is_refused_where_the_configuration_has_none(
    audit: dict[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"audit": audit}))
    assert cli.run(["audit", "stream", "-c", str(file)]) == EXIT_USAGE
    assert told in capsys.readouterr().err
