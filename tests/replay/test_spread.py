"""How evenly picks are spread."""

import pytest

from replay.spread import gini, lorenz, max_share


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([5, 5, 5, 5], 0.0), ([0, 0, 0, 8], 0.75), ([], 0.0), ([0, 0], 0.0), ([1, 2, 3], 2 / 9), ([7], 0.0)],
)
def test_gini_is_0_for_even_and_grows_with_one_share(shares: list[int], expected: float) -> None:
    assert gini(shares) == pytest.approx(expected)


def test_the_largest_share_is_of_all_that_there_is() -> None:
    assert max_share([1, 3]) == 0.75
    assert max_share([]) == max_share([0, 0]) == 0.0


def test_a_lorenz_curve_runs_from_corner_to_corner_under_the_diagonal() -> None:
    curve = lorenz(list(range(200)))
    assert curve[0] == (0.0, 0.0) and curve[-1] == (1.0, 1.0) and len(curve) < 80
    assert all(y <= x + 1e-9 for x, y in curve)
    assert lorenz([0, 0]) == [(0.0, 0.0), (1.0, 1.0)]
