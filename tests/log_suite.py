"""What every log must do, whoever keeps it. A test class inherits LogSuite and makes logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

import pytest

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from projections.events.codec import decode_record, encode_record
from projections.events.control import Pinged
from projections.events.ports import CommitFailed, LogReader, LogStore, OffsetGone

WRITER = bytes(range(16))
EVERYTHING = 1 << 40


def record(number: int, blob: int = 0) -> bytes:
    """A small record that names `number`; `blob` makes it longer."""
    return encode_record(number, WRITER, 0, number + 1, Pinged(bytes(16) + bytes(blob), number, -1))


def number_of(data: bytes) -> int:
    """The number that a record of `record` names; fails unless it checks."""
    fact = decode_record(0, data).fact
    assert isinstance(fact, Pinged)
    return fact.number


def read_all(log: LogReader, start: int, step: int = EVERYTHING) -> list[tuple[int, bytes]]:
    """(offset, record) from `start` to the end, by reads of about `step` bytes."""
    found: list[tuple[int, bytes]] = []
    while batches := log.read(start, step):
        for batch in batches:
            found.extend(enumerate(batch.records, batch.first_offset))
        start = found[-1][0] + 1
    return found


class LogSuite(ABC):
    """Cases for a LogStore."""

    @abstractmethod
    def make(self) -> LogStore:
        """A new, empty log."""

    @abstractmethod
    def reader_of(self, log: LogStore) -> LogReader:
        """A reader of it, as another process would have."""

    @abstractmethod
    def forget(self, log: LogStore, offset: int) -> None:
        """Let retention drop what it can before `offset`."""

    def batches(self, log: LogStore, *sizes: int) -> int:
        """Commit batches of so many records, numbered by offset; the offset after them."""
        for size in sizes:
            first = log.end_offset()
            assert log.commit([record(first + index) for index in range(size)]) == first
        return log.end_offset()

    def test_an_empty_log_has_no_records_and_ends_where_it_begins(self) -> None:
        log = self.make()
        assert log.end_offset() == log.first_offset() == 0
        assert log.read(0, EVERYTHING) == []

    @pytest.mark.req("EVS-20")
    def test_records_come_back_at_the_offsets_that_commit_told(self) -> None:
        log = self.make()
        assert log.commit([record(0), record(1)]) == 0
        assert log.commit([record(2)]) == 2
        assert log.end_offset() == 3
        for reader in (log, self.reader_of(log)):
            assert read_all(reader, 0) == [(n, record(n)) for n in range(3)]

    def test_a_read_may_begin_inside_a_batch(self) -> None:
        log = self.make()
        self.batches(log, 5, 7, 3)
        for reader in (log, self.reader_of(log)):
            for start in range(15):
                assert [number_of(data) for _, data in read_all(reader, start)] == list(range(start, 15))

    def test_small_reads_reach_the_end_without_gap_or_double(self) -> None:
        log = self.make()
        self.batches(log, *range(1, 30))
        for reader in (log, self.reader_of(log)):
            found = read_all(reader, 0, step=1)
            assert [offset for offset, _ in found] == list(range(log.end_offset()))
            assert all(number_of(data) == offset for offset, data in found)

    def test_the_smallest_read_far_from_any_index_entry_finds_its_record(self) -> None:
        log = self.make()
        end = self.batches(log, *[1] * 200)
        for start in range(0, end, 7):
            for reader in (log, self.reader_of(log)):
                (batch,) = reader.read(start, 1)
                assert (batch.first_offset, number_of(batch.records[0])) == (start, start)

    def test_reading_beyond_the_end_finds_nothing(self) -> None:
        log = self.make()
        end = self.batches(log, 3)
        for reader in (log, self.reader_of(log)):
            assert reader.read(end, EVERYTHING) == []
            assert reader.read(end + 100, EVERYTHING) == []

    def test_a_reader_sees_what_is_committed_after_it_was_opened(self) -> None:
        log = self.make()
        self.batches(log, 1)
        reader = self.reader_of(log)
        assert len(read_all(reader, 0)) == 1
        for size in (1, 2, 3):
            start = log.end_offset()
            self.batches(log, size)
            assert [offset for offset, _ in read_all(reader, start)] == list(range(start, start + size))

    def test_nothing_is_committed_for_no_records(self) -> None:
        log = self.make()
        self.batches(log, 2)
        assert log.commit([]) == 2
        assert log.end_offset() == 2

    def test_a_batch_above_its_ceilings_is_refused_whole(self) -> None:
        log = self.make()
        with pytest.raises(CommitFailed):
            log.commit([b"x" * 1000] * (COMMIT_BATCH_BYTES_MAX // 1000 + 1))
        with pytest.raises(CommitFailed):
            log.commit([record(0)] * (COMMIT_BATCH_RECORDS_MAX + 1))
        assert log.end_offset() == 0
        assert self.reader_of(log).read(0, EVERYTHING) == []

    def test_the_largest_record_goes_through(self) -> None:
        log = self.make()
        largest = record(0, blob=RECORD_BYTES_MAX - 128)
        log.commit([largest, record(1)])
        for reader in (log, self.reader_of(log)):
            assert read_all(reader, 0) == [(0, largest), (1, record(1))]

    def test_what_retention_dropped_is_gone_and_the_rest_stays(self) -> None:
        log = self.make()
        end = self.batches(log, *[50] * 40)
        self.forget(log, end - 60)
        first = log.first_offset()
        assert 0 < first <= end - 60
        for reader in (log, self.reader_of(log)):
            assert reader.first_offset() == first
            with pytest.raises(OffsetGone) as gone:
                reader.read(0, EVERYTHING)
            assert gone.value.first_offset == first
            assert [offset for offset, _ in read_all(reader, first)] == list(range(first, end))

    def test_offsets_grow_by_one_inside_batches(self) -> None:
        log = self.make()
        self.batches(log, 4, 4, 4)
        offsets = [offset for offset, _ in read_all(self.reader_of(log), 0)]
        assert all(later == offset + 1 for offset, later in pairwise(offsets))

    async def test_waiting_for_what_is_there_returns_at_once(self) -> None:
        log = self.make()
        end = self.batches(log, 1)
        for reader in (log, self.reader_of(log)):
            await reader.wait(end - 1, 60.0)

    def test_the_log_keeps_its_id(self) -> None:
        log = self.make()
        assert len(log.log_id) == 16
        assert self.reader_of(log).log_id == log.log_id
