"""Which flags settings want."""

from __future__ import annotations

import pytest

from projections.events.control import KvPickSettings, PickSettings
from projections.fold_modes import (
    COUNTED_ONCE,
    FOLD_MODES,
    KV_INDEX,
    LOWER_TIERS,
    SIDE_INDEX,
    WANTED_ALWAYS,
    wanted_modes,
)

PICK = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000)
KV = KvPickSettings(1.0, 1.0, 0.0)


@pytest.mark.req("KVX-01", "KVX-20")
def test_settings_without_the_prefix_term_want_no_flag() -> None:
    assert wanted_modes(PICK) == ()
    assert wanted_modes(PICK._replace(kv=KV)) == (KV_INDEX,)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        (KV._replace(host_credit=0.75), LOWER_TIERS),
        (KV._replace(disk_credit=0.25), LOWER_TIERS),
        (KV._replace(predicted_ttl_us=1), SIDE_INDEX),
        (KV._replace(approximate_ttl_us=1), SIDE_INDEX),
    ],
)
def test_each_further_index_is_wanted_by_the_settings_that_read_it(
    settings: KvPickSettings, flag: int
) -> None:
    assert wanted_modes(PICK._replace(kv=settings)) == (KV_INDEX, flag)


def test_numbers_are_those_that_logs_hold() -> None:
    assert (KV_INDEX, LOWER_TIERS, SIDE_INDEX, COUNTED_ONCE) == (1, 2, 3, 4)
    assert sorted(FOLD_MODES) == [1, 2, 3, 4]


def test_what_every_log_wants_is_no_matter_of_settings() -> None:
    everything = KV._replace(host_credit=0.5, disk_credit=0.5, predicted_ttl_us=1, approximate_ttl_us=1)
    assert WANTED_ALWAYS == (COUNTED_ONCE,)
    assert not set(WANTED_ALWAYS) & set(wanted_modes(PICK._replace(kv=everything)))
