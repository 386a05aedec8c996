"""The thread that commits: one batch at a time, what became of it told to the event loop.

Whatever else may not hold the loop and must not meet a commit is done in it too.

A batch comes every few milliseconds, so its way there and back counts: a plain queue and one
callback cost a third of a thread pool's futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from projections.events.ports import LogStore

T = TypeVar("T")
OnCommitted = Callable[[int | BaseException], None]


class CommitThread:
    """Commits to one store. Begins with the first batch; `close` from another thread."""

    def __init__(self, store: LogStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="log-commit", daemon=True)
        self._is_running = False

    def commit(self, records: Sequence[bytes], critical: bool, on_committed: OnCommitted) -> None:
        """Commit a batch. on_committed: called in the loop with its first offset, or what was raised."""
        self.run(partial(self._store.commit, records, critical), on_committed)

    def run(self, work: Callable[[], T], on_done: Callable[[T | BaseException], None]) -> None:
        """Do something else behind what waits. on_done: as `on_committed`."""
        if not self._is_running:
            self._is_running = True
            self._thread.start()
        self._work.put(partial(self._do, work, on_done))

    def close(self) -> None:
        """Wait for what is under way and end."""
        if self._is_running:
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _do(self, work: Callable[[], T], on_done: Callable[[T | BaseException], None]) -> None:
        result: T | BaseException
        try:
            result = work()
        except BaseException as problem:
            result = problem
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            self._loop.call_soon_threadsafe(on_done, result)
