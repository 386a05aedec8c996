"""The log, its disk and its checkpoints as a simulation sees them.

One total order of committed batches. Every process has an eye of its own: the offset up to
which it may read, which follows the log's end late, and stands still while the process is
cut off. What is written is judged by whoever commits; here it only takes its place.

Retention and whoever recreates the topic take records from readers alone: the invariants speak
of all that was ever committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest.log.kafka_settings import TopicReplaced
from projections.bounds import OFFSET_JUMP
from projections.events.ports import CheckpointInfo, LogFailed, MemoryLog, OffsetGone, RecordBatch

LOG_ID = bytes([7]) * 16


class SimLog:
    """What is durable. `offsets` proves that none is used twice.

    first: the oldest record that readers still get. is_replaced: another topic has its name.
    """

    def __init__(self) -> None:
        self.store = MemoryLog(LOG_ID)
        self.offsets: set[int] = set()
        self.first = 0
        self.is_full = False
        self.is_replaced = False
        self.eyes: list[Eye] = []

    @property
    def end(self) -> int:
        """One past the newest committed record."""
        return self.store.end_offset()

    def commit(self, records: Sequence[bytes]) -> int:
        """Append one batch; the first one's offset. Raises LogFailed as `KafkaLog.commit` does."""
        if self.is_replaced:
            raise LogFailed("it gave an offset again: it was recreated")
        first = self.store.commit(records)
        for offset in range(first, first + len(records)):
            assert offset not in self.offsets, f"offset {offset} was used twice"
            self.offsets.add(offset)
        return first

    def cut(self) -> None:
        """A recovery cut something: the next record stands at a multiple of 2^20 (decision 5)."""
        self.store.jump((self.end // OFFSET_JUMP + 1) * OFFSET_JUMP)

    def forget(self, offset: int) -> None:
        """Retention removes everything before an offset."""
        self.first = max(self.first, offset)

    def replace(self) -> None:
        """Somebody deletes the topic and makes another one of its name."""
        self.is_replaced = True

    def put_back(self) -> None:
        """The topic is again the one that it was."""
        self.is_replaced = False

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Everything in order."""
        for batch in self.store.read(self.store.first_offset(), 1 << 40):
            yield from enumerate(batch.records, batch.first_offset)


class Eye:
    """How far one process sees; a LogReader and, for claims, the reading side of a store.

    It learns that records are gone with the news behind them: what it could see before it had read.
    """

    def __init__(self, log: SimLog) -> None:
        if log.is_replaced:
            raise TopicReplaced("its records are of another log: it was recreated")
        self.log = log
        self.upto = log.end
        self._first = log.first
        log.eyes.append(self)

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return LOG_ID

    def see(self, end: int) -> bool:
        """Records before `end` have become visible; whether that is news."""
        is_news, self.upto = end > self.upto, max(self.upto, end)
        if self.upto > self.log.first:
            self._first = self.log.first
        return is_news

    def first_offset(self) -> int:
        """See LogReader."""
        return self._first

    def end_offset(self) -> int:
        """See LogReader."""
        return self.upto

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader. Whole batches or none: a batch is the unit of visibility.

        Raises TopicReplaced where another topic has the log's name.
        """
        if self.log.is_replaced:
            raise TopicReplaced("it ends before what was read of it: it was recreated")
        if start < self._first:
            raise OffsetGone(start, self._first)
        found = self.log.store.read(start, bytes_max)
        return [batch for batch in found if batch.first_offset < self.upto]

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader; the simulator wakes readers itself."""

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore; commits go through the world, which takes time and fails."""
        raise NotImplementedError

    def is_full(self) -> bool:
        """See LogStore."""
        return self.log.is_full


class Checkpoints:
    """Written checkpoints: a CheckpointStore in memory."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[CheckpointInfo, list[bytes]]] = {}

    def list(self) -> Sequence[CheckpointInfo]:
        """See CheckpointStore."""
        return sorted(info for info, _ in self._held.values())

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        return iter(self._held[info.name][1])

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """See CheckpointStore."""
        held = list(records)
        info = CheckpointInfo(offset, check, time, sum(map(len, held)), f"{offset:020d}")
        self._held[info.name] = (info, held)
        return info
