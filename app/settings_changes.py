"""What changed between two settings documents, key by key, as people say it."""

from __future__ import annotations

from typing import Any

import orjson

CHANGES_MAX = 20  # told of one version; further ones are counted


def settings_changes(before: str | None, after: str) -> str:
    """`dynamo.picker: load_based -> kv_aware`, one a line; `first version` where none was before.

    Both are JSON text with secrets masked, so a secret that changed is not told.
    """
    if before is None:
        return "first version"
    try:
        old, new = _leaves(orjson.loads(before)), _leaves(orjson.loads(after))
    except orjson.JSONDecodeError:
        return "settings that cannot be read"
    lines = [
        f"{key}: {_said(old, key)} -> {_said(new, key)}"
        for key in sorted({*old, *new})
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]
    if len(lines) > CHANGES_MAX:
        lines = [*lines[:CHANGES_MAX], f"and {len(lines) - CHANGES_MAX} more"]
    return "\n".join(lines) or "nothing that is shown: a secret, or the same again"


_ABSENT = object()


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Values by dotted key; a list is one value unless it holds sections."""
    found: dict[str, Any] = {}
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            found |= _leaves(inner, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for place, inner in enumerate(value):
            found |= _leaves(inner, f"{path}[{place}]")
        return found
    return {path: value} if path else {}


def _said(leaves: dict[str, Any], key: str) -> str:
    return orjson.dumps(leaves[key]).decode() if key in leaves else "absent"
