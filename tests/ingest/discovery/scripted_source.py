"""A source over a store in memory, whose faults a test can script (TST-02). On virtual time.

The store counts revisions, keeps a history for watches, and can be compacted, restored or
made to fail at any step.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence

from ingest.discovery.source import (
    Denied,
    EndReason,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesEnded,
    NamesListed,
    ReadAt,
    SourceEvent,
    SourceFailed,
    ValuesRead,
    Watched,
    WatchesStand,
)
from projections.events.discovery import Keyspace

PAGE = 2  # small, so that every listing has several pages


class MemoryStore:
    """Keys with revisions and their history."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.keys: dict[bytes, tuple[int, bytes]] = {}
        self.history: list[tuple[int, bytes, bytes | None]] = []
        self.changed = asyncio.Event()

    async def put(self, key: str | bytes, value: bytes) -> None:
        self.write(key, value)

    async def delete(self, key: str | bytes) -> None:
        self.write(key, None)

    def write(self, key: str | bytes, value: bytes | None) -> None:
        raw = key.encode() if isinstance(key, str) else key
        self.revision += 1
        if value is None:
            self.keys.pop(raw, None)
        else:
            self.keys[raw] = (self.revision, value)
        self.history.append((self.revision, raw, value))
        self.changed.set()

    def compact(self) -> None:
        self.compacted = self.revision
        self.history = []

    def restore(self, revision: int, keys: dict[str, bytes]) -> None:
        """A backup comes back: fewer keys, a smaller revision, no history."""
        self.revision = revision
        self.keys = {key.encode(): (revision, value) for key, value in keys.items()}
        self.history, self.compacted = [], 0


class ScriptedSource:
    """Faults: `dial`, `names`, `values` or `watch` mapped to what happens there, once each call.

    A fault is a SourceFailed or other exception to raise, or a number of seconds to hang.
    """

    name = "etcd"

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.faults: dict[str, list[BaseException | float]] = {}
        self.denied: set[Keyspace] = set()
        self.calls: Counter[str] = Counter()
        self.watched_from: list[dict[Watched, int]] = []
        self.before_watch: list[Callable[[], None]] = []
        self.open_sessions = 0
        self.break_watch = asyncio.Event()
        self.break_reason = EndReason.STREAM
        self.close_hangs_s = 0.0

    async def connect(self, waiting: Callable[[str], None]) -> ScriptedSession:
        await self.meet("dial")
        self.open_sessions += 1
        return ScriptedSession(self)

    async def meet(self, step: str) -> None:
        self.calls[step] += 1
        faults = self.faults.get(step)
        if not faults:
            return
        fault = faults.pop(0)
        if isinstance(fault, BaseException):
            raise fault
        await asyncio.sleep(fault)


class ScriptedSession:
    """See `source.Session`."""

    where = "memory"

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source
        self._store = source.store
        self._is_closed = False

    async def names(self, watched: Sequence[Watched]) -> AsyncGenerator[SourceEvent, None]:
        for one in watched:
            await self._source.meet("names")
            if one.keyspace in self._source.denied:
                yield Denied(one)
                continue
            names = sorted(key for key in self._store.keys if key.startswith(one.prefix.encode()))
            for start in range(0, len(names), PAGE):
                yield NamesListed(one, tuple(names[start : start + PAGE]))
            yield NamesEnded(one, self._store.revision)

    async def values(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        for at in listed:
            await self._source.meet("values")
            prefix = at.watched.prefix.encode()
            found = [
                FoundKey(key, revision, value, len(value))
                for key, (revision, value) in sorted(self._store.keys.items())
                if key.startswith(prefix) and revision <= at.revision
            ]
            for start in range(0, len(found), PAGE):
                yield ValuesRead(at.watched, tuple(found[start : start + PAGE]))

    async def changes(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        await self._source.meet("watch")
        for action in self._source.before_watch:
            action()
        self._source.watched_from.append({at.watched: at.revision + 1 for at in listed})
        if any(at.revision + 1 <= self._store.compacted for at in listed):
            raise SourceFailed(EndReason.COMPACTED, "scripted")
        yield WatchesStand()
        told = {at.watched: at.revision for at in listed}
        while True:
            self._store.changed.clear()  # before looking, so that nothing is missed
            for watched, after in list(told.items()):
                for revision, key, value in list(self._store.history):
                    if revision > after and key.startswith(watched.prefix.encode()):
                        told[watched] = revision
                        change = (
                            GoneKey(key, revision)
                            if value is None
                            else FoundKey(key, revision, value, len(value))
                        )
                        yield KeysChanged(watched, (change,))
            await self._more()

    async def _more(self) -> None:
        waits = [asyncio.ensure_future(e.wait()) for e in (self._store.changed, self._source.break_watch)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._source.break_watch.is_set():
            self._source.break_watch.clear()
            raise SourceFailed(self._source.break_reason, "scripted")

    async def siblings(self, namespace: str, limit: int) -> tuple[str, ...]:
        await self._source.meet("siblings")
        names = {key.split(b"/")[2].decode() for key in self._store.keys if key.startswith(b"v1/instances/")}
        return tuple(sorted(n for n in names if n.startswith(namespace) and n != namespace)[:limit])

    async def close(self) -> None:
        if not self._is_closed:
            await asyncio.sleep(self._source.close_hangs_s)
            self._is_closed = True
            self._source.open_sessions -= 1
