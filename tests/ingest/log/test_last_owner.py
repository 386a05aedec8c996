from __future__ import annotations

import pytest

from ingest.log.last_owner import last_owner
from ingest.log.log_clock import OwnerSeen
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, ClockTicked, LaneOpened, Pinged
from projections.events.ports import MemoryLog

A, B = b"writer-number-aa", b"writer-number-bb"


def opened(writer: bytes, epoch: int, time: int, wall: int) -> bytes:
    return encode_record(time, writer, 0, 1, LaneOpened(epoch, wall, b"", "new"))


def owned(writer: bytes, epoch: int, time: int) -> bytes:
    return encode_record(time, writer, epoch, 2, CheckpointDue("x"))


def pings(count: int) -> list[bytes]:
    return [encode_record(1 << 50, B, 0, number + 1, Pinged(B, number, -1)) for number in range(count)]


def test_a_log_without_records_or_owners_has_none() -> None:
    log = MemoryLog()
    assert last_owner(log) is None
    log.commit(pings(10))
    assert last_owner(log) is None


def test_the_newest_record_that_tells_both_times_counts_and_the_newest_stamp() -> None:
    log = MemoryLog()
    log.commit([opened(A, 3, 1000, 99_000), owned(A, 3, 1100)])
    tick = ClockTicked(99_500, -1, (), 0, 0)
    log.commit([encode_record(1500, A, 3, 9, tick), owned(A, 3, 1600), *pings(5)])
    assert last_owner(log) == OwnerSeen(A, 3, 1600, 1500, 99_500)


def test_a_later_owner_counts() -> None:
    log = MemoryLog()
    log.commit([opened(A, 3, 1000, 99_000), owned(A, 3, 1100), opened(B, 4, 1200, 99_300)])
    assert last_owner(log) == OwnerSeen(B, 4, 1200, 1200, 99_300)


@pytest.mark.req("EVS-16")
def test_a_late_tick_of_an_owner_that_was_superseded_does_not_count() -> None:
    log = MemoryLog()
    log.commit([opened(A, 3, 1000, 99_000), opened(B, 4, 1200, 99_300)])
    log.commit([encode_record(1150, A, 3, 9, ClockTicked(99_250, -1, (), 0, 0))])
    assert last_owner(log) == OwnerSeen(B, 4, 1200, 1200, 99_300)


def test_it_is_found_far_back_behind_records_of_others() -> None:
    log = MemoryLog()
    log.commit([opened(A, 3, 1000, 99_000), owned(A, 3, 1100)])
    for _ in range(30):
        log.commit(pings(1000))
    assert last_owner(log) == OwnerSeen(A, 3, 1100, 1000, 99_000)


def test_unreadable_records_are_passed_by() -> None:
    log = MemoryLog()
    good = opened(A, 3, 1000, 99_000)
    log.commit([good, good[:-1] + b"x", b"", b"rubbish"])
    assert last_owner(log) == OwnerSeen(A, 3, 1000, 1000, 99_000)


def test_what_stands_behind_a_given_offset_is_not_looked_at() -> None:
    log = MemoryLog()
    log.commit([opened(A, 3, 1000, 99_000), opened(B, 4, 1200, 99_300)])
    assert last_owner(log, 1) == OwnerSeen(A, 3, 1000, 1000, 99_000)


@pytest.mark.req("EVS-14", "EVS-16")
def test_a_log_that_begins_behind_the_last_tick_of_its_owner_still_names_it() -> None:
    log = MemoryLog(start=70)
    log.commit([owned(A, 3, 1100), *pings(5)])
    log.commit([owned(B, 4, 1200), owned(A, 3, 1150)])
    assert last_owner(log) == OwnerSeen(B, 4, 1200, 1200, None)
    assert last_owner(log, before=75) == OwnerSeen(A, 3, 1100, 1100, None)


def test_a_log_that_was_never_claimed_and_has_lost_nothing_has_no_owner() -> None:
    """Owners claim before they speak: where no claim can have been removed, there was none."""
    log = MemoryLog()
    log.commit([owned(A, 3, 1100), *pings(5)])
    assert last_owner(log) is None
