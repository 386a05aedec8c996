"""What a log must offer to its readers and writers, and MemoryLog, the reference.

A reader sees committed records only, in batches, in offset order; offsets grow by one
but may jump after a recovery that cut. A store commits whole batches: when `commit`
returns, every record of the batch survives the death of the process. Who may write is
the store's business (file lock, claim); what is written is the appender's.

Errors are typed: OffsetGone (retention passed by), LogCorrupt (bytes before the tail do
not check), CommitFailed (nothing of the batch is durable), CommitUnclear (some of it may
be), LogFailed (and the process has to end). They carry what, where and what to do in their text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX


class LogError(Exception):
    """Root of everything that a log reports.

    LogError
     +- OffsetGone       the oldest kept record is younger
     +- LogCorrupt       bytes before the tail do not check
     +- CommitFailed     nothing of the batch is in the log
     +- CommitUnclear    the batch may or may not be in the log
     |   +- LogFailed    and this process can append nothing more
     +- LogFull          no room for this kind of record
    """


class OffsetGone(LogError):
    """Retention removed what was asked for. `first_offset` is the oldest kept."""

    def __init__(self, offset: int, first_offset: int) -> None:
        super().__init__(
            f"offset {offset} is gone, the oldest kept is {first_offset}: start from a checkpoint"
        )
        self.offset = offset
        self.first_offset = first_offset


class LogCorrupt(LogError):
    """Bytes that were durable do not check. Never skipped silently."""


class CommitFailed(LogError):
    """Nothing of the batch was written."""


class CommitUnclear(LogError):
    """The batch may or may not be durable: the writer that sent it ends."""


class LogFailed(CommitUnclear):
    """The store did not confirm a write and is over in this process: exit, then start again."""


class LogFull(LogError):
    """No room for this kind of record."""


class RecordBatch(NamedTuple):
    """Committed records at first_offset, first_offset + 1, ...: bytes as `codec` makes them."""

    first_offset: int
    records: Sequence[bytes]


class LogReader(Protocol):
    """The reading side of a log. Reading never waits for writers."""

    @property
    def log_id(self) -> bytes:
        """16 bytes drawn when the log was created; copies keep it."""

    def first_offset(self) -> int:
        """Offset of the oldest kept record, or of the next one in an empty log."""

    def end_offset(self) -> int:
        """One past the newest committed record."""

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """Committed batches from `start` on, about `bytes_max` bytes of them, [] at the end.

        The first batch begins at `start`, or later where offsets jump.
        Raises OffsetGone, LogCorrupt.
        """

    async def wait(self, offset: int, timeout_s: float) -> None:
        """Return once a record at or beyond `offset` may be committed, or after timeout_s."""


class LogStore(LogReader, Protocol):
    """A log with its writing side; one process holds it."""

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """Append all records as one batch, durable on return; the first one's offset.

        critical: picks, ends and control records, which may use room kept for them.
        May block (a shell calls it in a thread). Raises CommitFailed, CommitUnclear, LogFull.
        """

    def is_full(self) -> bool:
        """Whether only critical records are taken now."""


class CheckpointInfo(NamedTuple):
    """A written checkpoint: the log position whose state it is, and its size."""

    offset: int
    check: int
    time: int
    size_bytes: int
    name: str


class CheckpointStore(Protocol):
    """Where checkpoints are kept: segments of held records."""

    def list(self) -> Sequence[CheckpointInfo]:
        """Kept checkpoints that check, oldest first."""

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """Record bytes of one checkpoint, in order. Raises LogCorrupt."""

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """Write one checkpoint, whole or not at all."""


class MemoryLog:
    """The reference implementation of LogStore: a list. For tests, simulation and bundles."""

    def __init__(self, log_id: bytes = bytes(16), start: int = 0) -> None:
        self._log_id = log_id
        self._batches: list[RecordBatch] = []
        self._first = start
        self._end = start

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    def first_offset(self) -> int:
        """See LogReader."""
        return self._first

    def end_offset(self) -> int:
        """See LogReader."""
        return self._end

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        if start < self._first:
            raise OffsetGone(start, self._first)
        found: list[RecordBatch] = []
        size = 0
        for batch in self._from(start):
            skip = max(0, start - batch.first_offset)
            records = batch.records[skip:]
            found.append(RecordBatch(batch.first_offset + skip, records))
            size += sum(map(len, records))
            if size >= bytes_max:
                break
        return found

    def _from(self, start: int) -> Iterator[RecordBatch]:
        low, high = 0, len(self._batches)
        while low < high:  # first batch that ends beyond `start`
            middle = (low + high) // 2
            batch = self._batches[middle]
            if batch.first_offset + len(batch.records) <= start:
                low = middle + 1
            else:
                high = middle
        for index in range(low, len(self._batches)):
            yield self._batches[index]

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader. Memory has no other writer to wait for: returns at once."""

    def is_full(self) -> bool:
        """See LogStore. Memory is not bounded here."""
        return False

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore."""
        if len(records) > COMMIT_BATCH_RECORDS_MAX or sum(map(len, records)) > COMMIT_BATCH_BYTES_MAX:
            raise CommitFailed(
                f"batch of {len(records)} records is above the batch ceiling: send smaller batches"
            )
        first = self._end
        if records:
            self._batches.append(RecordBatch(first, tuple(records)))
            self._end = first + len(records)
        return first

    def jump(self, offset: int) -> None:
        """Let the next record take `offset`, as a recovery that cut would."""
        if offset < self._end:
            raise ValueError(f"offset {offset} was used, the next one is {self._end}")
        self._end = offset

    def forget(self, offset: int) -> None:
        """Drop whole batches before `offset`, as retention would."""
        while self._batches and self._batches[0].first_offset + len(self._batches[0].records) <= offset:
            self._batches.pop(0)
        self._first = self._batches[0].first_offset if self._batches else self._end
