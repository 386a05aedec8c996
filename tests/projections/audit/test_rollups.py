"""Roll-ups: buckets that merge, percentiles that are close, windows that are functions of their rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sql_tables import rollups
from projections.audit.rollups import (
    MINUTE_US,
    SUB_BUCKETS,
    Histogram,
    RolledPick,
    RollupRow,
    bucket_of,
    bucket_upper,
    minute_of,
    roll_up,
)

DURATIONS = st.integers(0, 1 << 62)
PICKS = st.builds(
    RolledPick,
    st.integers(0, 1 << 40),
    st.sampled_from(["load", "kv_aware", "round_robin_stale", "no_candidate", "7"]),
    st.booleans(),
    st.integers(0, 1 << 20),
    st.none() | st.integers(0, 1000),
    st.none() | st.integers(1, 128),
    st.none() | st.integers(0, 1 << 40),
    st.sampled_from(["ok", "refused", "failed", "cancelled", "expired", "9"]),
    st.none() | DURATIONS,
    st.none() | st.integers(0, 1 << 20),
    st.none() | st.integers(0, 1 << 20),
    st.none() | st.integers(0, 1 << 20),
)


def counted(*durations: int) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    return histogram


def test_a_row_has_the_columns_of_its_table() -> None:
    assert list(RollupRow._fields) == [column.name for column in rollups.columns]


@given(DURATIONS)
def test_a_bucket_holds_its_duration_and_is_narrow(duration: int) -> None:
    bucket = bucket_of(duration)
    below = bucket_upper(bucket - 1) if bucket else -1
    assert below < duration <= bucket_upper(bucket)
    assert (bucket_upper(bucket) - duration) * SUB_BUCKETS <= duration


def test_buckets_are_the_same_for_ever() -> None:
    some = (0, 31, 32, 33, 63, 64, 65, 1_000, 1_000_000, 3_600_000_000)
    assert [bucket_of(value) for value in some] == [0, 31, 32, 33, 63, 64, 64, 190, 509, 885]
    assert bucket_of(-5) == 0


@given(st.lists(DURATIONS, min_size=1), st.integers(1, 100))
def test_a_percentile_is_close_to_the_true_one(durations: list[int], percent: int) -> None:
    true = sorted(durations)[max(1, -(-len(durations) * percent // 100)) - 1]
    found = counted(*durations).percentile(percent)
    assert found is not None
    assert true <= found
    assert (found - true) * SUB_BUCKETS <= true


@given(st.lists(DURATIONS), st.lists(DURATIONS))
def test_merged_histograms_are_the_histogram_of_both(some: list[int], others: list[int]) -> None:
    merged = counted(*some)
    merged.merge(counted(*others))
    assert merged.counts == counted(*some, *others).counts
    assert Histogram.read(merged.text()).counts == merged.counts


def test_no_durations_have_no_percentile() -> None:
    assert (Histogram().percentile(50), Histogram().text()) == (None, "")


@pytest.mark.parametrize("text", ["1", "a:1", "1:-1", "1:1.5"])
def test_a_text_that_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no bucket:count"):
        Histogram.read(text)


@given(st.lists(PICKS, unique_by=lambda pick: pick.log_offset), st.integers(1, 9))
def test_the_order_of_rows_changes_nothing(picks: list[RolledPick], by: int) -> None:
    shuffled = sorted(picks, key=lambda pick: (pick.log_offset % by, pick.log_offset))
    assert roll_up(0, "tiny", shuffled) == roll_up(0, "tiny", picks)


def test_a_window_counts_what_happened_in_it() -> None:
    row = roll_up(
        MINUTE_US,
        "tiny",
        [
            RolledPick(10, "load", False, 64, None, None, 14, "ok", 900, 60, 5, 16),
            RolledPick(11, "kv_aware", True, 100, 3, 16, 12, "failed", None, None, None, None),
            RolledPick(20, "no_candidate", False, 7, None, 16, None, None, None, None, None, None),
            RolledPick(21, "31", False, 9, None, None, 22, "77", 5, 1, 1, 1),
        ],
    )
    assert (row.picks, row.by_load, row.by_kv_aware, row.by_no_candidate, row.by_other) == (4, 1, 1, 1, 1)
    assert (row.ended, row.ok, row.failed, row.expired) == (3, 1, 1, 0)
    assert (row.prefilled, row.estimated_tokens) == (1, 180)
    assert (row.predicted_picks, row.predicted_tokens, row.cached_tokens) == (1, 48, 17)
    assert (row.first_bytes, row.first_byte_p50_us, row.first_byte_p99_us) == (
        2,
        5,
        bucket_upper(bucket_of(900)),
    )
    assert (row.to_offset, row.minute, row.model) == (22, MINUTE_US, "tiny")


def test_a_minute_begins_where_its_time_is_whole() -> None:
    assert [minute_of(at) for at in (0, MINUTE_US - 1, MINUTE_US, MINUTE_US + 1)] == [
        0,
        0,
        MINUTE_US,
        MINUTE_US,
    ]
