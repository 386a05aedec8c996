"""The console script: commands, exit statuses, one line an error, quick help."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import app.config_load
import app.process_log
import app.serve
from app import cli
from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_INTERRUPTED, EXIT_UNREACHABLE, EXIT_USAGE

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spawn(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-m", "app", *words], capture_output=True, text=True, env=environment, **more
    )


class Started:
    """Stands in for `app.serve`: notes what it was started with and ends with a status."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int | BaseException = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = status
        for command in ("serve", "run_role", "follow"):
            monkeypatch.setattr(app.serve, command, self.run)
        monkeypatch.setattr(app.process_log, "set_up_process_log", lambda settings: None)

    def run(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        if isinstance(self.status, BaseException):
            raise self.status
        return self.status


def test_help_names_every_group_and_serve_but_not_the_follower() -> None:
    told = spawn("--help")
    assert told.returncode == EXIT_DONE
    for command in ("serve", "config", "log", "replay"):
        assert f"\n  {command} " in told.stdout
    assert "follower" not in told.stdout


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from app.cli import run; run(['--help'])\n"
        "print(sorted({'pydantic', 'aiohttp', 'rich', 'grpc', 'prometheus_client'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert told.stdout.endswith("[]\n")


def test_help_is_quick() -> None:
    best = 9.0
    for _ in range(5):
        began = time.monotonic()
        assert spawn("--help").returncode == EXIT_DONE
        best = min(best, time.monotonic() - began)
        if best < 0.4:
            break
    assert best < 1.5, "0.1 s on an idle machine; a loaded one gets room"


@pytest.mark.parametrize("group", ["audit", "config", "db", "log", "replay"])
def test_a_group_shows_its_own_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([group, "--help"]) == EXIT_DONE
    assert "Commands" in capsys.readouterr().out


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == EXIT_DONE
    assert capsys.readouterr().out.startswith("picklog ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["frob"], "No such command 'frob': see `picklog --help`"),
        (["--frob"], "No such option"),
        (["serve", "--frob"], "see `picklog serve --help`"),
        (["config", "frob"], "No such command 'frob'"),
        (["replay", "verify", "--log"], "requires an argument"),
        (["serve", "--routers", "0"], "Invalid value for '--routers'"),
        (["serve", "--routers", "many"], "Invalid value for '--routers'"),
        (["serve", "--routers", "33"], "Invalid value for '--routers'"),
        (["replay", "explain"], "Missing argument"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == EXIT_USAGE
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("picklog: ") and out.err.count("\n") == 1
    assert told in out.err


@pytest.mark.parametrize("words", [[], ["config"], ["replay"]])
def test_without_a_command_the_help_is_shown_and_the_status_is_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == EXIT_USAGE
    assert "Usage: picklog" in capsys.readouterr().err


def test_a_mark_that_is_none_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.app.log_on_disk import some_picks, written

    data = written(some_picks(), tmp_path / "data")
    assert cli.run(["replay", "verify", "--log", str(data), "--from", "yesterday"]) == EXIT_USAGE
    out = capsys.readouterr()
    assert out.err.count("\n") == 1 and "yesterday" in out.err


def test_serve_is_given_configuration_and_data_and_its_status_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, status=EXIT_FOUND_WRONG)
    (tmp_path / "site.yaml").write_text("server: {bind_address: '127.0.0.1:1'}\n")
    assert cli.run(["serve", "-c", "site.yaml", "--data", "there", "--routers", "3"]) == EXIT_FOUND_WRONG
    [(loaded, data, routers)] = started.calls
    assert routers == 3
    assert loaded.config.server.bind_address == ("127.0.0.1:1",)
    assert data == Path("there")


def test_serve_searches_the_configuration_and_writes_where_offline_commands_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from app.log_places import DEFAULT_DATA

    monkeypatch.setattr(app.config_load, "SEARCHED", ())
    started = Started(monkeypatch)
    assert cli.run(["serve"]) == EXIT_DONE
    [(loaded, data, routers)] = started.calls
    assert loaded.path is None
    assert (data, routers) == (DEFAULT_DATA, 1)


KAFKA = "log: {kind: kafka, kafka: {bootstrap_servers: ['127.0.0.1:1']}}\n"


@pytest.mark.parametrize("command", ["ingest", "router"])
def test_a_process_of_one_role_listens_where_it_is_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, status=EXIT_FOUND_WRONG)
    (tmp_path / "site.yaml").write_text(KAFKA)
    own = ["--member", "one", "--bind", "127.0.0.1:7", "--bind", "[::1]:7"]
    for words in ([], ["--bind", "127.0.0.1:7"], own):
        assert cli.run([command, "-c", "site.yaml", "--data", "there", *words]) == EXIT_FOUND_WRONG
    roles = {call[0].value.name for call in started.calls}
    plans = [call[3] for call in started.calls]
    members = [call[4] for call in started.calls]
    assert roles == {command}
    assert [plan.addresses for plan in plans] == [None, ("127.0.0.1:7",), ("127.0.0.1:7", "[::1]:7")]
    assert [plan.is_shared for plan in plans] == [False, False, True]
    assert [plan.own_socket for plan in plans] == [None, None, Path("there/run/one.sock")]
    assert members == [None, None, "one"]


def test_a_member_without_an_address_listens_for_its_siblings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.config_load, "SEARCHED", ())
    started = Started(monkeypatch)
    assert cli.run(["ingest", "--member", "ingest"]) == EXIT_DONE
    assert started.calls[0][3].addresses == ()


def test_serve_is_for_a_log_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch)
    (tmp_path / "site.yaml").write_text(KAFKA)
    assert cli.run(["serve", "-c", "site.yaml"]) == EXIT_USAGE
    told = capsys.readouterr().err
    assert "`picklog ingest`, `picklog router`" in told and told.count("\n") == 1
    assert started.calls == []


@pytest.mark.parametrize("command", ["ingest", "router"])
def test_a_missing_client_of_kafka_is_told_with_its_remedy(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch)
    monkeypatch.setattr(app.config_load, "installed_extras", frozenset)
    (tmp_path / "site.yaml").write_text(KAFKA)
    assert cli.run([command, "-c", "site.yaml"]) == EXIT_USAGE
    assert "pip install 'picklog[kafka]'" in capsys.readouterr().err
    assert started.calls == []


def test_the_follower_is_given_its_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.config_load, "SEARCHED", ())
    started = Started(monkeypatch)
    assert cli.run(["follower", "--data", "there"]) == EXIT_DONE
    assert started.calls[0][0] == Path("there")


@pytest.mark.parametrize(
    ("text", "status"), [("server: {bind_adress: x}\n", EXIT_USAGE), (None, EXIT_UNREACHABLE)]
)
def test_serve_refuses_a_bad_configuration_before_anything_starts(
    text: str | None, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch)
    if text is not None:
        Path("site.yaml").write_text(text)
    assert cli.run(["serve", "-c", "site.yaml"]) == status
    assert started.calls == []
    assert capsys.readouterr().err.startswith("error: site.yaml")


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (KeyboardInterrupt(), EXIT_INTERRUPTED),
        (OSError(98, "Address already in use"), EXIT_UNREACHABLE),
    ],
)
def test_what_ends_serve_is_one_line(
    problem: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(app.config_load, "SEARCHED", ())
    monkeypatch.setattr(app.process_log, "say_findings", lambda loaded: None)
    Started(monkeypatch, problem)
    assert cli.run(["serve"]) == status
    told = capsys.readouterr().err
    assert told.startswith("picklog: ") and told.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.config_load, "SEARCHED", ())
    Started(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.run(["follower"])


def test_output_into_a_closed_pipe_ends_without_a_word(tmp_path: Path) -> None:
    command = f"{sys.executable} -m app config schema | head -c 1"
    told = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    assert (told.stdout, told.stderr) == ("{", "")
