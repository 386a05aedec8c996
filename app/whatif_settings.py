"""Which other settings `replay whatif` asks under: a configuration file's, values of a sweep, or both.

A swept value lies over the file's settings, or over those of each pick. Only what picks read can be
swept (see `PickSettings`), and whatever else a file says changes no pick.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail
from app.config_adoption import kv_pick_settings, pick_settings
from app.config_findings import ConfigError, ConfigUnreadable
from app.config_kv import KvSettings
from app.config_load import load_config
from app.config_model import Config
from app.config_rules import PICKER_NAMES
from app.config_units import Duration
from projections.events.control import KvPickSettings
from replay.alternative import Alternative
from router.picker.kv_aware import WEIGHT_MAX

ALTERNATIVES_MAX = 64
SWEEP_KEYS_MAX = 2
SWITCH = "dynamo.kv.enabled"


class _Value(NamedTuple):
    """A value of a swept setting. name: of the setting, short. text: as it was written."""

    name: str
    text: str
    field: str
    value: Any


def alternatives_of(path: Path | None, sweep: list[str]) -> list[Alternative]:
    """Under which settings to ask. path: another configuration. sweep: KEY=V1,V2,... each.

    Ends the command with status 2 for what cannot be asked, 3 for a file that cannot be read.
    """
    config = _config_of(path) if path is not None else None
    settings = pick_settings(config) if config is not None else None
    if not sweep:
        return [Alternative(path.name if path is not None else "the same settings", settings)]
    if len(sweep) > SWEEP_KEYS_MAX:
        fail(EXIT_USAGE, f"{len(sweep)} settings are swept", f"sweep one or {SWEEP_KEYS_MAX}")
    term = kv_pick_settings(config.dynamo.kv if config is not None else KvSettings())
    axes = [_axis(text, term) for text in sweep]
    if len({axis[0].name for axis in axes}) < len(axes):
        fail(EXIT_USAGE, f"--sweep {axes[0][0].name}: the setting is swept twice", "write its values once")
    count = math.prod(map(len, axes))
    if count > ALTERNATIVES_MAX:
        fail(EXIT_USAGE, f"the sweep has {count} combinations", f"at most {ALTERNATIVES_MAX} are asked")
    return [
        Alternative(
            ", ".join(f"{one.name}={one.text}" for one in combination),
            settings,
            tuple((one.field, one.value) for one in combination),
            tuple((one.name, one.text) for one in combination),
        )
        for combination in itertools.product(*axes)
    ]


def _config_of(path: Path) -> Config:
    try:
        return load_config(path).config
    except ConfigError as refused:
        status = EXIT_UNREACHABLE if isinstance(refused, ConfigUnreadable) else EXIT_USAGE
        fail(status, str(refused.findings[0]), "see `picklog config validate -c FILE`")


def _axis(text: str, term: KvPickSettings) -> list[_Value]:
    """Each value of a swept setting. term: the prefix term where it is switched on and there is none."""
    key, equals, values = text.partition("=")
    found = next((row for row in SWEPT if _is_named(key, row[0])), None)
    if not equals or found is None:
        keys = ", ".join(row[0] for row in SWEPT)
        fail(EXIT_USAGE, f"--sweep {text}: picks read no such setting", f"write KEY=V1,V2 with one of {keys}")
    path, field, read = found
    axis = []
    for written in dict.fromkeys(values.split(",")):
        try:
            value = read(written)
        except ValueError as problem:
            fail(EXIT_USAGE, f"--sweep {key}: {written!r} {problem}")
        if path == SWITCH:
            value = term if value else None
        axis.append(_Value(_short(path), written, field, value))
    return axis


def _short(path: str) -> str:
    """The end of a key that names it: many are called `enabled`."""
    return "kv.enabled" if path == SWITCH else path.rpartition(".")[2]


def _is_named(key: str, path: str) -> bool:
    """Whether `key` is the path, or the end of it that names it, or one between."""
    return f".{path}".endswith(f".{key}") and len(key) >= len(_short(path))


def _picker(text: str) -> str:
    if text not in PICKER_NAMES:
        raise ValueError(f"names no picker: one of {', '.join(sorted(PICKER_NAMES))}")
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(sorted(filter(None, text.split("+"))))
    if not names:
        raise ValueError("names no namespace: write one, or several joined by +")
    return names


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= WEIGHT_MAX:
        raise ValueError("is no number between 0 and 1e100")
    return weight


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text == "true"


SWEPT: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("dynamo.load.max_staleness", "max_staleness_us", lambda text: Duration.read(text).us),
    ("dynamo.picker", "picker", _picker),
    ("namespaces", "namespaces", _namespaces),
    (SWITCH, "kv", _switch),
    ("dynamo.kv.overlap_score_credit", "kv.overlap_credit", _weight),
    ("dynamo.kv.overlap_score_credit_decay", "kv.credit_decay", _weight),
    ("dynamo.kv.prefill_load_scale", "kv.prefill_scale", _weight),
    ("dynamo.kv.router_temperature", "kv.temperature", _weight),
    ("dynamo.kv.host_cache_hit_weight", "kv.host_credit", _weight),
    ("dynamo.kv.disk_cache_hit_weight", "kv.disk_credit", _weight),
    ("dynamo.kv.predicted_ttl", "kv.predicted_ttl_us", lambda text: Duration.read(text).us),
    ("dynamo.kv.approximate_ttl", "kv.approximate_ttl_us", lambda text: Duration.read(text).us),
)
"""Settings that picks read, by their configuration key: the field of PickSettings, and how a value reads."""
