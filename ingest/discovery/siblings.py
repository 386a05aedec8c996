"""Namespaces that are almost the configured one: a name with something after it.

Rollout tools register workers under a namespace with a suffix. A router that watches the
bare name then follows an empty prefix, correctly and silently. So while a configured
namespace has no instance at all, the store is asked now and then for namespaces that begin
with its name, and a new answer is worth a warning that names them.

Nothing that goes wrong here matters: the watch will say it. Source: field report B-010.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ingest.discovery.source import Session
from projections.notices import StatusNotice

LOOK_EVERY_US: Final = 30_000_000
LOOK_S_MAX: Final = 2.0  # of one question
NAMED_MAX: Final = 8


class SiblingNamespaces:
    """Remembers what was said, so that each set of names is said once."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, ...]] = {}

    async def look(
        self, session: Session, namespaces: Sequence[str], instances_of: Callable[[str], int]
    ) -> list[StatusNotice]:
        """Warnings to show. instances_of: held instances of a namespace. Raises nothing."""
        notices = []
        for namespace in namespaces:
            if instances_of(namespace):
                self._told.pop(namespace, None)
                continue
            try:
                async with asyncio.timeout(LOOK_S_MAX):
                    found = await session.siblings(namespace, NAMED_MAX)
            except Exception:
                break
            if found and found != self._told.get(namespace):
                self._told[namespace] = found
                text = f"{namespace}: {', '.join(found)}"
                notices.append(
                    StatusNotice("namespace has no instance, similar namespaces have", text, "warning")
                )
        return notices
