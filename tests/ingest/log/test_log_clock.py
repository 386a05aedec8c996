from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.log.log_clock import OwnerClock, OwnerSeen, anchor_stamp


def seen(stamp: int, told_stamp: int, told_wall_us: int | None) -> OwnerSeen:
    return OwnerSeen(bytes(16), 1, stamp, told_stamp, told_wall_us)


def test_a_new_log_starts_at_the_wall_clock() -> None:
    assert anchor_stamp(None, 1234) == 1234


def test_after_a_cold_start_the_time_that_passed_on_the_wall_is_added() -> None:
    assert anchor_stamp(seen(1_050, 1_000, 900_000), 900_050 + 70) == 1_050 + 70


def test_time_that_the_wall_lost_is_not_taken_away() -> None:
    assert anchor_stamp(seen(1_050, 1_000, 900_000), 5) == 1_050


def test_log_time_goes_on_where_it_was_if_no_kept_record_tells_the_wall() -> None:
    assert anchor_stamp(seen(1_050, 1_050, None), 900_000) == 1_050


def test_log_time_runs_on_the_monotonic_clock() -> None:
    clock = OwnerClock(5_000, 100)
    assert clock.stamp(100) == 5_000
    assert clock.stamp(350) == 5_250
    assert clock.now(400) == 5_300


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=100))
def test_stamps_grow_by_at_least_one_and_now_never_precedes_them(times: list[int]) -> None:
    clock = OwnerClock(7, 0)
    last = 0
    for now in times:
        stamp = clock.stamp(now)
        assert stamp > last
        assert clock.now(now) >= stamp
        last = stamp
