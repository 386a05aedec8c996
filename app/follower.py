"""The follower: folds the same log in a process of its own and writes elsewhere.

Here it writes checkpoints: at each `CheckpointDue` of the owner the fold pauses behind
that very record, the state is written in a thread, and folding goes on. Whatever may come a
second later belongs here, so that it never delays a pick. It writes nothing to the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import structlog

from app.fold_start import start_fold
from app.folding import overtaken
from app.log_tail import GATHER_IDLE_S, LogTail, monotonic_us
from app.processes import PARENT_VARIABLE
from app.tail import Restart, Seen, Tail
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue
from projections.events.ports import CheckpointInfo, CheckpointStore, LogReader, OffsetGone
from projections.fold import Fold

log = structlog.get_logger("picklog.follower")

RETRY_S = 5.0
PARENT_POLL_S = 1.0
FAR_BEHIND_RECORDS = 200_000  # while this much waits, due checkpoints are skipped: newer ones follow


class Follower:
    """Follows one log.

    on_checkpoint(offset): told in a thread after each written checkpoint. between(fold): awaited after
    each slice. before_start: awaited before a fold begins; it may fetch a checkpoint.
    tail, written, restarts: the fold, the newest checkpoint of this process, folds begun anew.
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore,
        on_checkpoint: Callable[[int], None] | None = None,
        between: Callable[[Fold], Awaitable[object]] | None = None,
        before_start: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._reader = reader
        self._checkpoints = checkpoints
        self._on_checkpoint = on_checkpoint
        self._between = between
        self._before_start = before_start
        self._is_due = False
        self.tail: Tail | None = None
        self.written: CheckpointInfo | None = None
        self.restarts = 0

    async def run(self) -> None:
        """Follow until cancelled; a fold that must start anew is started from an older checkpoint.

        Raises OffsetGone where retention removed records that no checkpoint bridges, LogCorrupt.
        """
        again: Restart | None = None
        gone: OffsetGone | None = None
        while True:
            if self._before_start is not None:
                await self._before_start()
            tail = self._begin(again, gone)
            shell = LogTail(
                self._reader,
                tail,
                on_ping=None,
                on_notices=lambda *_: None,
                on_folded=lambda: None,
                on_seen=self._note_due,
                between=self._rest,
                gather_s=GATHER_IDLE_S,
            )
            gone = None
            try:
                again = await shell.run()
            except OffsetGone as problem:
                gone = problem
                again = overtaken(tail, problem)
            self.restarts += 1
            if gone is None:
                await asyncio.sleep(RETRY_S)

    def _begin(self, again: Restart | None, gone: OffsetGone | None) -> Tail:
        before = again.before if again is not None else None
        condemned = again.condemned if again is not None else frozenset()
        start = start_fold(self._reader, self._checkpoints, before=before, condemned=condemned)
        for name, reason in start.passed_over:
            log.warning("a checkpoint is passed over", checkpoint=name, cause=reason)
        if gone is not None and start.incomplete:
            raise gone
        log.info("the follower begins", offset=start.next_offset)
        self._is_due = False
        self.tail = Tail(
            start.fold,
            bytes(16),
            monotonic_us(),
            condemned=condemned,
            pause_after=frozenset((CheckpointDue,)),
        )
        return self.tail

    def _note_due(self, _: Seen) -> None:
        self._is_due = True

    async def _rest(self) -> None:
        """Where a checkpoint is due, the fold stands right behind the record that said so."""
        assert self.tail is not None
        fold = self.tail.fold
        if self._is_due:
            self._is_due = False
            if self._reader.end_offset() - fold.mark.offset <= FAR_BEHIND_RECORDS:
                await asyncio.to_thread(self._write, fold)
        if self._between is not None:
            await self._between(fold)

    def _write(self, fold: Fold) -> None:
        mark = fold.mark
        began = time.monotonic()
        try:
            info = self._checkpoints.write(
                self._reader.log_id,
                mark.offset,
                mark.check,
                mark.time,
                checkpoint_records(fold, self._reader.log_id),
            )
        except OSError as problem:  # a full disk costs this checkpoint; the log goes on
            log.error("a checkpoint could not be written", offset=mark.offset, cause=str(problem))
            return
        self.written = info
        seconds = round(time.monotonic() - began, 3)
        log.info("checkpoint written", offset=info.offset, bytes=info.size_bytes, seconds=seconds)
        if self._on_checkpoint is not None:
            self._on_checkpoint(info.offset)


async def end_with_parent(parent: int) -> None:
    """Return when the process that started this one is gone.

    Its pid is taken as it was told: a parent that is killed while its child still imports
    has another one in its place by then. parent: the pid where none was told.
    """
    told = os.environ.get(PARENT_VARIABLE, "")
    if told.isdecimal():
        parent = int(told)
    while True:
        if os.getppid() != parent:
            return
        await asyncio.sleep(PARENT_POLL_S)
