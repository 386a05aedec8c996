"""Copying records from log to log: where it goes on, what it refuses, what proves that both are equal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.log.log_copy import CopyRefused, copy_records, digest_log, last_record, place_to_go_on
from projections.events.ports import LogReader, MemoryLog, RecordBatch
from tests.log_suite import read_all, record

LOG_ID = bytes(range(16))
RUNS = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 5, 1 << 20])), max_size=8)


class MemoryCopy:
    """CopyTarget over a MemoryLog; ends after so many records, as a killed process would."""

    def __init__(self, log: MemoryLog, left: int = 1 << 40) -> None:
        self.log = log
        self.left = left

    @property
    def log_id(self) -> bytes | None:
        return self.log.log_id

    def begin(self, log_id: bytes, first_offset: int, base: object) -> None:
        raise AssertionError("it was begun")

    def take(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            self.log.jump(batch.first_offset)
            self.log.commit(batch.records[: self.left])
            self.left -= len(batch.records)
            if self.left < 0:
                raise KeyboardInterrupt

    def reader(self) -> LogReader:
        return self.log

    def close(self) -> None:
        return None


def log_of(runs: list[tuple[int, int]], first: int = 0) -> MemoryLog:
    log = MemoryLog(LOG_ID, first)
    for count, jump in runs:
        log.jump(log.end_offset() + jump)
        log.commit([record(log.end_offset() + n) for n in range(count)])
    return log


@given(RUNS, st.sampled_from([0, 300]), st.lists(st.integers(0, 60), max_size=4))
def test_a_copy_that_is_ended_anywhere_goes_on_and_ends_equal(
    runs: list[tuple[int, int]], first: int, ends: list[int]
) -> None:
    source, target = log_of(runs, first), MemoryLog(LOG_ID, first)
    stop = source.end_offset()
    for left in [*ends, 1 << 40]:
        start = place_to_go_on(source, target)
        try:
            copy_records(source, MemoryCopy(target, left), start, stop, lambda offset: None)
        except KeyboardInterrupt:
            continue
    assert read_all(target, first) == read_all(source, first)
    digests = [digest_log(log, first, stop, lambda offset: None) for log in (source, target)]
    assert digests[0] == digests[1] and digests[0].records == len(read_all(source, first))


def test_records_behind_the_stop_are_not_copied_and_not_digested() -> None:
    source, target = log_of([(10, 0)]), MemoryLog(LOG_ID)
    told: list[int] = []
    assert copy_records(source, MemoryCopy(target), 0, 7, told.append) == 7
    assert (target.end_offset(), told) == (7, [7])
    assert digest_log(source, 0, 7, told.append) == digest_log(target, 0, 7, told.append)
    assert digest_log(source, 0, 7, told.append) != digest_log(source, 0, 8, told.append)
    assert digest_log(log_of([(3, 0)]), 0, 3, told.append).digest.hex()[:16] == "79006fc1a27c75f4"


def test_a_digest_tells_the_same_records_at_other_offsets_apart() -> None:
    one, other = MemoryLog(LOG_ID), MemoryLog(LOG_ID)
    one.commit([record(0), record(1)])
    other.commit([record(0)])
    other.jump(2)
    other.commit([record(1)])
    assert digest_log(one, 0, 3, int).digest != digest_log(other, 0, 3, int).digest


@pytest.mark.parametrize("jump", [0, 1, 70, 5_000, 1 << 21])
def test_the_last_record_is_found_over_a_jump_at_the_end(jump: int) -> None:
    log = log_of([(3, 0)])
    log.jump(3 + jump)
    assert last_record(log) == (2, record(2))
    assert last_record(MemoryLog()) is None


def test_a_target_that_is_no_beginning_of_the_source_is_refused() -> None:
    source = log_of([(10, 0)])
    source.jump(20)
    source.commit([record(20)])
    longer = log_of([(12, 0)])
    with pytest.raises(CopyRefused, match="record at offset 11 that the source has not"):
        place_to_go_on(source, longer)
    other = MemoryLog(LOG_ID)
    other.commit([record(7)])
    with pytest.raises(CopyRefused, match="record at offset 0 is another one"):
        place_to_go_on(source, other)
    beyond = log_of([(10, 0), (12, 0)])
    with pytest.raises(CopyRefused, match="offset 21 that the source has not"):
        place_to_go_on(source, beyond)
    late = log_of([(10, 0)], 500)
    with pytest.raises(CopyRefused, match="the source begins at 500"):
        place_to_go_on(late, source)
    assert place_to_go_on(source, source) == 21
