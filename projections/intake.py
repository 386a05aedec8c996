"""Which records take effect: repetitions, owners that were superseded, log time.

A record is dropped here when its writer sent it before (sequence not above the last one),
or when it speaks for the owner and its writer is not the owner. The owner is the pair
(writer, epoch) of the winning `LaneOpened`: the first one whose epoch is one higher than
the epoch in force. Records of replicas are never fenced.

Log time is the newest stamp of an owner's record and never goes back.

Writers are remembered for 24 h of log time after their last record, at most WRITERS_MAX
of them, the one that was silent longest out first; a writer that was forgotten and comes
back is a new one. Log time begins with the first owner: whoever was heard before that alone
is forgotten at the first tick, and could have said nothing but pings and that it started.
With COUNTED_ONCE they are remembered from the adoption on, like everybody else.

Sources: decisions 3, 7, 8, 16, 34; requirement rows EVS-15, EVS-16.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from projections.bounds import WRITER_FORGOTTEN_US, WRITERS_MAX
from projections.events.codec import encode_value
from projections.events.control import LaneOpened
from projections.events.envelope import Record
from projections.events.held import OwnerHeld, WriterSeen
from projections.fold_modes import COUNTED_ONCE
from projections.identity import U64_MAX

NO_OWNER = (b"", 0)


class SeenWriter:
    """The last sequence taken from a writer, and the log time then."""

    __slots__ = ("is_dirty", "last_sequence", "seen_at", "word", "writer")

    def __init__(self, writer: bytes, last_sequence: int, seen_at: int) -> None:
        self.writer = writer
        self.last_sequence = last_sequence
        self.seen_at = seen_at
        self.is_dirty = False
        self.word = 0  # what the digest holds of it


class Intake:
    """State that decides whether a record takes effect.

    stamp: newest owner stamp, microseconds of log time, 0 before the first.
    condemned: offsets that every fold skips, as far as the log has said so.
    owner_seen: the entry of the owner's writer. Only while it `is_dirty` is it an entry, and
    only then may a record be taken by it alone; the fold does so for samples.
    """

    def __init__(self) -> None:
        self.owner_writer, self.owner_epoch = NO_OWNER
        self.stamp = 0
        self.fold_mode: tuple[int, ...] = ()
        self.condemned: tuple[int, ...] = ()
        self.writers: dict[bytes, SeenWriter] = {}
        self.owner_seen = SeenWriter(b"", 0, 0)
        self._dirty: list[SeenWriter] = []
        self._digest = 0
        self._oldest_seen_at = 0  # no writer is older; a hint that saves walks

    @property
    def owner(self) -> tuple[bytes, int] | None:
        """(writer, epoch) whose facts count, None before the first LaneOpened."""
        return (self.owner_writer, self.owner_epoch) if self.owner_epoch else None

    def is_repeated(self, record: Record) -> bool:
        """Whether this writer's record was taken before; otherwise it counts as taken now."""
        seen = self.writers.get(record.writer)
        if seen is None:
            seen = self._new_writer(record.writer, record.sequence)
        elif record.sequence <= seen.last_sequence:
            return True
        else:
            seen.last_sequence = record.sequence
        seen.seen_at = self.stamp
        self._changed(seen)
        return False

    def is_owner(self, record: Record) -> bool:
        """Whether the record comes from the pair whose facts count."""
        return record.writer == self.owner_writer and record.epoch == self.owner_epoch

    def open_lane(self, record: Record, fact: LaneOpened) -> bool:
        """Judge a claim; whether it wins. The winner's record is the first of its stamps."""
        if fact.epoch != self.owner_epoch + 1:
            return False
        self.owner_writer, self.owner_epoch = record.writer, fact.epoch
        self.advance(record)
        return True

    def advance(self, record: Record) -> Record:
        """Move log time to an owner's record that was taken; the record as reducers see it.

        Its time never lies before that of an earlier one.
        """
        if record.time < self.stamp:
            record = record._replace(time=self.stamp)
        self.owner_seen = self.writers[record.writer]
        self.stamp = self.owner_seen.seen_at = record.time
        return record

    def adopt(self, flags: tuple[int, ...]) -> None:
        """Flags that are in force from here on, ascending."""
        self.fold_mode = flags
        if COUNTED_ONCE not in flags:
            return
        for seen in self.writers.values():
            if not seen.seen_at:  # before log time began: no tick may find it silent ever since
                seen.seen_at = self.stamp
                self._changed(seen)

    def condemn(self, offset: int) -> None:
        """Remember an offset that every fold skips."""
        if offset not in self.condemned:
            self.condemned = tuple(sorted((*self.condemned, offset)))

    def forget_writers(self) -> None:
        """Let go of writers that were silent for a day of log time. Called at ticks."""
        horizon = self.stamp - WRITER_FORGOTTEN_US
        if self._oldest_seen_at >= horizon:
            return
        for seen in [seen for seen in self.writers.values() if seen.seen_at < horizon]:
            self._drop(seen)
        self._oldest_seen_at = min((seen.seen_at for seen in self.writers.values()), default=self.stamp)

    @property
    def digest(self) -> int:
        """Digest of all of it, 64 bits. Writers heard since the last call are worked in now."""
        total = self._digest
        for seen in self._dirty:
            if seen.is_dirty:
                total -= seen.word
                seen.word = _word_of(seen)
                total += seen.word
                seen.is_dirty = False
        self._dirty.clear()
        self._digest = total & U64_MAX
        rest = (self.owner_writer, self.owner_epoch, self.stamp, self.fold_mode, self.condemned)
        total = self._digest + xxhash.xxh3_64_intdigest(encode_value(rest))
        return total & U64_MAX

    # -- checkpoints -------------------------------------------------------------------

    def held(self) -> Iterator[WriterSeen]:
        """Remembered writers by id. The rest rides in OwnerHeld."""
        for writer in sorted(self.writers):
            seen = self.writers[writer]
            yield WriterSeen(writer, seen.last_sequence, seen.seen_at)

    def restore(self, fact: WriterSeen | OwnerHeld) -> None:
        """Take one held fact."""
        if isinstance(fact, WriterSeen):
            seen = self._new_writer(fact.writer, fact.last_sequence)
            seen.seen_at = fact.seen_at
            seen.is_dirty = True
            self._dirty.append(seen)
            return
        self.owner_writer, self.owner_epoch = fact.writer, fact.epoch
        self.stamp = fact.stamp
        self.fold_mode = fact.fold_mode
        self.condemned = fact.condemned

    # -- inside ------------------------------------------------------------------------

    def _new_writer(self, writer: bytes, sequence: int) -> SeenWriter:
        if len(self.writers) >= WRITERS_MAX:
            self._drop(min(self.writers.values(), key=lambda seen: (seen.seen_at, seen.writer)))
        seen = self.writers[writer] = SeenWriter(writer, sequence, self.stamp)
        self._oldest_seen_at = min(self._oldest_seen_at, self.stamp)
        return seen

    def _changed(self, seen: SeenWriter) -> None:
        if not seen.is_dirty:
            seen.is_dirty = True
            self._dirty.append(seen)

    def _drop(self, seen: SeenWriter) -> None:
        del self.writers[seen.writer]
        self._digest = (self._digest - seen.word) & U64_MAX
        seen.word = 0
        seen.is_dirty = False  # its place in the list of dirty ones says nothing any more


def _word_of(seen: SeenWriter) -> int:
    word: int = xxhash.xxh3_64_intdigest(encode_value((seen.writer, seen.last_sequence, seen.seen_at)))
    return word
