"""The breaker in virtual time."""

from __future__ import annotations

import pytest

from router.dispatch.breaker import Breaker, BreakerState
from router.settings import BreakerSettings

SETTINGS = BreakerSettings(failure_threshold=3, open_us=1_000, half_open_requests=2)


def opened(at: int = 100) -> Breaker:
    breaker = Breaker(SETTINGS)
    for _ in range(3):
        breaker.failed(at)
    return breaker


@pytest.mark.req("SHIM-01")
def test_failures_in_a_row_open_it_for_a_while() -> None:
    breaker = Breaker(SETTINGS)
    breaker.failed(1)
    breaker.failed(2)
    assert breaker.lets_through(3)
    breaker.failed(3)
    assert breaker.state(4) is BreakerState.OPEN
    assert not breaker.lets_through(1_002)
    assert breaker.state(1_003) is BreakerState.HALF_OPEN
    assert breaker.lets_through(1_003)


def test_an_answer_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(SETTINGS)
    breaker.failed(1)
    breaker.failed(2)
    breaker.succeeded()
    breaker.failed(3)
    assert breaker.state(4) is BreakerState.CLOSED


def test_half_open_lets_only_its_trials_through() -> None:
    breaker = opened()
    assert breaker.began(1_100)
    assert breaker.began(1_100)
    assert not breaker.lets_through(1_100)
    breaker.ended(trial=True)
    assert breaker.lets_through(1_100)


def test_a_good_trial_closes_it_and_a_bad_one_opens_it_again() -> None:
    breaker = opened()
    assert breaker.began(1_100)
    breaker.failed(1_200)
    breaker.ended(trial=True)
    assert breaker.state(1_201) is BreakerState.OPEN
    assert breaker.state(2_200) is BreakerState.HALF_OPEN
    assert breaker.began(2_200)
    breaker.succeeded()
    breaker.ended(trial=True)
    assert breaker.state(2_201) is BreakerState.CLOSED
    assert not breaker.began(2_202)


def test_late_failures_do_not_prolong_an_open_breaker() -> None:
    breaker = opened(100)
    breaker.failed(900)
    assert breaker.state(1_100) is BreakerState.HALF_OPEN


def test_trials_that_end_too_often_do_not_count_below_none() -> None:
    breaker = opened()
    breaker.ended(trial=True)
    breaker.began(1_100)
    breaker.began(1_100)
    assert not breaker.lets_through(1_100)


def test_disabled_breaker_never_opens() -> None:
    breaker = Breaker(BreakerSettings(enabled=False, failure_threshold=1))
    breaker.failed(1)
    assert breaker.lets_through(2)
