"""Reads the configuration again when its files change, whole or not at all.

A change is seen by looking at the files once a second (size, time, inode behind symbolic links, so that a
rename and a mounted ConfigMap are seen too). It is read when the files stood still between two looks,
since the first half of a file can be a valid configuration with half the backends (field report B-142). A
configuration that is refused is reported once and changes nothing: the one in force stays (REL-17).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from app.config_findings import ConfigError
from app.config_load import LoadedConfig

POLL_S = 1.0

Signature = tuple[tuple[int, int, int] | None, ...]
"""Size, modification time (ns) and inode of each file; None where it cannot be looked at."""


class FileWatch:
    """Decides from one look to the next whether to read. loaded: the signature of what is in force."""

    def __init__(self, loaded: Signature) -> None:
        self._settled = loaded
        self._last = loaded

    def should_read(self, seen: Signature) -> bool:
        """True when the files differ from what was last read and did not change since the last look."""
        stands_still = seen == self._last
        self._last = seen
        return stands_still and seen != self._settled

    def was_read(self, seen: Signature) -> None:
        """The files were read as they stood at `seen`, with or without success."""
        self._settled = seen
        self._last = seen


def look_at(paths: Iterable[Path]) -> Signature:
    """The present signature of the files; never raises for a missing or forbidden one."""
    seen: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            seen.append(None)
        else:
            seen.append((status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(seen)


async def watch_config_files(
    loaded: LoadedConfig,
    load: Callable[[], LoadedConfig],
    on_change: Callable[[LoadedConfig], Awaitable[None]],
    on_refused: Callable[[ConfigError], None],
    poll_s: float = POLL_S,
) -> None:
    """Runs until cancelled. loaded: what is in force; load: reads and checks everything anew, in a thread.

    on_change gets each valid new configuration, also one that differs in nothing; on_refused each refused
    one. Files are those that the last valid configuration was read from; without any there is nothing to
    watch.
    """
    paths = loaded.watched
    watch = FileWatch(look_at(paths))
    while paths:
        await asyncio.sleep(poll_s)
        seen = look_at(paths)
        if not watch.should_read(seen):
            continue
        try:
            fresh = await asyncio.to_thread(load)
        except ConfigError as refusal:
            watch.was_read(seen)
            on_refused(refusal)
            continue
        if look_at(paths) != seen:
            continue
        paths = fresh.watched
        watch.was_read(seen if fresh.watched == loaded.watched else look_at(paths))
        loaded = fresh
        await on_change(fresh)
