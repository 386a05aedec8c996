"""The thread that commits: one batch at a time, what became of it told to the event loop.

A batch comes every few milliseconds, so its way there and back counts: a plain queue and one
callback cost a third of a thread pool's futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from projections.events.ports import LogStore

OnCommitted = Callable[[int | BaseException], None]


class CommitThread:
    """Commits to one store. Begins with the first batch; `close` from another thread."""

    def __init__(self, store: LogStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._batches: SimpleQueue[tuple[Sequence[bytes], bool, OnCommitted] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="log-commit", daemon=True)
        self._is_running = False

    def commit(self, records: Sequence[bytes], critical: bool, on_committed: OnCommitted) -> None:
        """Commit a batch. on_committed: called in the loop with its first offset, or what was raised."""
        if not self._is_running:
            self._is_running = True
            self._thread.start()
        self._batches.put((records, critical, on_committed))

    def close(self) -> None:
        """Wait for what is under way and end."""
        if self._is_running:
            self._batches.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            records, critical, on_committed = batch
            result: int | BaseException
            try:
                result = self._store.commit(records, critical)
            except BaseException as problem:
                result = problem
            with suppress(RuntimeError):  # the loop was closed: nobody waits
                self._loop.call_soon_threadsafe(on_committed, result)
