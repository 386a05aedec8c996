"""When silence is the owner's and not the standby's own."""

from __future__ import annotations

import pytest

from ingest.log.standby import (
    PING_EVERY_US,
    PING_LOST_US,
    SILENT_US,
    SLOW_US,
    YIELD_US,
    YOUNG_US,
    Vigil,
)

S = 1_000_000
TRIP = 20_000


def grown_up() -> Vigil:
    """One that has listened for long."""
    vigil = Vigil(-YOUNG_US)
    vigil.begin_anew(0)
    return vigil


def watched(vigil: Vigil, start: int, stop: int, trip: int = TRIP) -> int | None:
    """Ticks and pings that come back; the time of the first tick that may claim."""
    reads: list[tuple[int, int]] = []
    for now in range(start, stop, 100_000):
        for due, read in [one for one in reads if one[0] <= now]:
            reads.remove((due, read))
            vigil.ping_read(read, due)
        number = vigil.due_ping(now)
        if number is not None:
            reads.append((now + trip, number))
        if vigil.may_claim(now):
            return now
    return None


@pytest.mark.req("EVS-16")
def test_two_round_trips_within_two_seconds_of_silence_allow_a_claim() -> None:
    assert watched(grown_up(), 0, 10 * S) == SILENT_US


def test_a_young_standby_lets_an_older_one_go_first() -> None:
    assert watched(Vigil(0), 0, 10 * S) == SILENT_US + YIELD_US


def test_an_owner_that_speaks_each_second_is_never_claimed_from() -> None:
    vigil = grown_up()
    for second in range(30):
        assert watched(vigil, second * S, (second + 1) * S) is None
        vigil.begin_anew((second + 1) * S)


def test_who_reads_no_ping_back_is_the_one_that_is_cut_off() -> None:
    vigil = grown_up()
    for now in range(0, 60 * S, 100_000):
        vigil.due_ping(now)
        assert not vigil.may_claim(now)


def test_pings_of_a_stalled_log_that_come_back_at_once_do_not_count() -> None:
    vigil = grown_up()
    first = vigil.due_ping(0)
    assert first == 1
    assert vigil.due_ping(5 * S) is None, "the next one waits for it"
    vigil.ping_read(1, 5 * S)
    assert vigil.silent_since == 5 * S and not vigil.is_in_touch
    assert watched(vigil, 5 * S, 20 * S) == 5 * S + SILENT_US


def test_a_slow_round_trip_begins_the_silence_anew() -> None:
    assert watched(grown_up(), 0, 60 * S, trip=SLOW_US + 200_000) is None


def test_a_ping_from_before_the_silence_does_not_count() -> None:
    vigil = grown_up()
    assert vigil.due_ping(0) == 1
    vigil.begin_anew(10_000)
    vigil.ping_read(1, TRIP)
    assert vigil.due_ping(PING_EVERY_US) == 2
    vigil.ping_read(2, PING_EVERY_US + TRIP)
    assert not vigil.may_claim(10_000 + SILENT_US)
    assert vigil.due_ping(2 * PING_EVERY_US) == 3
    vigil.ping_read(3, 2 * PING_EVERY_US + TRIP)
    assert vigil.may_claim(2 * PING_EVERY_US + TRIP)


def test_a_ping_that_is_lost_is_followed_by_another_in_time() -> None:
    vigil = grown_up()
    assert vigil.due_ping(0) == 1
    assert vigil.due_ping(PING_LOST_US - 1) is None
    assert vigil.due_ping(PING_LOST_US) == 2
    vigil.ping_read(1, PING_LOST_US + 1)
    assert not vigil.is_in_touch, "nobody waits for the first one any more"
