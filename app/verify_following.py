"""`replay verify --follow`: each pick of a living log is repeated as soon as its state can be known.

The shell of `app.reasking`, as the follower's sampling verifier is, but for every pick of all
replicas. A pick is asked about a second behind the end: until then another replica may still name
an older state. What is read when it ends is asked at once, since nothing follows that counts.

The fold begins at a checkpoint half a minute of log time before the first mark, so that picks
behind the mark find the states that they were made on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.following import Following
from app.log_places import OpenLog
from app.reasking import AHEAD_BYTES, AHEAD_US, Reasking
from projections.events.ports import CheckpointStore, LogCorrupt, LogError, LogReader, RecordBatch
from replay.chains import Chains
from replay.condemned import condemned_of
from replay.fold_cursor import cursor_at, usable_checkpoints
from replay.verify import Difference, Report, Tally

SLICE_S = 0.002
TELL_S = 0.5


class FoldEnded(LogError):
    """The fold stopped: no later pick can be asked."""


class VerifyFollowing:
    """One run, begun by `run`. start: picks whose record stands at or behind this offset are asked.

    on_difference: told each at once. on_progress: told a line, twice a second. ended: why the log
    cannot be followed any further, None where it was told to end.
    """

    def __init__(
        self,
        opened: OpenLog,
        start: int,
        on_difference: Callable[[Difference], None],
        on_progress: Callable[[str], None],
    ) -> None:
        """Raises what the reader raises."""
        self._start = start
        self._on_difference = on_difference
        self._on_progress = on_progress
        reader, checkpoints = opened.reader, opened.checkpoints
        base = base_before(reader, checkpoints, start)
        condemned = condemned_of(reader, checkpoints, max(base, reader.first_offset()))
        cursor = cursor_at(reader, checkpoints, base, condemned)
        self._machine = Reasking(cursor, self._note)
        self._tally = Tally()
        self._chains = Chains()
        self._records = 0
        self._told_at = float("-inf")
        self._damage: str | None = None
        self.ended: LogError | None = None

    def report(self) -> Report:
        """What was found up to now."""
        return self._tally.report(self._machine.cursor, self._chains, self._records, self._damage)

    async def run(self, following: Following, for_s: float | None = None) -> None:
        """Verify until told to end, for at most `for_s` seconds, or until the log or the fold ends it."""
        machine = self._machine
        with following.until_told(for_s):
            try:
                while not following.is_stopped() and machine.cursor.stopped is None:
                    if machine.ahead_bytes <= AHEAD_BYTES:
                        for batch in await following.more(machine.position):
                            self._read(batch)
                    await self._work(following)
            except LogCorrupt as problem:
                self._damage = str(problem)
            except LogError as problem:
                self.ended = problem
            machine.is_whole = True
            await self._work(following)
        if machine.cursor.stopped is not None:
            self.ended = FoldEnded(f"{machine.cursor.stopped}: picks behind it were not asked")

    # -- inside ------------------------------------------------------------------------

    def _read(self, batch: RecordBatch) -> None:
        self._machine.read(batch.first_offset, batch.records)
        end = batch.first_offset + len(batch.records)
        self._records += max(0, end - max(batch.first_offset, self._start))

    def _note(self, offset: int, fact: object) -> None:
        if offset >= self._start:
            self._chains.note(offset, fact)

    async def _work(self, following: Following) -> None:
        """Fold and ask all that can be asked, a moment at a time."""
        is_busy = True
        while is_busy and self._machine.cursor.stopped is None:
            until = time.monotonic() + SLICE_S
            while is_busy and time.monotonic() < until:
                is_busy = self._step()
            self._tell(following.reader)
            await asyncio.sleep(0)

    def _step(self) -> bool:
        is_busy, asked = self._machine.work()
        if asked is not None and asked.offset >= self._start:
            found = self._tally.ask(asked)
            if found is not None:
                self._on_difference(found)
        return is_busy

    def _tell(self, reader: LogReader) -> None:
        now = time.monotonic()
        if now < self._told_at + TELL_S:
            return
        self._told_at = now
        tally, behind = self._tally, reader.end_offset() - 1 - self._machine.cursor.fold.mark.offset
        self._on_progress(
            f"{tally.picks} picks: {tally.equal} equal, {tally.different} different,"
            f" {tally.reasons.total()} unverifiable; {max(0, behind)} records behind the end"
        )


def base_before(reader: LogReader, checkpoints: CheckpointStore, start: int) -> int:
    """The offset at or before which the fold begins, so that no as-of of a pick behind `start` is older."""
    known = usable_checkpoints(reader, checkpoints, start - 1)
    early = [info for info in known if info.time <= known[-1].time - AHEAD_US]
    if early:
        return early[-1].offset
    return known[0].offset if known and reader.first_offset() else -1
