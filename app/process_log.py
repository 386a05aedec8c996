"""The process log: one line an event on stderr, as text for people or JSON for collectors.

A line is a time, a level, a logger, a stable English sentence and `key=value` pairs. What
the fleet or a client wrote may stand in a value, so every value is made printable and cut
before it is written: nothing in it can begin a line of its own or move a terminal's
cursor. Tracebacks are plain text without local variables, which would show prompts and
keys. Libraries that log through the standard library come out the same way.

A stderr that is closed or full of errors costs lines, never a request.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
import structlog

from app.config_findings import ConfigError, Finding
from app.config_load import LoadedConfig
from app.config_sections import LogFormat, LoggingSettings

VALUE_CHARACTERS_MAX: Final = 512
TRACE_CHARACTERS_MAX: Final = 16 * 1024
ITEMS_MAX: Final = 16
_TRACES: Final = ("trace", "exception")
_FOREIGN_QUIET: Final = ("aiohttp.access",)
_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

log = structlog.get_logger("picklog.config")


def set_up_process_log(settings: LoggingSettings, stream: TextIO | None = None) -> None:
    """Log as the settings say, from now on; may be called again when they change.

    stream: where to, stderr unless a test asks otherwise.
    """
    level = _LEVELS[settings.level.value]
    render = _as_json if settings.format is LogFormat.JSON else _as_text
    structlog.configure(
        processors=[_named, structlog.processors.format_exc_info, _printable, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: _Line(names[0] if names else "picklog", stream),
        cache_logger_on_first_use=False,  # settings may change while the process runs
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else logging.INFO)
    for name in _FOREIGN_QUIET:
        logging.getLogger(name).disabled = True


def say_findings(loaded: LoadedConfig) -> None:
    """Log what start-up should say of a valid configuration, once."""
    if loaded.path is None:
        log.warning("no configuration file was found, defaults apply")
    else:
        log.info("configuration read", file=str(loaded.path), digest=loaded.digest)
    for finding in loaded.report.warnings:
        log.warning("the configuration deserves a look", **_pairs(finding))


def say_refused(refused: ConfigError) -> None:
    """Log a changed configuration that is refused; the one in force stays."""
    for finding in refused.findings:
        log.error("the changed configuration is refused, the one in force stays", **_pairs(finding))


def _pairs(finding: Finding) -> dict[str, str]:
    found = {"key": finding.path, "problem": finding.message, "remedy": finding.hint}
    if finding.place is not None:
        found["where"] = str(finding.place)
    return {name: value for name, value in found.items() if value}


class _Line:
    """Writes finished lines; the logger at the end of structlog's chain."""

    def __init__(self, name: str, stream: TextIO | None) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write one line, or lose it where stderr is gone."""
        stream = self._stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = msg


class _Forward(logging.Handler):
    """Lines of the standard library's loggers, through the same chain."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            pairs: dict[str, Any] = {}
            if record.exc_info and record.exc_info[0] is not None:
                pairs["exc_info"] = record.exc_info
            name = record.levelname.lower()
            level = name if name in _LEVELS else "error"
            getattr(structlog.get_logger(record.name), level)(record.getMessage(), **pairs)
        except Exception:  # a line of a library must not end a request
            self.handleError(record)


def _named(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Time, level and logger first."""
    told = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": method,
        "logger": getattr(logger, "name", "picklog"),
    }
    told["event"] = event.get("event", "")
    return {**told, **event, **told}


def _printable(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Every value fit to be written; tracebacks keep their line ends."""
    return {
        name: _trace(value) if name in _TRACES and isinstance(value, str) else _value(value)
        for name, value in event.items()
    }


def _value(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return value
    if isinstance(value, bytes):
        return value[:VALUE_CHARACTERS_MAX].hex()
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value[:ITEMS_MAX]]
        return [*items, f"and {len(value) - ITEMS_MAX} more"] if len(value) > ITEMS_MAX else items
    if isinstance(value, Mapping):
        return _value([f"{name}: {item}" for name, item in list(value.items())[: ITEMS_MAX + 1]])
    return _text(str(value), VALUE_CHARACTERS_MAX)


def _text(text: str, characters_max: int) -> str:
    if len(text) > characters_max:
        text = text[: characters_max - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _trace(text: str) -> str:
    lines = text.strip("\n")[-TRACE_CHARACTERS_MAX:].split("\n")
    return "\n".join(_text(line, VALUE_CHARACTERS_MAX) for line in lines)


def _as_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    return orjson.dumps(event).decode()


def _as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """`time level logger: sentence key=value`; traces follow, indented."""
    head = f"{event.pop('time')} {event.pop('level'):<7} {event.pop('logger')}: {event.pop('event', '')}"
    traces = [event.pop(name) for name in _TRACES if isinstance(event.get(name), str)]
    pairs = [f"{name}={_quoted(value)}" for name, value in event.items()]
    indented = ["    " + line for trace in traces for line in trace.split("\n")]
    return "\n".join([" ".join([head, *pairs]), *indented])


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_quoted(item) for item in value) + "]"
    text = str(value)
    if text and not any(c in ' "=,[]' for c in text):
        return text
    return '"' + text.replace('"', '\\"') + '"'
