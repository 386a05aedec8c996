"""How evenly picks are spread over the ranks that could have had them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def gini(shares: Iterable[int]) -> float:
    """0 where all have the same, near 1 where one has it all; 0 for nothing at all.

    shares: picks (or tokens) of each rank, those with none included.
    """
    ordered = sorted(shares)
    total, count = sum(ordered), len(ordered)
    if total == 0 or count == 0:
        return 0.0
    weighted = sum(place * share for place, share in enumerate(ordered, 1))
    return (2 * weighted - (count + 1) * total) / (count * total)


def max_share(shares: Iterable[int]) -> float:
    """The largest part that one rank has; 0 for nothing at all."""
    held = list(shares)
    total = sum(held)
    return max(held) / total if total else 0.0


def lorenz(shares: Sequence[int], points: int = 64) -> list[tuple[float, float]]:
    """(share of ranks, share of picks of those with the fewest), from (0, 0) to (1, 1)."""
    ordered = sorted(shares)
    total, count = sum(ordered), len(ordered)
    curve = [(0.0, 0.0)]
    if total == 0:
        return [*curve, (1.0, 1.0)]
    held, step = 0, max(1, count // points)
    for place, share in enumerate(ordered, 1):
        held += share
        if place % step == 0 or place == count:
            curve.append((place / count, held / total))
    return curve
