"""Reads the configuration again when its files change, whole or not at all.

A change is seen by looking at the files once a second (size, time, inode behind symbolic links, so that a
rename and a mounted ConfigMap are seen too). It is read when the files stood still between two looks,
since the first half of a file can be a valid configuration with half the backends (field report B-142). A
configuration that is refused is reported once and changes nothing: the one in force stays (REL-17).
"""

import asyncio
from collections.abc import Awaitable, Callable

from app.config_findings import ConfigError
from app.config_load import LoadedConfig, Signature, look_at

POLL_S = 1.0


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
    watch = FileWatch(loaded.seen)
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
        read = dict(zip(fresh.watched, fresh.seen, strict=True))
        stood_still = all(read.get(path, look) == look for path, look in zip(paths, seen, strict=True))
        if stood_still and look_at(fresh.watched) == fresh.seen:
            paths = fresh.watched
            watch.was_read(fresh.seen)
            await on_change(fresh)
