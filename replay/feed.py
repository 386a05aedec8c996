"""Feeds a log into a staging log: the same records at the same offsets, folded on the way.

The staging log has an id of its own, made of the original's, so whoever has both can tell
that one is staged from the other, and nobody takes one for the other. Its fold is begun at the
state that the original's kept records begin with, written as a checkpoint; further checkpoints
are written wherever the original's owner had them written. At every tick the owner's notes are
compared with the fold's, so that both ends are known to agree.

A feed that was ended goes on where it was: behind the last record that the staging log
has, if the original has the very same one.

Nothing here opens anything: both logs are ports, and none of them is a fleet.

Source: requirement row EVS-12.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from blake3 import blake3

from projections.checkpoint import checkpoint_records
from projections.events.codec import check_word, owner_stamp
from projections.events.control import CheckpointDue
from projections.events.envelope import NOTHING
from projections.events.ports import CheckpointStore, LogReader
from projections.fold import Fold
from replay.agreement import TickBreak
from replay.condemned import condemned_of
from replay.fold_cursor import FoldCursor, Watcher, cursor_at, usable_checkpoints
from replay.log_walk import records_of

BATCH_RECORDS = 4_096


class FeedRefused(ValueError):
    """What is there cannot be fed on; says why and what to do."""


class StagedLog(LogReader, Protocol):
    """The staging log as its owner has it."""

    def jump(self, offset: int) -> None:
        """Let the next record take `offset`."""

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore."""


def staged_log_id(origin: bytes) -> bytes:
    """The id of a log that is staged from another."""
    return blake3(b"picklog staging\0" + origin).digest(16)


class Begin(NamedTuple):
    """Where a staging log begins: behind the state of `base`, -1 for a log's very beginning."""

    base: int

    @property
    def first_offset(self) -> int:
        """Of its first record, or of the jump to it."""
        return self.base + 1


def begin_of(source: LogReader, checkpoints: CheckpointStore | None, start: int) -> Begin:
    """Where to begin so that everything from `start` on is there: at the newest state before it.

    Raises FeedRefused where no state is kept.
    """
    first = source.first_offset()
    usable = usable_checkpoints(source, checkpoints, start - 1)
    if usable:
        return Begin(usable[-1].offset)
    if first == 0:
        return Begin(NOTHING.offset)
    later = usable_checkpoints(source, checkpoints, source.end_offset())
    if not later:
        raise FeedRefused(
            f"the log begins at offset {first} and no checkpoint holds the state before it: nothing can "
            "be folded from there"
        )
    return Begin(later[0].offset)


class Feed:
    """One feed. fed: records copied here; cursor: the fold of the staging log."""

    def __init__(
        self,
        source: LogReader,
        source_checkpoints: CheckpointStore | None,
        staged: StagedLog,
        checkpoints: CheckpointStore,
        begin: Begin,
    ) -> None:
        """Raises FeedRefused where the staging log is another log's, and what the ports raise."""
        self._source = source
        self._staged = staged
        self._checkpoints = checkpoints
        self.fed = 0
        self.checkpoints_written = 0
        self._check_same()
        condemned = condemned_of(source, source_checkpoints, source.first_offset())
        watch: dict[type, Watcher] = {CheckpointDue: lambda offset, fact: self._write_checkpoint()}
        if staged.end_offset() == begin.first_offset and begin.base >= 0:
            cursor = cursor_at(source, source_checkpoints, begin.base, condemned, watch)
            cursor.walk(source, begin.base)
            self.cursor = cursor
            self._write_checkpoint()
        else:
            self.cursor = _resumed(staged, checkpoints, begin, condemned, watch)

    @property
    def next_offset(self) -> int:
        """Where reading the original goes on."""
        return max(self._staged.end_offset(), self._source.first_offset())

    @property
    def breaks(self) -> list[TickBreak]:
        """Ticks at which both ends do not agree."""
        return self.cursor.agreement.breaks

    def feed(self, first_offset: int, records: Sequence[bytes]) -> None:
        """Copy records of the original, at first_offset and on, and fold them."""
        for offset, part in _parts(first_offset, records):
            if offset > self._staged.end_offset():
                self._staged.jump(offset)
            self._staged.commit(part)
            self.cursor.apply(offset, part)
            self.fed += len(part)

    def close(self) -> None:
        """Write the state of the end, so that whoever opens the staging log begins there."""
        if self.fed and self.cursor.stopped is None:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        fold = self.cursor.fold
        mark = fold.mark
        if mark.offset < 0 or any(info.offset == mark.offset for info in self._checkpoints.list()):
            return
        records = checkpoint_records(fold, self._staged.log_id)
        self._checkpoints.write(self._staged.log_id, mark.offset, mark.check, mark.time, iter(records))
        self.checkpoints_written += 1

    def _check_same(self) -> None:
        """The staging log is of this very original, up to its last record."""
        if self._staged.log_id != staged_log_id(self._source.log_id):
            raise FeedRefused("the staging directory is of another log: name another one")
        end = self._staged.end_offset()
        mine = _last_record(self._staged)
        if mine is None:
            return
        offset, data = mine
        if offset >= self._source.end_offset():
            raise FeedRefused(
                f"the staging log reaches to offset {offset}, the original ends at "
                f"{self._source.end_offset() - 1}: name the log that it was fed from"
            )
        if offset < self._source.first_offset():
            if end < self._source.first_offset():
                raise FeedRefused(
                    f"records {end} to {self._source.first_offset() - 1} are gone from the original: "
                    "begin another staging directory"
                )
            return
        theirs = self._source.read(offset, 1)
        if (
            not theirs
            or theirs[0].first_offset != offset
            or check_word(theirs[0].records[0]) != check_word(data)
        ):
            raise FeedRefused(f"the original's record at offset {offset} is another one: it was written anew")


def _resumed(
    staged: StagedLog,
    checkpoints: CheckpointStore,
    begin: Begin,
    condemned: frozenset[int],
    watch: dict[type, Watcher],
) -> FoldCursor:
    """The fold of what the staging log has already."""
    end = staged.end_offset()
    infos = [info for info in checkpoints.list() if info.offset < end]
    if infos:
        cursor = cursor_at(staged, checkpoints, infos[-1].offset, condemned, watch)
    else:
        if begin.base >= 0:
            raise FeedRefused("the staging directory has lost its checkpoints: begin another one")
        cursor = FoldCursor(Fold(condemned=condemned), NOTHING.offset, watch)
    cursor.walk(staged, end - 1)
    return cursor


def _last_record(log: LogReader) -> tuple[int, bytes] | None:
    """The newest record of a log, None in an empty one. Offsets may jump before its end."""
    first, end = log.first_offset(), log.end_offset()
    back = 1
    while end > first:
        start = max(first, end - back)
        found = None
        for found in records_of(log, start):  # noqa: B007  # the last one counts
            pass
        if found is not None or start == first:
            return found
        back *= 64
    return None


def _parts(first_offset: int, records: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    for place in range(0, len(records), BATCH_RECORDS):
        yield first_offset + place, records[place : place + BATCH_RECORDS]


class Pace:
    """When a record is due, so that log time passes at a multiple of real time.

    speed: 1 is as it was; None is as fast as can be. The first record that is asked about
    begins it.
    """

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._began: tuple[float, int] | None = None
        self._stamp = 0

    def due_in_s(self, data: bytes, now_s: float) -> float:
        """Seconds until a record is due, 0 or less when it is. Records of replicas ride along."""
        if self._speed is None:
            return 0.0
        stamp = owner_stamp(data)
        self._stamp = stamp if stamp is not None else self._stamp
        if self._stamp == 0:
            return 0.0
        if self._began is None:
            self._began = (now_s, self._stamp)
        began_s, began_us = self._began
        return began_s + (self._stamp - began_us) / 1e6 / self._speed - now_s
