"""Runs of numbers join where nothing was missed, and only there."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.subscriptions.continuity import RANKS_WAITING_MAX, RAW_WAITING_BYTES_MAX, Continuity
from projections.notices import FrameResult
from tests.ingest.subscriptions.network import sample


def covered(continuity: Continuity) -> list[tuple[int, int]]:
    return [(one.covers_from, one.sample.sequence) for one in continuity.drain()]


@pytest.mark.field("B-072")
def test_the_first_sample_of_a_connection_begins_a_run_wherever_it_stands() -> None:
    continuity = Continuity()
    continuity.fill(6)  # a refused frame before it: there is nothing yet to cover
    assert continuity.take(sample(9)) is None
    assert covered(continuity) == [(9, 9)]


@pytest.mark.req("STORE-14")
def test_a_hole_drops_what_waits_from_before_it() -> None:
    continuity = Continuity()
    continuity.take(sample(1, rank=0))
    covered(continuity)
    continuity.take(sample(2, rank=1))
    continuity.take(sample(9, rank=0))
    continuity.take(sample(10, rank=0))
    assert covered(continuity) == [(9, 10)]


@pytest.mark.req("STORE-14")
def test_a_refused_frame_fills_the_next_place_and_no_other() -> None:
    continuity = Continuity()
    continuity.take(sample(1))
    covered(continuity)
    for refused in (2, 3, (1 << 64) - 1, 0, 2):  # a broken number must not make later ones repeats
        continuity.fill(refused)
    assert continuity.take(sample(4)) is None
    assert covered(continuity) == [(2, 4)]
    continuity.fill(6)  # 5 never came
    continuity.take(sample(7))
    assert covered(continuity) == [(7, 7)]


def test_a_sample_that_finds_no_room_shows_as_a_hole() -> None:
    continuity = Continuity()
    for n in range(RANKS_WAITING_MAX):
        assert continuity.take(sample(n, rank=n)) is None
    assert continuity.take(sample(RANKS_WAITING_MAX, rank=3)) is None  # its rank has a place
    assert not continuity.has_room(sample(0, rank=RANKS_WAITING_MAX))
    missed = RANKS_WAITING_MAX + 1
    assert continuity.take(sample(missed, rank=RANKS_WAITING_MAX)) is FrameResult.OVER_CAPACITY
    continuity.take(sample(missed + 1))
    assert covered(continuity) == [(missed + 1, missed + 1)]


def test_raw_frames_that_wait_are_bounded_and_freed() -> None:
    continuity = Continuity()
    half = (b"", b"", b"", bytes(RAW_WAITING_BYTES_MAX // 2))
    for n in range(100):
        continuity.take(sample(n, rank=0), half)  # each replaces the one before
    continuity.take(sample(100, rank=1), half)
    continuity.take(sample(101, rank=2), half)
    assert [one.frames is not None for one in continuity.drain()] == [True, True, False]
    continuity.take(sample(102), half)
    assert continuity.drain()[0].frames == half


@given(st.integers(0, 2**32), st.integers(0, 30))
def test_any_traffic_gives_runs_that_tell_the_fold_exactly_what_was_missed(seed: int, lost: int) -> None:
    """Against a model: each number arrives as a sample, arrives refused, or is lost."""
    draw = random.Random(seed)
    continuity, told = Continuity(), []
    fates = [draw.choices("srx", (70, 20, lost))[0] for _ in range(120)]
    for number, fate in enumerate(fates):
        if fate == "s":
            assert continuity.take(sample(number, rank=draw.randrange(4))) is None
        elif fate == "r":
            continuity.fill(number)
        if draw.random() < 0.2:
            told += continuity.drain()
    told += continuity.drain()
    for earlier, later in itertools.pairwise(told):
        between = fates[earlier.sample.sequence + 1 : later.sample.sequence]
        is_gap = later.covers_from > earlier.sample.sequence + 1
        assert is_gap == ("x" in between)
        assert later.covers_from > earlier.sample.sequence
    assert all(one.covers_from <= one.sample.sequence for one in told)
