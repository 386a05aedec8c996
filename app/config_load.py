"""From files, environment and command line to one checked configuration.

Strongest first: command line overrides, environment (`PICKLOG__SERVER__BIND_ADDRESS`), the file,
defaults. The file is `-c FILE` or the first of the search order. `${NAME}` in string values of the file
comes from the environment (CFG-49), `$${` stands for a plain `${`. Everything is merged as plain data,
read into the model once, and judged by `config_rules`; each finding carries the file and line, or the
variable, that its key came from.

Raises `ConfigError` for refused content and `ConfigUnreadable` for files that cannot be read; nothing else.
"""

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import blake3
import orjson
from pydantic import ValidationError

from app.config_findings import (
    ConfigError,
    ConfigUnreadable,
    Finding,
    KeyPath,
    Place,
    Places,
    Report,
    value_at,
)
from app.config_model import Config, keys_allowed_at, plain_settings
from app.config_rules import check_config
from app.config_yaml import FILE_BYTES_MAX, parse_scalar, parse_yaml

ENVIRONMENT_PREFIX = "PICKLOG__"
SEARCHED = ("./config.yaml", "/etc/picklog/config.yaml", "~/.config/picklog/config.yaml")
EXTRA_MODULES = {
    "etcd": ("grpc", "google.protobuf"),
    "etcd3": ("etcd3",),
    "faust": ("faust", "aiokafka"),
    "kafka": ("aiokafka",),
    "kv": ("jinja2", "minijinja", "tokenizers"),
}
"""Optional extras of the distribution and the modules that show that they are installed."""

RENAMED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("api_keys_file",): ("api_keys", "file"),
    ("health_checks", "endpoint"): ("health_checks", "path"),
}
"""Keys of the reference product that this router knows under another name."""

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


Signature = tuple[tuple[int, int, int] | None, ...]
"""Size, modification time (ns) and inode of each file; None where it cannot be looked at."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration, what was said about it, and where it came from."""

    config: Config
    report: Report
    path: Path | None
    """The file, or None where none was found and defaults serve."""

    watched: tuple[Path, ...] = ()
    """Files whose change may change the configuration."""

    seen: Signature = ()
    """How those files looked just before they were read, so that no later change is missed."""

    @property
    def digest(self) -> str:
        return settings_digest(self.config)


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    extras: frozenset[str] | None = None,
) -> LoadedConfig:
    """Find, read, merge and check.

    path: the file of `-c`; None searches `SEARCHED`. environment: default the process's. overrides:
    dotted keys of the command line (`server.bind_address`). extras: installed extras; default is what can
    be imported.
    """
    variables = os.environ if environment is None else environment
    file = find_config_file() if path is None else Path(path)
    data: dict[str, Any] = {}
    places = Places()
    watched: list[Path] = [] if file is None else [file]
    seen = look_at(watched)
    if file is not None:
        data, places = _read_mapping(file, variables)
        key_file = value_at(data, ("api_keys", "file"))
        if isinstance(key_file, str) and key_file:
            watched.append(file.parent / key_file)
            seen += look_at(watched[1:])
            _join_key_file(data, places, watched[1], variables)
    _merge_environment(data, places, variables)
    for dotted, value in (overrides or {}).items():
        _put(data, places, tuple(dotted.split(".")), value, Place("command line"))
    config, report = check_data(data, places, extras=extras)
    return LoadedConfig(config, report, file, tuple(watched), seen)


def check_data(
    data: object, places: Places | None = None, *, extras: frozenset[str] | None = None
) -> tuple[Config, Report]:
    """Plain data to a valid configuration, for files and for `PUT /admin/config`. Raises ConfigError."""
    known = places or Places()
    if not isinstance(data, dict):
        raise ConfigError(known.located([Finding((), "the configuration must be a mapping of keys")]))
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(known.located(_model_findings(error))) from None
    except RecursionError:
        raise ConfigError([Finding((), "the configuration is nested too deeply")]) from None
    report = check_config(config, installed_extras() if extras is None else extras)
    located = Report(
        *(known.located(group) for group in (report.errors, report.warnings, report.suggestions))
    )
    if located.errors:
        raise ConfigError(located.errors)
    return config, located


def find_config_file() -> Path | None:
    """The first file of the search order that exists."""
    for candidate in SEARCHED:
        path = Path(candidate).expanduser()
        if path.is_file():
            return path
    return None


def look_at(paths: Iterable[Path]) -> Signature:
    """The present signature of the files, behind symbolic links; never raises."""
    seen: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
        except (OSError, ValueError):
            seen.append(None)
        else:
            seen.append((status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(seen)


def installed_extras() -> frozenset[str]:
    """The optional extras whose modules can be imported; nothing is imported to find out."""
    return frozenset(extra for extra, modules in EXTRA_MODULES.items() if all(map(_is_installed, modules)))


def effective_settings(config: Config, *, masked: bool = True) -> dict[str, Any]:
    """All settings in force as plain data, defaults included; secrets masked unless asked otherwise."""
    settings: dict[str, Any] = plain_settings(config, masked=masked)
    return settings


def settings_digest(config: Config) -> str:
    """32 hex digits over the effective settings with secrets masked; a changed secret does not show."""
    canonical = orjson.dumps(effective_settings(config), option=orjson.OPT_SORT_KEYS)
    return blake3.blake3(canonical).hexdigest(length=16)


def substitute_variables(
    data: object, variables: Mapping[str, str], keys: KeyPath = ()
) -> tuple[object, list[Finding]]:
    """`${NAME}` in every string value replaced; findings name unset or malformed variables, never values."""
    findings: list[Finding] = []
    if isinstance(data, str):
        return _substitute(data, variables, keys, findings), findings
    if isinstance(data, dict):
        mapping = {}
        for key, value in data.items():
            mapping[key], more = substitute_variables(value, variables, (*keys, key))
            findings += more
        return mapping, findings
    if isinstance(data, list):
        items = []
        for index, value in enumerate(data):
            item, more = substitute_variables(value, variables, (*keys, index))
            items.append(item)
            findings += more
        return items, findings
    return data, findings


def _substitute(text: str, variables: Mapping[str, str], keys: KeyPath, findings: list[Finding]) -> str:
    def value_of(match: re.Match[str]) -> str:
        if match.group(0) == "$${":
            return "${"
        name, closed = match.group(1), match.group(2)
        if not closed or not _VARIABLE_NAME.fullmatch(name):
            findings.append(
                Finding(keys, "`${` does not begin a variable ${NAME}", "write $${ for the plain characters")
            )
        elif name not in variables:
            findings.append(Finding(keys, f"the environment variable {name} is not set", f"set {name}"))
        else:
            return variables[name]
        return ""

    return _VARIABLE.sub(value_of, text)


def _read_mapping(path: Path, variables: Mapping[str, str]) -> tuple[dict[str, Any], Places]:
    data, places = parse_yaml(_read_bounded(path), str(path))
    if not isinstance(data, dict):
        raise ConfigError(
            places.located([Finding((), "the file must hold keys, not a list or a single value")])
        )
    for old, new in RENAMED.items():
        _rename(data, places, old, new)
    substituted, findings = substitute_variables(data, variables)
    if findings:
        raise ConfigError(places.located(findings))
    assert isinstance(substituted, dict)
    return substituted, places


def _read_bounded(path: Path) -> bytes:
    """The bytes of a file, one more than the ceiling at most, so that the parser refuses the rest."""
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else "cannot be opened"
        raise ConfigUnreadable(
            [Finding((), f"cannot be read: {words}", "check -c and permissions", place)]
        ) from None


def _join_key_file(data: dict[str, Any], places: Places, path: Path, variables: Mapping[str, str]) -> None:
    """Append the keys of `api_keys.file`, a mapping with `keys` or a bare list, to the file's own."""
    raw, key_places = parse_yaml(_read_bounded(path), str(path))
    listed = raw.get("keys") if isinstance(raw, dict) else raw
    if not isinstance(listed, list) or (isinstance(raw, dict) and set(raw) != {"keys"}):
        raise ConfigError(
            key_places.located([Finding((), "the key file must hold one key `keys` with a list")])
        )
    substituted, findings = substitute_variables(listed, variables)
    if findings:
        raise ConfigError(key_places.located([replace(found, place=Place(str(path))) for found in findings]))
    own = data["api_keys"].get("keys") or []
    if not isinstance(own, list):
        return
    below = len(("keys",)) if isinstance(raw, dict) else 0
    for keys, place in key_places.known.items():
        tail = keys[below:]
        if tail and isinstance(tail[0], int):
            places.put(("api_keys", "keys", len(own) + tail[0], *tail[1:]), place)
    assert isinstance(substituted, list)
    data["api_keys"]["keys"] = [*own, *substituted]


def _rename(data: dict[str, Any], places: Places, old: tuple[str, ...], new: tuple[str, ...]) -> None:
    holder = value_at(data, old[:-1])
    if not isinstance(holder, dict) or old[-1] not in holder or value_at(data, new) is not None:
        return
    value, place = holder.pop(old[-1]), places.of(old)
    _put(data, places, new, value, place or Place("file"))


def _merge_environment(data: dict[str, Any], places: Places, variables: Mapping[str, str]) -> None:
    for name in sorted(variables):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        keys = tuple(part.lower() for part in name[len(ENVIRONMENT_PREFIX) :].split("__"))
        place = Place(f"environment {name}")
        if not all(keys):
            raise ConfigError([Finding((), "does not name a key", "write PICKLOG__SECTION__KEY", place)])
        _put(data, places, keys, parse_scalar(variables[name], place.source), place)


def _put(data: dict[str, Any], places: Places, keys: tuple[str, ...], value: object, place: Place) -> None:
    """Set one key of a stronger source; mappings on the way are made, a scalar in the way is an error."""
    holder = data
    for depth, key in enumerate(keys[:-1], start=1):
        below = holder.get(key)
        if below is None:
            below = holder[key] = {}
        if not isinstance(below, dict):
            raise ConfigError([Finding(keys[:depth], "holds no keys of its own", "set the whole key", place)])
        holder = below
    places.forget_below(keys)
    places.put(keys, place)
    holder[keys[-1]] = value


def _model_findings(error: ValidationError) -> list[Finding]:
    """pydantic's errors in our words. Inputs are left out: they may be secrets."""
    findings = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        keys: KeyPath = tuple(part for part in fault["loc"] if part != "[key]")
        if fault["type"] == "extra_forbidden":
            findings.append(Finding(keys, "unknown key", _did_you_mean(keys)))
        elif fault["type"] == "missing":
            findings.append(Finding(keys, "is required", "add it"))
        else:
            words = fault["msg"].removeprefix("Value error, ").replace("Input should", "should")
            for theirs, ours in _PLAIN_WORDS:
                words = theirs.sub(ours, words)
            findings.append(Finding(keys, words))
    return findings


_PLAIN_WORDS = (
    (re.compile("Tuple should"), "should"),
    (re.compile("a valid tuple"), "a list"),
    (re.compile(r"a valid dictionary( or instance of \w+)?"), "a map of keys"),
    (re.compile("a valid boolean, unable to interpret input"), "true or false"),
)
"""pydantic's words for types, and what people write in YAML."""


def _did_you_mean(keys: KeyPath) -> str:
    allowed = keys_allowed_at(keys[:-1])
    near = difflib.get_close_matches(str(keys[-1]), allowed, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"known here: {', '.join(sorted(allowed)[:12])}" if allowed else ""


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
