"""What a writer sent last, looked for in the log: an append may have arrived though nobody said so.

A log that cannot be read just now is asked again. One whose reads wait for a network is asked in
the thread that commits, which has nothing to do meanwhile, so that no request waits with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from ingest.log.appends import FindOwn
from ingest.log.commit_thread import CommitThread
from projections.events.codec import RecordRefused, decode_record
from projections.events.ports import LogCorrupt, LogError, LogFailed, LogStore, OffsetGone

READ_BYTES = 1 << 20
AGAIN_S = 0.5

Found = dict[int, int]
log = structlog.get_logger("picklog.log")


class OwnSearch:
    """Of one writer. Calls are made on its event loop, and so are those that it makes.

    on_found: what became of it, sequences with offsets. fail: the log cannot be read any more.
    reads_apart: read in the commit thread.
    """

    def __init__(
        self,
        store: LogStore,
        commits: CommitThread,
        *,
        on_found: Callable[[Found], object],
        fail: Callable[[LogError], object],
        reads_apart: bool,
    ) -> None:
        self._store = store
        self._commits = commits
        self._on_found = on_found
        self._fail = fail
        self._reads_apart = reads_apart

    def begin(self, start: int, wanted: FindOwn) -> None:
        """Look from this offset on."""
        find = partial(own_records, self._store, start, wanted.writer, wanted.sequence)
        take = partial(self._take, start, wanted)
        if self._reads_apart:
            self._commits.run(find, take)
            return
        try:
            result: Found | BaseException = find()
        except LogError as problem:
            result = problem
        take(result)

    def _take(self, start: int, wanted: FindOwn, result: Found | BaseException) -> None:
        if isinstance(result, dict):
            self._on_found(result)
        elif isinstance(result, OffsetGone):
            gone = f"retention removed what it might be found in: {result}"
            self._fail(LogFailed(f"nobody can tell what became of the last append: {gone}"))
        elif isinstance(result, LogError) and not isinstance(result, LogCorrupt | LogFailed):
            log.warning("the log cannot be read for what was sent last", error=str(result))
            asyncio.get_running_loop().call_later(AGAIN_S, self.begin, start, wanted)
        else:
            told = LogFailed(f"the log cannot be read: {result}")
            self._fail(result if isinstance(result, LogError) else told)


def own_records(store: LogStore, start: int, writer: bytes, sequence: int) -> Found:
    """Sequences of `writer` from `sequence` on that stand in the log from `start` on, with offsets."""
    found: Found = {}
    while batches := store.read(start, READ_BYTES):
        for batch in batches:
            for offset, data in enumerate(batch.records, batch.first_offset):
                with suppress(RecordRefused):
                    record = decode_record(offset, data)
                    if record.writer == writer and record.sequence >= sequence:
                        found[record.sequence] = offset
        start = batches[-1].first_offset + len(batches[-1].records)
    return found
