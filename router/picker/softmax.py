"""One of several costs, drawn by temperature.

A candidate's weight is e^(-((cost - lowest) / (highest - lowest)) / temperature): costs are
normalised by their range, so a temperature means the same in every unit. With temperature 1
the dearest candidate weighs e^-1 of the cheapest. Equal costs weigh the same.

The draw is no business of this module: it is recorded in the question (KVP-06).

Source: wire contract, 10.2; KVP-05, DYN-06.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.picker.portable_float import portable_exp

DRAW_BITS = 53


def softmax_index(costs: Sequence[float], temperature: float, draw: int) -> int:
    """The first place whose cumulative probability reaches draw / 2^53; the last if rounding leaves none.

    costs: finite, not empty. temperature: above 0. draw: 0 .. 2^53 - 1.
    """
    weights = _weights(costs, temperature)
    total = 0.0
    for weight in weights:
        total = total + weight
    sample = draw / (1 << DRAW_BITS)
    reached = 0.0
    for place, weight in enumerate(weights):
        reached = reached + weight / total
        if reached >= sample:
            return place
    return len(weights) - 1


def _weights(costs: Sequence[float], temperature: float) -> list[float]:
    """Not normalised; the cheapest weighs 1."""
    lowest, highest = min(costs), max(costs)
    if lowest == highest:
        return [1.0] * len(costs)
    span = highest - lowest
    if span == math.inf:
        largest = max(-lowest, highest)
        return _weights([cost / largest for cost in costs], temperature)
    return [portable_exp(-((cost - lowest) / span) / temperature) for cost in costs]
