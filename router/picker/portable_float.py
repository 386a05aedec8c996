"""An exponential that has the same bits on every machine.

The C library's differs between machines in the last place, and the last place decides a
draw that falls on the edge between two candidates. This one uses + - * / on doubles, which
IEEE 754 rounds the same everywhere, and powers of two, which are exact:

    x = (32 k + j) * ln2 / 32 + r,  |r| <= ln2 / 64,  e^x = 2^k * 2^(j/32) * e^r

ln2 / 32 is split in two, so that the product with 32 k + j loses nothing; 2^(j/32) is kept
as the nearest double and what that one lacks; e^r - 1 is a polynomial of degree 6, whose
rest is below 2^-58. Constants come of decimal arithmetic with 60 digits. Within 1 ulp of
the exact value wherever that is a normal number.

Source: design, style rule 7; KVP-05, KVP-06.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

_TERMS = 32  # of a power of two
_EXACT = Context(prec=60)
_STEP = _EXACT.divide(_EXACT.ln(Decimal(2)), Decimal(_TERMS))
_STEP_HIGH = float(int(_STEP * 2**42)) / 2.0**42  # at most 37 bits: times 16 bits it is exact
_STEP_LOW = float(_EXACT.subtract(_STEP, Decimal(_STEP_HIGH)))
_STEPS_PER_ONE = float(_EXACT.divide(Decimal(1), _STEP))


def _powers() -> tuple[tuple[float, float], ...]:
    exact = [_EXACT.exp(_EXACT.multiply(_STEP, Decimal(j))) for j in range(_TERMS)]
    return tuple((float(power), float(_EXACT.subtract(power, Decimal(float(power))))) for power in exact)


_POWERS = _powers()
_LARGEST, _SMALLEST = 709.782712893384, -745.1332191019412  # beyond: infinity, 0


def portable_exp(x: float) -> float:
    """e^x. 0.0 below the smallest subnormal, infinity above the largest double; NaN gives NaN."""
    if not _SMALLEST <= x <= _LARGEST:
        return x if x != x else (0.0 if x < 0.0 else math.inf)
    steps = int(x * _STEPS_PER_ONE + (0.5 if x >= 0.0 else -0.5))
    r = (x - steps * _STEP_HIGH) - steps * _STEP_LOW
    tail = r * r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720)))))
    high, low = _POWERS[steps % _TERMS]
    return math.ldexp(high + (low + high * (r + tail)), steps // _TERMS)
