"""How the soak judges memory: by quarters after the warm-up, and never by too few points."""

from __future__ import annotations

from bench.soak import GROWTH_BYTES_MAX, growth_bytes
from projections.bounds import MIB


def series(seconds: int, resident_at: list[float]) -> list[tuple[float, int]]:
    """Points evenly over the time, MiB each."""
    step = seconds / len(resident_at)
    return [((number + 1) * step, round(mib * MIB)) for number, mib in enumerate(resident_at)]


def test_a_leak_is_seen_and_what_grew_during_the_warm_up_is_not() -> None:
    warm = [10.0, 30.0, 50.0, 60.0, 64.0, 64.0]
    flat = series(300, [*warm, *(64.0 + n % 2 for n in range(24))])
    assert abs(growth_bytes(flat, 300) or 0) <= MIB
    leaking = series(300, [*warm, *(64.0 + n for n in range(24))])
    assert (growth_bytes(leaking, 300) or 0) > GROWTH_BYTES_MAX


def test_one_peak_is_no_leak() -> None:
    peak = [64.0] * 30
    peak[-1] = 200.0
    assert growth_bytes(series(300, peak), 300) == 0


def test_too_few_points_are_not_judged() -> None:
    assert growth_bytes(series(40, [64.0] * 4), 40) is None
