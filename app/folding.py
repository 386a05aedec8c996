"""The fold of a process that picks: begun at a checkpoint, begun anew where it must be.

A fold that can go no further (a condemned record, a disagreement, records that retention
removed before they were read) is replaced. Until its
successor has reached the end of the log, picks are made on the one that stands, marked
suspect (decisions 10, 16): its state is old but whole, and own picks behind it are in the
overlay. Only then everybody is handed the new one, in one step.

A checkpoint may be whole and fit the log and yet be of another state: a fold that disagrees
before it ever agreed began with such a one, and no later one of this process does. What it held is
written aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from app.aside import Aside
from app.fold_start import FoldStart, start_fold
from app.log_tail import GATHER_S, LogTail, monotonic_us
from app.tail import Restart, Seen, StopReason, Tail
from projections.events.ports import CheckpointStore, LogReader, OffsetGone, RecordBatch
from projections.notices import Notice

LOOK_AGAIN_S = 1.0  # until a checkpoint is looked for again; doubles
LOOK_AGAIN_S_MAX = 30.0
DISTRUSTED_MAX = 256  # names remembered; a folder keeps fewer checkpoints

log = structlog.get_logger("picklog")


class Listener(Protocol):
    """The process that a fold serves. Calls are made on the event loop."""

    def append_ping(self, number: int, as_of: int) -> None:
        """Append a ping of this process."""

    def noticed(self, notices: tuple[Notice, ...], is_news: bool) -> None:
        """What a slice told; not news: from before this process, or told already."""

    def folded(self) -> None:
        """The standing fold has gone on."""

    def seen(self, seen: Seen) -> None:
        """A watched fact was folded, once for each offset."""

    def condemn(self, offset: int, detail: str) -> None:
        """An owner appends RecordCondemned."""

    def fold_given_up(self, reason: str) -> None:
        """A successor is being folded."""

    def fold_replaced(self, tail: Tail) -> None:
        """Picks are made on this one from now on."""


class Folding:
    """Folds for one process. Build it, then `run` it in a task.

    tail: the fold that picks read. newest: its successor while there is one, else the same.
    before_start: awaited before a fold is begun anew; it may fetch a checkpoint. on_batches: told all
    that is read, before it is folded, and again where a fold is begun anew. gather_s: see LogTail.
    data: directory in which a state that disagreed is written aside, None for nowhere.
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore,
        replica: bytes,
        watched: frozenset[type],
        listener: Listener,
        before_start: Callable[[], Awaitable[object]] | None = None,
        on_batches: Callable[[Sequence[RecordBatch]], None] | None = None,
        gather_s: float = GATHER_S,
        data: Path | None = None,
    ) -> None:
        self.aside = Aside(data, replica) if data is not None else None
        self._reader = reader
        self._checkpoints = checkpoints
        self._replica = replica
        self._watched = watched
        self._listener = listener
        self._before_start = before_start
        self._on_batches = on_batches
        self._gather_s = gather_s
        self._distrusted: dict[str, None] = {}  # checkpoints that nobody agreed with
        self.start = self._begun = start_fold(reader, checkpoints)
        say_start(self.start, reader.end_offset())
        self.tail = self.newest = self._tail_of(self.start, frozenset())
        self._shell = self._shell_of(self.tail, reader.end_offset())

    async def run(self) -> None:
        """Fold until cancelled. Raises LogError where the log cannot be read.

        OffsetGone is raised only where no checkpoint bridges what retention removed.
        """
        while True:
            gone: OffsetGone | None = None
            try:
                again = await self._shell.run()
            except OffsetGone as problem:
                gone = problem
                again = overtaken(self.newest, problem)
            given_up = self.newest
            log.error(
                "the fold is given up",
                reason=again.reason,
                detail=given_up.stopped_detail,
                offset=given_up.fold.mark.offset,
                digests=dict(given_up.fold.digests()),
                **self._put_aside(again, given_up),
            )
            self._listener.fold_given_up(again.reason)
            self._distrust(again)
            start = await self._start_again(again, gone)
            self._begun = start
            say_start(start, self._reader.end_offset())
            self.newest = self._tail_of(start, again.condemned)
            told = max(self.tail.fold.mark.offset, given_up.fold.mark.offset)
            self._shell = self._shell_of(self.newest, told + 1)

    def _put_aside(self, again: Restart, given_up: Tail) -> dict[str, str]:
        """Where the state goes, as a field of the line that tells of its end."""
        if again.reason != "disagreed":
            return {}
        if self.aside is None:
            return {"aside": "not written: this process has no data directory"}
        return {"aside": self.aside.begin(given_up.fold, self._reader.log_id)}

    def _distrust(self, again: Restart) -> None:
        """A fold that never agreed began with a wrong state: none begins with that one again."""
        begun = self._begun
        never_agreed = again.before is not None and again.before < begun.next_offset - 1
        if again.reason == "disagreed" and never_agreed and begun.checkpoint is not None:
            self._distrusted[begun.checkpoint.name] = None
            while len(self._distrusted) > DISTRUSTED_MAX:
                del self._distrusted[next(iter(self._distrusted))]

    async def _start_again(self, again: Restart, gone: OffsetGone | None) -> FoldStart:
        """Where the next fold begins. Waits for a checkpoint where all that are left are distrusted."""
        pause_s = LOOK_AGAIN_S
        while True:
            if self._before_start is not None:
                await self._before_start()
            start = self._start(again.before, again.condemned)
            if start.incomplete:  # a newer checkpoint is another process's word, and better than a hole
                start = self._start(None, again.condemned)
            if not start.incomplete or not self._distrusted:
                break
            log.error("no checkpoint is left to begin with", distrusted=[*self._distrusted], again_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(LOOK_AGAIN_S_MAX, 2 * pause_s)
        if gone is not None and start.incomplete:
            raise gone
        return start

    def _start(self, before: int | None, condemned: frozenset[int]) -> FoldStart:
        return start_fold(
            self._reader,
            self._checkpoints,
            before=before,
            condemned=condemned,
            distrusted=self._distrusted,
        )

    def tick(self) -> None:
        """Call at least twice a second."""
        self._shell.tick()

    def condemn_again(self) -> None:
        """The process can append only now: propose what the fold stopped at before."""
        stopped_at = self._shell.condemned
        if stopped_at is not None and self.newest.stopped is StopReason.POISON:
            self._listener.condemn(stopped_at.offset, stopped_at.detail)

    def _folded(self) -> None:
        if self.newest is not self.tail:
            is_behind = self.newest.queued_records or self.newest.next_offset < self._reader.end_offset()
            if is_behind or self.newest.stopped is not StopReason.NONE:
                return
            self.tail = self.newest
            log.info("the new fold stands", offset=self.tail.fold.mark.offset)
            self._listener.fold_replaced(self.tail)
        self._listener.folded()

    def _tail_of(self, start: FoldStart, condemned: frozenset[int]) -> Tail:
        return Tail(start.fold, self._replica, monotonic_us(), condemned=condemned, watched=self._watched)

    def _shell_of(self, tail: Tail, news_from: int) -> LogTail:
        return LogTail(
            self._reader,
            tail,
            news_from=news_from,
            on_ping=self._listener.append_ping,
            on_notices=self._listener.noticed,
            on_folded=self._folded,
            on_seen=self._listener.seen,
            on_condemn=self._listener.condemn,
            on_batches=self._on_batches,
            gather_s=self._gather_s,
        )


def overtaken(tail: Tail, gone: OffsetGone) -> Restart:
    """Retention passed this fold by: what its successor begins with."""
    log.warning(
        "retention removed records before they were folded: a newer checkpoint is looked for",
        wanted=gone.offset,
        oldest_kept=gone.first_offset,
    )
    return Restart("overtaken", None, tail.condemned)


def say_start(start: FoldStart, end_offset: int) -> None:
    """Where a fold begins, and what was passed over on the way, as lines of the process log."""
    for name, cause in start.passed_over:
        log.warning("a checkpoint is passed over", checkpoint=name, cause=cause)
    if start.incomplete:
        log.warning("the log's beginning is gone and no checkpoint bridges it: the fleet is read anew")
    used = start.checkpoint.name if start.checkpoint is not None else "none"
    log.info("folding", from_offset=start.next_offset, checkpoint=used, end=end_offset)
