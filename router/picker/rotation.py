"""Whose turn it is among candidates that nothing else tells apart.

Candidates of a phase stand in canonical order at positions 0..n-1. A rotation is the
position at which the next search begins, modulo n: the first of the equals at or after it
wins, going round, and the rotation becomes the winner's position plus one. It moves with
every choice of the phase, also one that costs decided, so equals go on where the last
choice was. A worker that joins or leaves shifts the turn by one place at most and never
starts it over (B-078).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def whose_turn(rotation: int, count: int, among: Sequence[int]) -> int:
    """The position in `among` (ascending, not empty, each below `count`) whose turn it is."""
    place = bisect_left(among, rotation % count)
    return among[place] if place < len(among) else among[0]


def after(winner: int) -> int:
    """The rotation that a choice leaves."""
    return winner + 1
