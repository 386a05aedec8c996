"""Which other configuration the shadow picks by: the settings in force say, the file tells.

The settings that the log's owner adopted stand in the log, with `shadow.config` among them;
so a shadow comes and goes with any adoption, from a file or the admin endpoint, at the
place in the log where it was adopted. The named file is read here, looked at again each
second, and read anew when it changed. What cannot be read is said once, and no shadow is
asked until it can.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import structlog

from app.config_adoption import pick_settings
from app.config_findings import ConfigError
from app.config_load import Signature, load_config, look_at, settings_digest
from app.shadow import ShadowSettings
from projections.events.held import SettingsHeld

log = structlog.get_logger("picklog.shadow")

OVERRIDE_PREFIX = "PICKLOG__"


class ShadowFile:
    """The shadow's configuration. folder: what a relative `shadow.config` lies below."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = -1
        self._path: Path | None = None
        self._seen: Signature | None = None
        self._held: ShadowSettings | None = None

    def look(self, adopted: SettingsHeld | None) -> ShadowSettings | None:
        """The shadow under the settings in force, None without one. Cheap where nothing changed."""
        if adopted is not None and adopted.version != self._version:
            self._version = adopted.version
            named = _named(adopted.settings)
            path = self._folder / named if named is not None else None
            if path != self._path:
                self._path, self._seen, self._held = path, None, None
        if self._path is None:
            return None
        seen = look_at([self._path])
        if seen != self._seen:
            self._seen = seen
            self._held = _read(self._path)
        return self._held


def shadow_settings(path: Path) -> ShadowSettings:
    """What a configuration file picks by. Raises ConfigError, OSError.

    Overrides of the environment are the running router's; they do not reach into it.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OVERRIDE_PREFIX)}
    config = load_config(path, environment=variables).config
    return ShadowSettings(pick_settings(config), settings_digest(config), str(path))


def _read(path: Path) -> ShadowSettings | None:
    try:
        found = shadow_settings(path)
    except (ConfigError, OSError) as problem:
        log.error("no shadow is asked: its configuration cannot be used", file=str(path), cause=str(problem))
        return None
    log.info("a shadow is asked", file=str(path), digest=found.digest, picker=found.pick.picker)
    return found


def _named(settings: str) -> str | None:
    """`shadow.config` in the masked settings of an adoption."""
    try:
        named = orjson.loads(settings)["shadow"]["config"]
    except (ValueError, KeyError, TypeError):
        return None
    return named if isinstance(named, str) and named else None
