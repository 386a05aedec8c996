"""What differs between two versions of the settings, by dotted key, and in words."""

from __future__ import annotations

import json
from typing import Any

from projections.events.control import PickSettings
from projections.events.held import SettingsHeld

SETTINGS_NAMED_MAX = 12
TEXT_CHARACTERS_MAX = 80


def settings_changes(before: SettingsHeld | None, after: SettingsHeld | None) -> dict[str, tuple[Any, Any]]:
    """Dotted keys of the masked settings whose values differ, with both values."""
    was, now = _flat(before), _flat(after)
    return {
        key: (was.get(key), now.get(key))
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key)
    }


def settings_words(before: SettingsHeld | None, after: SettingsHeld | None) -> str:
    """`key before -> after` for the keys that differ, "" where nothing was before."""
    differing = settings_changes(before, after)
    parts = [f"{key} {value_text(was)} -> {value_text(now)}" for key, (was, now) in differing.items()]
    more = f" and {len(parts) - SETTINGS_NAMED_MAX} more" if len(parts) > SETTINGS_NAMED_MAX else ""
    return "" if before is None else ", ".join(parts[:SETTINGS_NAMED_MAX]) + more


def _flat(held: SettingsHeld | None) -> dict[str, Any]:
    """The settings by dotted key; what a pick reads where the text is not a JSON object."""
    if held is None:
        return {}
    try:
        document = json.loads(held.settings)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document:
        document = pick_document(held.pick)
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and value:
            waiting += [(f"{path}.{name}" if path else str(name), inner) for name, inner in value.items()]
        else:
            found[path] = value
    return found


def pick_document(pick: PickSettings) -> dict[str, Any]:
    """What a pick reads, by name, for JSON; `kv` and what is in it by name too, None where it is off."""
    kv: dict[str, Any] | None = None
    if pick.kv is not None:
        conditional = pick.kv.conditional
        kv = {
            **pick.kv._asdict(),
            "conditional": None if conditional is None else conditional._asdict(),
        }
    return {**pick._asdict(), "kv": kv}


def value_text(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 3] + "..."
