"""What waits for a log that is away, beyond what its owner keeps in memory (decision 44).

    the appender's queue   <-   chunks in a `Spill`   <-   newest facts, until they make a chunk
    goes out first              on local disk              in memory

Facts go in at the end and come back a chunk at a time, in order. They come back with the
sequence, the stamp and the bytes that they went in with, unless all that waits had to be
renewed meanwhile (`outdate`): then they are stale, and each gets them anew when its turn comes.
What goes in behind stale facts has none yet, since sequences and stamps grow in the order of the log.

A spill that takes nothing more (its ceiling, a full disk) leaves the newest facts in memory; when
they are too many, the appender sheds as without a spool. A spool is for the life of one process: the
next one has another writer id and another epoch, under which nothing of this would count.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from ingest.log.appends import Entry, Importance
from projections.bounds import KIB, MIB
from projections.events.codec import RecordRefused, decode_record, encode_record
from projections.events.envelope import WRITER_BYTES
from projections.events.ports import LogFailed

MEMORY_BYTES: Final = 2 * MIB  # renewed in one step after an unclear append: some tens of ms
CHUNK_BYTES: Final = 128 * KIB  # read, and renewed where stale, in one step
LONGEST: Final = (1 << 63) - 1  # takes as many bytes as a number in a record can
FRAME: Final = struct.Struct("<BBQqI")  # importance, flags, sequence, given time, bytes of the record
_HAS_TAG: Final = 1
_HAS_TIME: Final = 2


class SpoolDamaged(LogFailed):
    """What was spooled does not come back as it was: the owner can not go on without a gap."""


class Spill(Protocol):
    """Chunks, first in, first out. They need not outlive the process."""

    @property
    def size_bytes(self) -> int:
        """What it takes of the disk now."""

    def put(self, chunk: bytes) -> bool:
        """Keep it behind all others; False, and nothing is kept, where there is no room."""

    def take(self) -> bytes:
        """The oldest chunk, which is kept no longer. Raises SpoolDamaged."""

    def clear(self) -> None:
        """Throw everything away."""


class _Chunk(NamedTuple):
    """A chunk in the spill. size: bytes of its records. tags: of those that want a receipt, in order."""

    records: int
    size: int
    tags: list[Any]


class Spool:
    """See the module's text. spill: None for a writer without a spool, whose facts all wait in memory.

    memory_bytes: what waits in memory beyond this goes in here. chunk_bytes: of a usual chunk.
    spilled_bytes: of records in the spill. is_stale: facts in here have no sequence that counts.
    """

    def __init__(
        self, spill: Spill | None, *, memory_bytes: int = MEMORY_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.spilled_bytes = 0
        self.is_stale = False
        self._spill = spill
        self._memory_bytes = memory_bytes if spill is not None else LONGEST
        self._chunk_bytes = chunk_bytes
        self._chunks: deque[_Chunk] = deque()
        self._spilled_records = 0
        self._newest: deque[Entry] = deque()
        self._newest_bytes = 0
        self._spill_at = chunk_bytes

    @property
    def is_in_use(self) -> bool:
        """Whether anything waits in here; then all that comes later goes in as well."""
        return bool(self._chunks or self._newest)

    @property
    def records(self) -> int:
        """Facts on disk."""
        return self._spilled_records

    @property
    def disk_bytes(self) -> int:
        """Bytes taken of the disk."""
        return self._spill.size_bytes if self._spill is not None else 0

    def is_next(self, held_bytes: int) -> bool:
        """Whether the next fact goes in here. held_bytes: of what waits in memory before it."""
        return held_bytes > self._memory_bytes or bool(self._newest or self._chunks)

    def comes_back(self, held_bytes: int) -> bool:
        """Whether the writer has room in memory for what waits longest in here. held_bytes: of all it has."""
        return held_bytes < self._memory_bytes and bool(self._newest or self._chunks)

    def sketch(self, entry: Entry) -> int:
        """Make bytes for a fact that has no sequence yet, no fewer than it will have; how many."""
        entry.data = encode_record(LONGEST, bytes(WRITER_BYTES), LONGEST, LONGEST, entry.fact)
        return len(entry.data)

    def append(self, entry: Entry) -> None:
        """A fact waits behind all others. It has bytes; a sequence unless the spool is stale."""
        self._newest.append(entry)
        self._newest_bytes += entry.size
        while self._newest_bytes >= self._spill_at:
            if not self._spill_oldest():
                self._spill_at = self._newest_bytes + self._chunk_bytes  # not asked for each fact again
                return
            self._spill_at = self._chunk_bytes

    def take(self) -> list[Entry]:
        """The facts that wait longest in here, in order; a sequence of 0 where they are stale.

        Raises SpoolDamaged.
        """
        if not self._chunks:
            entries = [*self._newest]
            self._newest.clear()
            self._newest_bytes = 0
        else:
            chunk = self._chunks.popleft()
            assert self._spill is not None
            entries = self._decoded(self._spill.take(), chunk)
            self.spilled_bytes -= chunk.size
            self._spilled_records -= chunk.records
        self._spill_at = self._chunk_bytes
        self.is_stale = self.is_stale and self.is_in_use
        return entries

    def outdate(self) -> None:
        """Sequences, stamps and bytes of all that is in here count no longer."""
        self.is_stale = self.is_in_use
        for entry in self._newest:
            entry.sequence = 0

    def discard(self) -> int:
        """Throw everything away; how many facts that were."""
        thrown = self._spilled_records + len(self._newest)
        if self._spill is not None:
            self._spill.clear()
        self._chunks.clear()
        self._newest.clear()
        self.spilled_bytes = self._spilled_records = self._newest_bytes = 0
        self.is_stale = False
        return thrown

    def _spill_oldest(self) -> bool:
        """One chunk of the newest facts goes to the spill. False where it takes nothing."""
        assert self._spill is not None
        parts: list[bytes] = []
        tags: list[Any] = []
        size = count = 0
        for entry in self._newest:
            data = entry.data
            assert data is not None
            flags = (entry.tag is not None) * _HAS_TAG + (entry.given is not None) * _HAS_TIME
            parts.append(FRAME.pack(entry.importance, flags, entry.sequence, entry.given or 0, len(data)))
            parts.append(data)
            if entry.tag is not None:
                tags.append(entry.tag)
            size, count = size + len(data), count + 1
            if size >= self._chunk_bytes:
                break
        if not self._spill.put(b"".join(parts)):
            return False
        for _ in range(count):
            self._newest.popleft()
        self._newest_bytes -= size
        self.spilled_bytes += size
        self._spilled_records += count
        self._chunks.append(_Chunk(count, size, tags))
        return True

    def _decoded(self, payload: bytes, chunk: _Chunk) -> list[Entry]:
        entries: list[Entry] = []
        tags = iter(chunk.tags)
        at = 0
        try:
            while at < len(payload):
                importance, flags, sequence, given, size = FRAME.unpack_from(payload, at)
                at += FRAME.size
                data = payload[at : at + size]
                at += size
                fact = decode_record(0, data).fact
                entry = Entry(
                    fact,
                    Importance(importance),
                    given if flags & _HAS_TIME else None,
                    next(tags) if flags & _HAS_TAG else None,
                    0,
                )
                entry.sequence = 0 if self.is_stale else sequence
                entry.data = data
                entries.append(entry)
        except (struct.error, ValueError, RecordRefused, StopIteration) as problem:
            raise SpoolDamaged("a chunk of the spool holds what was never spooled") from problem
        if len(entries) != chunk.records:
            raise SpoolDamaged(f"a chunk of the spool has {len(entries)} of {chunk.records} records")
        return entries
