"""Every pick of a living log, handed out as soon as its state can be known.

One walk for `replay verify --follow` and `replay whatif --follow`: the shell of `app.reasking`, as
the follower's is, but for every pick of all replicas and until it is told to end. A pick is handed
out about a second behind the end: until then another replica may still name an older state. What was
read when it ends is handed out at once, since nothing follows that counts.

The fold begins at a checkpoint half a minute of log time before the first mark, so that picks
behind the mark find the states that they were made on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE
from app.following import Following
from app.log_places import OpenLog
from app.reasking import AHEAD_BYTES, AHEAD_US, Reasking
from app.replay_steps import with_steps
from projections.events.ports import CheckpointStore, LogCorrupt, LogError, LogReader
from replay.condemned import condemned_of
from replay.engine import Asked
from replay.fold_cursor import FoldCursor, cursor_at, usable_checkpoints

SLICE_S = 0.002
TELL_S = 0.5


class FoldEnded(LogError):
    """The fold stopped: no later pick can be asked."""


class Asks(Protocol):
    """Who is handed the picks."""

    def ask(self, asked: Asked) -> None:
        """A pick at or behind the first mark, askable or not. Its view is valid until this returns."""

    def note(self, offset: int, fact: object) -> None:
        """A pick, an end or a loss at or behind the first mark, as it is read."""

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """All records that are read, those before the first mark too."""

    def words(self) -> str:
        """What was found up to now, for people."""


class PickFollowing:
    """One run, begun by `run`. start: picks whose record stands at or behind this offset are asked.

    on_progress: told a line, twice a second. records: read at or behind `start`. damage: what does
    not check. ended: why the log cannot be followed any further, None where it was told to end.
    """

    def __init__(self, opened: OpenLog, start: int, asks: Asks, on_progress: Callable[[str], None]) -> None:
        """Raises what the reader raises."""
        self._start = start
        self._asks = asks
        self._on_progress = on_progress
        reader, checkpoints = opened.reader, with_steps(opened.checkpoints, opened.data)
        base = base_before(reader, checkpoints, start)
        condemned = condemned_of(reader, checkpoints, max(base, reader.first_offset()))
        self._machine = Reasking(cursor_at(reader, checkpoints, base, condemned), self._note)
        self._told_at = float("-inf")
        self.records = 0
        self.damage: str | None = None
        self.ended: LogError | None = None

    @property
    def machine(self) -> Reasking:
        """What was read, and where the fold stands."""
        return self._machine

    @property
    def cursor(self) -> FoldCursor:
        """The fold that picks are asked on."""
        return self._machine.cursor

    def exit_status(self) -> int:
        """What the end of following alone means for the command."""
        if self.damage is not None or isinstance(self.ended, FoldEnded):
            return EXIT_FOUND_WRONG
        return EXIT_DONE if self.ended is None else EXIT_UNREACHABLE

    async def run(self, following: Following, for_s: float | None = None) -> None:
        """Follow until told to end, for at most `for_s` seconds, or until the log or the fold ends it."""
        machine = self._machine
        with following.until_told(for_s):
            try:
                while not following.is_stopped() and machine.cursor.stopped is None:
                    if machine.ahead_bytes <= AHEAD_BYTES:
                        for batch in await following.more(machine.position):
                            self._read(batch.first_offset, batch.records)
                    await self._work(following)
            except LogCorrupt as problem:
                self.damage = str(problem)
            except LogError as problem:
                self.ended = problem
            machine.is_whole = True
            await self._work(following)
        if machine.cursor.stopped is not None:
            self.ended = FoldEnded(f"{machine.cursor.stopped}: picks behind it were not asked")

    # -- inside ------------------------------------------------------------------------

    def _read(self, first_offset: int, records: Sequence[bytes]) -> None:
        self._asks.read(first_offset, records)
        self._machine.read(first_offset, records)
        end = first_offset + len(records)
        self.records += max(0, end - max(first_offset, self._start))

    def _note(self, offset: int, fact: object) -> None:
        if offset >= self._start:
            self._asks.note(offset, fact)

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
            self._asks.ask(asked)
        return is_busy

    def _tell(self, reader: LogReader) -> None:
        now = time.monotonic()
        if now < self._told_at + TELL_S:
            return
        self._told_at = now
        behind = reader.end_offset() - 1 - self._machine.cursor.fold.mark.offset
        self._on_progress(f"{self._asks.words()}; {max(0, behind)} records behind the end")


def base_before(reader: LogReader, checkpoints: CheckpointStore, start: int) -> int:
    """The offset at or before which the fold begins, so that no as-of of a pick behind `start` is older."""
    known = usable_checkpoints(reader, checkpoints, start - 1)
    early = [info for info in known if info.time <= known[-1].time - AHEAD_US]
    if early:
        return early[-1].offset
    return known[0].offset if known and reader.first_offset() else -1
