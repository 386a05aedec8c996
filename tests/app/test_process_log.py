"""The process log: one printable line an event, as text or JSON, whatever is in it."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from app.config_findings import ConfigError
from app.config_load import load_config
from app.config_sections import LogFormat, LoggingSettings, LogLevel
from app.process_log import (
    ITEMS_MAX,
    TRACE_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    say_findings,
    say_refused,
    set_up_process_log,
)

TEXT = LoggingSettings()
JSON = LoggingSettings(format=LogFormat.JSON)


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger("aiohttp.access").disabled)
    yield
    root.handlers, root.level = before[0], before[1]
    logging.getLogger("aiohttp.access").disabled = before[2]
    structlog.reset_defaults()


def lines(settings: LoggingSettings) -> io.StringIO:
    out = io.StringIO()
    set_up_process_log(settings, out)
    return out


def test_a_text_line_has_time_level_logger_sentence_and_pairs() -> None:
    out = lines(TEXT)
    structlog.get_logger("picklog.fleet").warning("workers left", number=3, who="a b", none=None)
    time, rest = out.getvalue().split(" ", 1)
    assert time.endswith("Z") and time[10] == "T"
    assert rest == 'warning picklog.fleet: workers left number=3 who="a b" none=None\n'


def test_a_json_line_is_one_document() -> None:
    out = lines(JSON)
    structlog.get_logger("picklog.fleet").info("settings adopted", version=7, keys=("a", "b"))
    document = json.loads(out.getvalue())
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "info",
        "logger": "picklog.fleet",
        "event": "settings adopted",
        "version": 7,
        "keys": ["a", "b"],
    }


def test_pairs_cannot_replace_time_level_and_logger() -> None:
    out = lines(JSON)
    structlog.get_logger("x").info("said", time="never", level="none", logger="other")
    document = json.loads(out.getvalue())
    assert (document["level"], document["logger"]) == ("info", "x")
    assert document["time"] != "never"


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        (LogLevel.DEBUG, ["d", "i", "w", "e"]),
        (LogLevel.INFO, ["i", "w", "e"]),
        (LogLevel.WARNING, ["w", "e"]),
        (LogLevel.ERROR, ["e"]),
    ],
)
def test_a_level_silences_those_below_it(level: LogLevel, heard: list[str]) -> None:
    out = lines(LoggingSettings(level=level, format=LogFormat.JSON))
    log = structlog.get_logger("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == heard


def test_changed_settings_hold_for_loggers_that_were_made_before() -> None:
    log = structlog.get_logger("x")
    before = lines(LoggingSettings(level=LogLevel.ERROR))
    log.info("silent")
    after = lines(JSON)
    log.info("heard")
    assert before.getvalue() == ""
    assert json.loads(after.getvalue())["event"] == "heard"


@given(st.text(), st.sampled_from([TEXT, JSON]))
def test_any_value_stays_inside_one_printable_line(value: str, settings: LoggingSettings) -> None:
    out = lines(settings)
    structlog.get_logger("x").warning("said", value=value, items=[value], odd={value: value})
    [line] = out.getvalue().split("\n")[:-1]
    assert line.isprintable()
    line.encode()


@pytest.mark.parametrize(
    "value", [1 << 80, -(1 << 80), float("nan"), b"\xff" * 4, object(), {1: 2}, "\ud800"]
)
def test_any_kind_of_value_can_be_said_as_json(value: object) -> None:
    out = lines(JSON)
    structlog.get_logger("x").warning("said", value=value)
    assert "value" in json.loads(out.getvalue())


def test_values_and_lists_have_ceilings() -> None:
    out = lines(JSON)
    structlog.get_logger("x").warning("said", value="x" * 100_000, items=list(range(100)))
    document = json.loads(out.getvalue())
    assert len(document["value"]) == VALUE_CHARACTERS_MAX
    assert document["items"] == [*range(ITEMS_MAX), "and 84 more"]


def test_a_traceback_is_indented_below_its_line_and_shows_no_variables() -> None:
    out = lines(TEXT)
    prompt = "a secret prompt"
    try:
        raise ValueError("broken" + prompt[:0])
    except ValueError:
        structlog.get_logger("x").exception("a task ended")
    head, *trace = out.getvalue().splitlines()
    assert head.endswith("x: a task ended")
    assert trace[-1] == "    ValueError: broken"
    assert all(line.startswith("    ") for line in trace)
    assert "a secret prompt" not in out.getvalue().replace('prompt = "a secret prompt"', "")


def test_a_trace_given_as_text_keeps_its_end_under_a_ceiling() -> None:
    out = lines(JSON)
    structlog.get_logger("x").error("failed", trace="begin\n" + "line\n" * 10_000 + "the end")
    trace = json.loads(out.getvalue())["trace"]
    assert trace.endswith("the end") and len(trace) <= TRACE_CHARACTERS_MAX


def test_lines_of_libraries_come_out_the_same_way() -> None:
    out = lines(JSON)
    logging.getLogger("asyncio").error("Task %s was\nnever retrieved", "t")
    logging.getLogger("aiohttp.access").error("GET / of somebody")
    [line] = out.getvalue().splitlines()
    document = json.loads(line)
    assert (document["logger"], document["level"]) == ("asyncio", "error")
    assert document["event"] == "Task t was\\nnever retrieved"


def test_chatter_of_libraries_is_left_out_unless_debugging() -> None:
    out = lines(JSON)
    logging.getLogger("asyncio").info("using epoll")
    assert out.getvalue() == ""
    out = lines(LoggingSettings(level=LogLevel.DEBUG, format=LogFormat.JSON))
    logging.getLogger("asyncio").info("using epoll")
    assert json.loads(out.getvalue())["event"] == "using epoll"


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stderr_that_is_gone_costs_the_line_and_nothing_else() -> None:
    set_up_process_log(TEXT, Gone())
    structlog.get_logger("x").error("unheard")
    closed = io.StringIO()
    closed.close()
    set_up_process_log(TEXT, closed)
    structlog.get_logger("x").error("unheard")


def test_start_says_the_file_and_what_deserves_a_look(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("log: {retention: {age: 1h}}\n")
    out = lines(JSON)
    say_findings(load_config(file, environment={}))
    documents = [json.loads(line) for line in out.getvalue().splitlines()]
    assert documents[0]["event"] == "configuration read"
    assert documents[0]["file"] == str(file)
    [short] = [one for one in documents if one.get("key") == "log.retention.age"]
    assert (short["level"], short["where"]) == ("warning", f"{file}:1")
    assert short["problem"] == "keeps less than 24h to replay"


@pytest.mark.req("REL-17")
def test_a_refused_change_is_said_with_key_and_remedy_and_without_values(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("admin: {auth: {method: bearer_token, token: hunter2, colour: red}}\n")
    out = lines(JSON)
    with pytest.raises(ConfigError) as refused:
        load_config(file, environment={})
    say_refused(refused.value)
    document = json.loads(out.getvalue())
    assert (document["level"], document["key"]) == ("error", "admin.auth.colour")
    assert "the one in force stays" in document["event"]
    assert "hunter2" not in out.getvalue()
