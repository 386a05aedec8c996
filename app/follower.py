"""The follower: folds the same log in a process of its own and writes elsewhere.

Today it writes checkpoints: at each `CheckpointDue` of the owner the fold pauses behind
that very record, the state is written, and folding goes on. Whatever may come a second
later belongs here, so that it never delays a pick. It writes nothing to the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial

import structlog

from app.fold_start import start_fold
from app.log_tail import LogTail, monotonic_us
from app.processes import PARENT_VARIABLE
from app.tail import Seen, Tail
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue
from projections.events.ports import CheckpointStore, LogReader
from projections.fold import Fold

log = structlog.get_logger("picklog.follower")

RETRY_S = 5.0
PARENT_POLL_S = 1.0
FAR_BEHIND_RECORDS = 200_000  # while this much waits, due checkpoints are skipped: newer ones follow


class Follower:
    """Follows one log.

    on_checkpoint(offset): told after each written checkpoint. on_folded(fold): called between
    records, after each slice.
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore,
        on_checkpoint: Callable[[int], None] | None = None,
        on_folded: Callable[[Fold], object] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._checkpoints = checkpoints
        self._on_checkpoint = on_checkpoint
        self._on_folded = on_folded
        self.tail: Tail | None = None

    async def run(self) -> None:
        """Follow until cancelled; a fold that must start anew is started from an older checkpoint."""
        before: int | None = None
        condemned: frozenset[int] = frozenset()
        while True:
            start = start_fold(self._reader, self._checkpoints, before=before, condemned=condemned)
            for name, reason in start.passed_over:
                log.warning("a checkpoint is passed over", checkpoint=name, cause=reason)
            log.info("the follower begins", offset=start.next_offset)
            self.tail = Tail(
                start.fold,
                bytes(16),
                monotonic_us(),
                condemned=condemned,
                pause_after=frozenset((CheckpointDue,)),
            )
            shell = LogTail(
                self._reader,
                self.tail,
                on_ping=None,
                on_notices=lambda *_: None,
                on_folded=partial(self._on_folded, start.fold),
                on_seen=self._write,
            )
            again = await shell.run()
            before, condemned = again.before, again.condemned
            await asyncio.sleep(RETRY_S)

    def _write(self, seen: Seen) -> None:
        assert self.tail is not None
        fold = self.tail.fold
        if self._reader.end_offset() - seen.offset > FAR_BEHIND_RECORDS:
            return
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
