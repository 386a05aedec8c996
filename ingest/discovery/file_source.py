"""Source `file`: follows Dynamo's file store by polling it, and leaves it as it is.

A pass is one look for the names, bounded reads for the values, and then a look every
`poll_us` whose differences are the changes. File I/O runs in a thread with a deadline: a
file server that hangs ends the pass and nothing else. A store whose root does not exist
yet is not an error: its first worker makes it, so the source waits and says so.

Sources: requirement rows FILE-01..03; field report B-001.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Final, Protocol, TypeVar

from ingest.discovery.blocking_calls import BlockingLane, CallHung
from ingest.discovery.file_listing import FileListing, Look, StoreFile
from ingest.discovery.settings import FileStore
from ingest.discovery.source import (
    EndReason,
    FoundKey,
    KeysChanged,
    NamesCut,
    NamesEnded,
    NamesListed,
    NamesRefused,
    ReadAt,
    SourceEvent,
    SourceFailed,
    ValuesRead,
    Watched,
    WatchesStand,
)

LOOK_S_MAX: Final = 10.0  # one look, or one batch of reads
READS_TOGETHER: Final = 128  # files of one batch
READ_TOGETHER_BYTES: Final = 16 << 20  # and the bytes that end it

Result = TypeVar("Result")


class Lane(Protocol):
    """Where blocking calls run, see BlockingLane."""

    async def call(self, function: Callable[[], Result], deadline_s: float) -> Result:
        """The function's result or exception. Raises CallHung after deadline_s."""


class FileSource:
    """Sessions on one store. Clocks in microseconds; the lane decides where file I/O runs."""

    name = "file"

    def __init__(
        self,
        store: FileStore,
        lane: Lane | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._store = store
        self._lane = lane or BlockingLane("picklog-file-store")
        self._clocks = (wall_us, monotonic_us)

    async def connect(self, waiting: Callable[[str], None]) -> FileSession:
        """Wait for the root, then a session. See DiscoverySource."""
        is_told = False
        while not await _on(self._lane, self._has_root):
            if not is_told:
                waiting("the store's folder does not exist yet")
                is_told = True
            await asyncio.sleep(self._store.poll_us / 1e6)
        return FileSession(self._store, self._lane, *self._clocks)

    def _has_root(self) -> bool:
        try:
            return stat.S_ISDIR(os.stat(self._store.root).st_mode)
        except FileNotFoundError:
            return False


class FileSession:
    """One pass over the store. See `source.Session` for what the steps promise."""

    def __init__(
        self,
        store: FileStore,
        lane: Lane,
        wall_us: Callable[[], int],
        monotonic_us: Callable[[], int],
    ) -> None:
        self.where = "file store"
        self._store = store
        self._lane = lane
        self._clocks = (wall_us, monotonic_us)
        self._listing = FileListing(store, (), *self._clocks)
        self._to_read: tuple[StoreFile, ...] = ()

    async def names(self, watched: Sequence[Watched]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. All prefixes come from one look."""
        self._listing = FileListing(self._store, watched, *self._clocks)
        look = await _on(self._lane, self._listing.look)
        self._to_read = look.changed
        for event in _oddities(look):
            yield event
        names: dict[Watched, list[bytes]] = {one: [] for one in watched}
        for file in look.changed:
            names[file.watched].append(file.key)
        for one, keys in names.items():
            if keys:
                yield NamesListed(one, tuple(keys))
            yield NamesEnded(one, look.number)

    async def values(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. A file that went since the look is missed by the next one."""
        async for refused, found in self._reads(self._to_read):
            for event in refused:
                yield event
            for watched, keys in found:
                yield ValuesRead(watched, keys)
        self._to_read = ()

    async def changes(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. Of each look, what went comes before what changed."""
        yield WatchesStand()
        while True:
            await asyncio.sleep(self._store.poll_us / 1e6)
            look = await _on(self._lane, self._listing.look)
            for event in _oddities(look):
                yield event
            for watched, group in groupby(look.gone, key=lambda pair: pair[0]):
                yield KeysChanged(watched, tuple(gone for _, gone in group))
            async for refused, found in self._reads(look.changed):
                for event in refused:
                    yield event
                for watched, keys in found:
                    yield KeysChanged(watched, keys)

    async def siblings(self, namespace: str, limit: int) -> tuple[str, ...]:
        """See Session. From the last look."""
        names = sorted(
            name for name in self._listing.namespaces if name != namespace and name.startswith(namespace)
        )
        return tuple(names[:limit])

    async def close(self) -> None:
        """See Session. Nothing is held open between calls."""

    async def _reads(
        self, files: Sequence[StoreFile]
    ) -> AsyncIterator[tuple[list[NamesRefused], list[tuple[Watched, tuple[FoundKey, ...]]]]]:
        """Contents in batches, in the order of `files`, which goes by prefix."""
        place = 0
        while place < len(files):
            read, place = await _on(self._lane, partial(self._read_batch, files, place))
            refused = [
                NamesRefused(keyspace, len(list(group)))
                for keyspace, group in groupby(file.keyspace for file, found in read if found is False)
            ]
            found = [(file.watched, one) for file, one in read if isinstance(one, FoundKey)]
            grouped = groupby(found, key=lambda pair: pair[0])
            yield refused, [(watched, tuple(one for _, one in group)) for watched, group in grouped]

    def _read_batch(
        self, files: Sequence[StoreFile], start: int
    ) -> tuple[list[tuple[StoreFile, FoundKey | bool | None]], int]:
        """Contents from `start` on; None: gone, False: unreadable. Also where the next batch starts."""
        read: list[tuple[StoreFile, FoundKey | bool | None]] = []
        size = 0
        for file in files[start : start + READS_TOGETHER]:
            try:
                found = self._listing.read(file)
            except OSError:
                read.append((file, False))
                continue
            read.append((file, found))
            size += found.size if found is not None and found.value is not None else 0
            if size > READ_TOGETHER_BYTES:
                break
        return read, start + len(read)


def _oddities(look: Look) -> Iterable[NamesRefused | NamesCut]:
    for keyspace, times in look.refused:
        yield NamesRefused(keyspace, times)
    for keyspace in look.cut:
        yield NamesCut(keyspace)


async def _on(lane: Lane, function: Callable[[], Result]) -> Result:
    """Run in the lane; what the file system says becomes the reason for the pass's end."""
    try:
        return await lane.call(function, LOOK_S_MAX)
    except CallHung as problem:
        raise SourceFailed(EndReason.HUNG, str(problem)) from problem
    except FileNotFoundError as problem:
        raise SourceFailed(EndReason.ROOT_MISSING, "the store's folder went") from problem
    except OSError as problem:
        name = errno.errorcode.get(problem.errno or 0, "OSError")
        raise SourceFailed(EndReason.UNREADABLE, name) from problem
