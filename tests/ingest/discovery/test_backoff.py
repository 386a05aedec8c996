"""The wait between passes."""

from __future__ import annotations

import pytest

from ingest.discovery.backoff import Backoff


@pytest.mark.req("ETCD-10")
def test_wait_doubles_from_initial_to_max_and_stays_there() -> None:
    backoff = Backoff(500, 3_000)
    assert [backoff.after_pass(0) for _ in range(6)] == [500, 1_000, 2_000, 3_000, 3_000, 3_000]


@pytest.mark.req("ETCD-11")
def test_only_a_pass_that_stood_for_max_starts_the_wait_anew() -> None:
    backoff = Backoff(500, 3_000)
    assert [backoff.after_pass(stood) for stood in (0, 2_999, 2_999, 3_000, 0)] == [
        500,
        1_000,
        2_000,
        500,
        1_000,
    ]


def test_initial_equal_to_max_is_a_constant_wait() -> None:
    backoff = Backoff(700, 700)
    assert [backoff.after_pass(stood) for stood in (0, 0, 700)] == [700, 700, 700]
