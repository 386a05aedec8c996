"""The exponential against exact arithmetic, and its bits."""

from __future__ import annotations

import math
import struct
from random import Random

import pytest

from router.picker.portable_float import portable_exp

PINNED = {
    0.0: "3ff0000000000000",
    1.0: "4005bf0a8b145769",
    -1.0: "3fd78b56362cef38",
    -2.0: "3fc152aaa3bf81cc",
    -0.5: "3fe368b2fc6f960a",
    -1e-9: "3fefffffff768fa1",
    -10.0: "3f07cd79b5647c9b",
    -100.0: "36ea8c1f14e2af5d",
    -700.25: "00caf5fe9a485c8e",
    -744.0: "0000000000000002",
    3.7: "4044394144eeec81",
    709.7: "7fed75ae7a50ee14",
}


@pytest.mark.req("KVP-05", "PICK-14")
@pytest.mark.parametrize("x", PINNED)
def test_exponential_has_the_same_bits_everywhere(x: float) -> None:
    assert struct.pack(">d", portable_exp(x)).hex() == PINNED[x]


def test_exponential_is_the_librarys_to_one_place_in_a_million_draws() -> None:
    """The library may itself be off by one place, so two are allowed between both."""
    rng = Random(1)
    for _ in range(1_000_000):
        x = rng.uniform(-745.0, 0.0) if rng.random() < 0.3 else rng.uniform(-20.0, 1.0)
        mine, theirs = portable_exp(x), math.exp(x)
        assert abs(mine - theirs) <= 2 * math.ulp(theirs), x


@pytest.mark.parametrize(
    ("x", "expected"),
    [(-746.0, 0.0), (-math.inf, 0.0), (710.0, math.inf), (math.inf, math.inf), (-1e308, 0.0)],
)
def test_beyond_its_range_it_is_nought_or_infinite(x: float, expected: float) -> None:
    assert portable_exp(x) == expected


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(portable_exp(math.nan))


def test_greater_arguments_never_give_less() -> None:
    before = 0.0
    for step in range(-800_00, 100_00, 7):
        value = portable_exp(step / 100)
        assert value >= before
        before = value
