"""Draws by temperature."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.picker.softmax import softmax_index

FULL = 1 << 53


def drawn(sample: float) -> int:
    return int(sample * FULL)


@pytest.mark.req("KVP-05", "DYN-06")
@pytest.mark.parametrize(
    ("costs", "temperature", "sample", "expected"),
    [
        ((10, 20, 30), 0.5, 0.0, 0),
        ((10, 20, 30), 0.5, 0.66, 0),
        ((10, 20, 30), 0.5, 0.67, 1),
        ((10, 20, 30), 0.5, 0.70, 1),
        ((10, 20, 30), 0.5, 0.90, 1),
        ((10, 20, 30), 0.5, 0.92, 2),
        ((30, 20, 10), 0.5, 0.05, 0),
        ((30, 20, 10), 0.5, 0.70, 2),
        ((7, 7, 7, 7), 0.5, 0.24, 0),
        ((7, 7, 7, 7), 0.5, 0.25, 0),
        ((7, 7, 7, 7), 0.5, 0.26, 1),
        ((7, 7, 7, 7), 9.0, 0.99, 3),
        ((1e6, 2e6, 3e6), 0.5, 0.70, 1),
        ((-1e308, 0.0, 1e308), 0.5, 0.70, 1),
        ((5,), 0.1, 0.99, 0),
    ],
)
def test_first_place_whose_probability_reaches_the_draw(
    costs: tuple[float, ...], temperature: float, sample: float, expected: int
) -> None:
    assert softmax_index(costs, temperature, drawn(sample)) == expected


@pytest.mark.req("KVP-05")
def test_equal_costs_are_drawn_equally_often() -> None:
    rng = Random(3)
    counts = Counter(softmax_index((4.0, 4.0, 4.0), 0.3, rng.getrandbits(53)) for _ in range(9_000))
    assert all(abs(count - 3_000) < 200 for count in counts.values())


@pytest.mark.req("KVP-05")
def test_shares_are_those_of_the_formula() -> None:
    rng = Random(4)
    counts = Counter(softmax_index((10, 20, 30), 0.5, rng.getrandbits(53)) for _ in range(20_000))
    expected = (0.6652, 0.2447, 0.0900)
    assert all(abs(counts[place] / 20_000 - expected[place]) < 0.012 for place in range(3))


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=20),
    st.floats(1e-300, 1e6),
    st.integers(0, FULL - 1),
)
def test_any_draw_falls_on_a_place(costs: list[float], temperature: float, draw: int) -> None:
    assert 0 <= softmax_index(costs, temperature, draw) < len(costs)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, FULL - 1))
def test_cold_draws_take_the_lowest(costs: list[float], draw: int) -> None:
    assert costs[softmax_index(costs, 1e-300, draw)] == min(costs)
