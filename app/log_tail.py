"""The shell of `app.tail`: reads committed batches, lets the machine fold them in slices.

One task per fold. It gives the event loop back after every millisecond of folding, so
that requests are served while a long log is caught up with, and waits for the log only
when nothing is left to fold. Of a busy log it lets a few milliseconds of records gather: one by
one they cost twice as much to fold, in cold caches and in all that is done for each slice.
Reading is plain file I/O on pages that were just written; it is bounded by `READ_BYTES` a step.

A fold that begins behind the end of the log meets old news first: no slice holds both old
and new, and of old slices neither facts nor lines are told again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from app.tail import AppendPing, Effect, Noticed, ProposeCondemned, Restart, Seen, StopReason, Tail
from projections.events.ports import LogReader, RecordBatch
from projections.notices import Notice

READ_BYTES = 1 << 20
SLICE_RECORDS = 512  # about a millisecond of folding
WAIT_S = 0.5
GATHER_S = 0.005  # between slices of a busy log; the first record after a silence waits for nothing
GATHER_IDLE_S = 0.05  # the same where nobody picks, so that what others picked may come later

log = structlog.get_logger("picklog.tail")


def monotonic_us() -> int:
    """This process's monotonic time, microseconds; the only clock that a tail is given."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class LogTail:
    """Runs one `Tail` on one reader.

    news_from: what lies before this offset is old news to this process.
    on_ping(number, as_of): append a ping; None for a process that does not write.
    on_notices(notices, is_news): told the notices of each slice. on_folded: after each slice.
    on_seen: told each fact that the machine watches for, from `news_from` on.
    on_condemn(offset, detail): an owner appends RecordCondemned; None elsewhere.
    between: awaited after each slice; the fold stands still meanwhile.
    on_batches: told all that is read, before it is folded.
    gather_s: how long records of a busy log gather before a slice.
    """

    def __init__(
        self,
        reader: LogReader,
        tail: Tail,
        *,
        news_from: int = 0,
        on_ping: Callable[[int, int], None] | None,
        on_notices: Callable[[tuple[Notice, ...], bool], None],
        on_folded: Callable[[], object],
        on_seen: Callable[[Seen], None] | None = None,
        on_condemn: Callable[[int, str], None] | None = None,
        between: Callable[[], Awaitable[None]] | None = None,
        on_batches: Callable[[Sequence[RecordBatch]], None] | None = None,
        gather_s: float = GATHER_S,
    ) -> None:
        self.reader = reader
        self.tail = tail
        self.restart: Restart | None = None
        self.condemned: ProposeCondemned | None = None
        self._news_from = news_from
        self._is_news = True
        self._on_ping = on_ping
        self._on_notices = on_notices
        self._on_folded = on_folded
        self._on_condemn = on_condemn
        self._on_seen = on_seen
        self._between = between
        self._on_batches = on_batches
        self._gather_s = gather_s
        self._folded_at = float("-inf")

    async def run(self) -> Restart:
        """Fold until the fold has to be started anew; returns why. Cancel to stop.

        Raises LogCorrupt, and OffsetGone when retention overtook this reader.
        """
        while self.restart is None:
            has_done = self.step()
            if self._between is not None:
                await self._between()
            if not has_done:
                await self.reader.wait(self.tail.next_offset, WAIT_S)
                left_s = self._folded_at + self._gather_s - time.monotonic()
                if left_s > 0:
                    await asyncio.sleep(left_s)
            await asyncio.sleep(0)  # also behind a wait: some readers return from it at once
        return self.restart

    def step(self) -> bool:
        """Read and fold one slice; False when there was nothing to do."""
        tail = self.tail
        now = monotonic_us()
        read = 0
        if tail.wants_more and tail.queued_records < SLICE_RECORDS:
            batches = self.reader.read(tail.next_offset, READ_BYTES)
            read = len(batches)
            if batches and self._on_batches is not None:
                self._on_batches(batches)
            self._carry_out(tail.on_batches(batches, now))
        if tail.queued_records:
            old = self._news_from - 1 - tail.fold.mark.offset
            self._is_news = old <= 0
            effects = tail.work(monotonic_us(), min(SLICE_RECORDS, old) if old > 0 else SLICE_RECORDS)
            if tail.stopped is not StopReason.NONE:
                log.error("the fold has stopped", reason=tail.stopped.value, detail=tail.stopped_detail)
            self._carry_out(effects)
            self._is_news = True
            self._on_folded()
            self._folded_at = time.monotonic()
            return True
        if (
            not read and tail.next_offset >= self.reader.end_offset()
        ):  # some read ahead, and are not there yet
            tail.on_end(now)
        return bool(read)

    def tick(self) -> None:
        """Let the machine look at the time; call at least twice a second."""
        self._carry_out(self.tail.on_tick(monotonic_us()))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Noticed):
                self._on_notices(effect.notices, self._is_news)
            elif isinstance(effect, AppendPing):
                if self._on_ping is not None:
                    self._on_ping(effect.number, effect.as_of)
            elif isinstance(effect, Seen):
                if self._on_seen is not None and effect.offset >= self._news_from:
                    self._on_seen(effect)
            elif isinstance(effect, ProposeCondemned):
                self.condemned = effect
                if self._on_condemn is not None:
                    self._on_condemn(effect.offset, effect.detail)
            else:
                log.error("the fold starts anew", reason=effect.reason, before=effect.before)
                self.restart = effect
