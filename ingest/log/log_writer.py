"""The asyncio shell of a writer: one thread that commits, the appender and the claim around it.

`append` never waits: it hands the fact to the machine and returns. Batches are committed in a thread of
their own, one at a time, so that no fdatasync holds the event loop; what arrives meanwhile makes the next
batch. The shell owns both clocks (boot time, and one look at the wall at start) and the random writer id.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from ingest.log.appender import Appender, Effect, FindOwn, Importance, Receipt, Reclaim, Send, Settled, Status
from ingest.log.commit_thread import CommitThread
from ingest.log.own_search import Found, OwnSearch
from ingest.log.ownership import Ownership
from ingest.log.spool import Spool, SpoolDamaged
from ingest.log.spool_notes import SpoolNotes
from ingest.log.upkeep_rounds import UpkeepRounds
from ingest.log.writer_settings import CommitNote, WriterSettings, boot_us, wall_us
from projections.events.envelope import WRITER_BYTES
from projections.events.ports import (
    CommitUnclear,
    LogCorrupt,
    LogError,
    LogFailed,
    LogFull,
    LogStore,
    RecordBatch,
)

__all__ = ["CommitNote", "LogWriter", "WriterSettings", "boot_us", "wall_us"]

WATCH_S = 0.25
STANDBY_WATCH_S = 0.1  # a standby must not lose time over when it may claim
CLOSE_S_MAX = 5.0  # of waiting for what is under way when a writer closes
FIND_AGAIN_S = 0.5

log = structlog.get_logger("picklog.log")
OnDone = Callable[[Receipt], None]


class LogWriter:
    """One writer of a log. Use `open`; afterwards `writer`, `epoch`, `append`.

    failure: resolved with the error once this writer can append nothing more (a failed
    disk, another owner); the process should then exit.
    """

    def __init__(
        self,
        store: LogStore,
        settings: WriterSettings,
        *,
        is_owner: bool,
        stands_by: bool,
        replica: bytes | None,
        spool: Spool | None,
        on_still: Callable[[int], None] | None,
        on_commit: Callable[[CommitNote], None] | None,
        now_us: Callable[[], int],
        wall_us: Callable[[], int],
    ) -> None:
        self.failure: asyncio.Future[LogError] = asyncio.get_running_loop().create_future()
        self._store = store
        self._settings = settings
        self._now_us = now_us
        self._wall_us = wall_us
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._commits = CommitThread(store, self._loop)
        self._search = OwnSearch(
            store, self._commits, on_found=self._on_found, fail=self._fail, reads_apart=settings.reads_apart
        )
        self._upkeep: UpkeepRounds | None = None
        self._appender = Appender(
            os.urandom(WRITER_BYTES),
            is_owner=is_owner,
            stands_by=stands_by,
            every_us=settings.every_us,
            every_bytes=settings.every_bytes,
            spool=spool,
        )
        self.spool = spool
        self._spool_notes = SpoolNotes(spool)
        self._ownership: Ownership | None = None
        if is_owner:
            self._ownership = Ownership(
                store,
                self._appender,
                now_us=now_us,
                wall_us=wall_us,
                do=self._do,
                fail=self._fail,
                on_still=on_still,
                stands_by=stands_by,
                replica=replica,
                apart=self._commits.run if settings.reads_apart else None,
            )
        self._watch_s = STANDBY_WATCH_S if stands_by else WATCH_S
        self._sent_from = store.end_offset()
        self._handle: asyncio.Handle | None = None
        self._planned_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False
        self._is_refused = False

    @classmethod
    async def open(
        cls,
        store: LogStore,
        settings: WriterSettings | None = None,
        *,
        is_owner: bool = True,
        stands_by: bool = False,
        replica: bytes | None = None,
        spool: Spool | None = None,
        cause: str = "restart",
        upkeep: Callable[[], object] | None = None,
        on_still: Callable[[int], None] | None = None,
        on_commit: Callable[[CommitNote], None] | None = None,
        now_us: Callable[[], int] = boot_us,
        wall_us: Callable[[], int] = wall_us,
    ) -> LogWriter:
        """Start writing; an owner returns once its claim was read back as the winner.

        stands_by: return at once, and own the log when nobody else does, see `is_owner`; what the
        process reads of the log must be handed over (`on_batches`). replica: its name in the log.
        spool: where an owner keeps what waits for a log that is away; discarded at the end.
        upkeep: called every `upkeep_s` in a thread (`segment_upkeep.keep_up` of the store).
        on_still(us): the loop stood still so long that all subscriptions count as cut.
        Raises LogError where the claim does not come through.
        """
        writer = cls(
            store,
            settings or WriterSettings(),
            is_owner=is_owner,
            stands_by=stands_by,
            replica=replica,
            spool=spool,
            on_still=on_still,
            on_commit=on_commit,
            now_us=now_us,
            wall_us=wall_us,
        )
        if writer._ownership is not None and not stands_by:
            await writer._own(writer._ownership, cause)
        writer._tasks.append(asyncio.create_task(writer._watch()))
        if upkeep is not None:
            writer._upkeep = UpkeepRounds(upkeep, writer._settings.upkeep_s)
        return writer

    # For others ----------------------------------------------------------------------

    @property
    def writer(self) -> bytes:
        """The id that records carry now; a new one after an unclear append."""
        return self._appender.writer

    @property
    def epoch(self) -> int:
        """The owner's epoch, 0 for a writer that owns nothing."""
        return self._appender.epoch

    @property
    def is_owner(self) -> bool:
        """Whether its claim stands, as far as this process has read."""
        return self._ownership is not None and self._ownership.is_owned.is_set()

    @property
    def owner_heard_at(self) -> int | None:
        """Of a standby: monotonic time at which it heard the owner last; None where that is not known."""
        return None if self._ownership is None else self._ownership.owner_heard_at

    def on_batches(self, batches: Sequence[RecordBatch]) -> None:
        """All that the process reads of the log, in order: of one that stands by, or did."""
        if self._ownership is not None and not self.failure.done():
            self._ownership.on_batches(batches)

    @property
    def shed(self) -> dict[Importance, int]:
        """Facts that were shed so far, by importance."""
        return self._appender.shed

    @property
    def is_shedding(self) -> bool:
        """Whether facts below CONTROL are dropped now: no room, or too much waits."""
        return self._appender.is_shedding

    @property
    def pending_bytes(self) -> int:
        """Bytes of facts that were appended and are not settled yet."""
        return self._appender.pending_bytes

    @property
    def lost_picks(self) -> int:
        """Ledger lines that wait to be written as PicksLost."""
        return self._appender.lost_picks

    def append(
        self,
        fact: tuple[Any, ...],
        *,
        importance: Importance = Importance.CONTROL,
        time: int | None = None,
        on_done: OnDone | None = None,
        heard_at: int | None = None,
    ) -> int:
        """Hand a fact over; its own sequence. Call in the loop's thread.

        Owner kinds are stamped here, as of `heard_at`, monotonic microseconds, or as of now; others
        carry `time`, or the log time of now.
        on_done is called once, in the loop, with what became of it.
        """
        if self._is_closed or self.failure.done():
            if on_done is not None:
                self._loop.call_soon(on_done, Receipt(Status.LOST, None, 0))
            return 0
        try:
            at = self._now_us() if heard_at is None else heard_at
            effects = self._appender.on_submitted(at, fact, importance, time, on_done)
        except (ValueError, OverflowError) as problem:
            log.error(
                "a record cannot be encoded and was dropped", kind=type(fact).__name__, error=str(problem)
            )
            if on_done is not None:
                self._loop.call_soon(on_done, Receipt(Status.LOST, None, 0))
            return 0
        if effects:
            self._do(effects)
        else:
            self._plan()
        return self._appender.sequence

    def log_time_now(self) -> int:
        """The owner's log time, microseconds."""
        return self._appender.log_time(self._now_us())

    async def flush(self) -> None:
        """Wait until everything appended so far is settled. Raises LogError if the log failed."""
        while not self._appender.is_idle:
            if self.failure.done():
                raise self.failure.result()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            self._plan()
            await _either(waiter, self.failure)

    async def close(self) -> None:
        """Write what waits, as far as the log takes it within CLOSE_S_MAX, and stop. The store stays open."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(TimeoutError, LogError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._handle is not None:
            self._handle.cancel()
        await self._loop.run_in_executor(None, self._commits.close)
        self._spool_notes.discard()
        if self._upkeep is not None:
            await self._upkeep.stop()

    # When ----------------------------------------------------------------------------

    def _plan(self) -> None:
        """See to it that the machine is ticked when its next batch is due."""
        due_at = self._appender.due_at()
        if due_at is None:
            return
        now = self._loop.time()
        at = now + max(0, due_at - self._now_us()) / 1e6
        if self._handle is not None:
            if self._planned_at <= at:
                return
            self._handle.cancel()
        self._planned_at = at
        # Even what is due now waits for the end of this turn of the loop: others may append in it.
        self._handle = self._loop.call_soon(self._tick) if at <= now else self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._handle = None
        if not self.failure.done():
            try:
                self._do(self._appender.on_tick(self._now_us()))
            except SpoolDamaged as problem:
                self._fail(problem)

    async def _watch(self) -> None:
        """Tick the machines though nothing happens: age of waiting picks, a loop that stood still."""
        while True:
            await asyncio.sleep(self._watch_s)
            if self._ownership is not None:
                self._ownership.on_tick()
            self._do(self._appender.on_room(self._store.is_full()))
            if self._handle is None:
                self._tick()
            self._spool_notes.look(self._now_us())

    # Carrying out --------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case Settled(tag, receipt):
                    self._settle(tag, receipt)
                case FindOwn():
                    self._search.begin(self._sent_from, effect)
                case Reclaim() if self._ownership is not None:
                    self._reclaim(self._ownership)
        self._plan()
        if self._waiting and self._appender.is_idle:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def _on_found(self, found: Found) -> None:
        if not self.failure.done():
            self._do(self._appender.on_found(self._now_us(), os.urandom(WRITER_BYTES), found))

    def _reclaim(self, ownership: Ownership) -> None:
        """Claim the log under the new id; one that cannot be read just now is asked again."""
        try:
            ownership.begin("restart")
        except (LogCorrupt, LogFailed) as problem:
            self._fail(problem)
        except LogError as problem:
            log.warning("the log cannot be read for who owns it", error=str(problem))
            self._loop.call_later(FIND_AGAIN_S, self._reclaim, ownership)

    def _settle(self, tag: OnDone, receipt: Receipt) -> None:
        try:
            tag(receipt)
        except Exception:
            log.exception("a receipt of the log was not taken")

    def _send(self, effect: Send) -> None:
        began = self._now_us()
        size = sum(map(len, effect.records))
        note = partial(CommitNote, len(effect.records), size)
        on_sent = partial(self._on_sent, effect.number, began, note)
        self._commits.commit(effect.records, effect.critical, on_sent)

    def _on_sent(
        self, number: int, began: int, note: Callable[[int], CommitNote], result: int | BaseException
    ) -> None:
        now, problem = self._now_us(), result
        if isinstance(problem, int):
            noted = note(now - began)
            self._sent_from = problem + noted.records  # asked of no store: some are far away
            self._is_refused = False
            if self._ownership is not None:
                self._ownership.on_committed(problem, noted.records)
            if self._on_commit is not None:
                self._on_commit(noted)
            self._do(self._appender.on_committed(now, number, problem))
        elif isinstance(problem, LogFailed):
            self._fail(problem)
        elif isinstance(problem, CommitUnclear):
            self._do(self._appender.on_unclear(now, number))
        elif isinstance(problem, LogError):
            if not (self._appender.is_full or self._is_refused):  # once for many attempts
                self._is_refused = True
                log.warning("the log took nothing of a batch", error=str(problem))
            self._do(self._appender.on_failed(now, number, isinstance(problem, LogFull)))
        else:
            self._fail(LogFailed(f"commit failed: {problem}"))

    def _fail(self, problem: LogError) -> None:
        if not self.failure.done():
            log.error("the log cannot be written any more", error=str(problem))
            self.failure.set_result(problem)
            self._spool_notes.discard()

    async def _own(self, ownership: Ownership, cause: str) -> None:
        """Win the claim. Raises LogError."""
        ownership.begin(cause)
        owned = asyncio.ensure_future(ownership.is_owned.wait())
        await _either(owned, self.failure)
        owned.cancel()
        if self.failure.done():
            await self.close()
            raise self.failure.result()


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
