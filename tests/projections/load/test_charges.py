"""Running totals of charges, against a plain list."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from projections.load.charges import Charges

CHARGE = st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(0, 5))


@given(st.lists(st.tuples(CHARGE, st.booleans()), max_size=60), st.integers(-1, 21), st.randoms())
def test_charges_after_an_instant_are_those_of_a_plain_list(
    steps: list[tuple[tuple[int, int, int], bool]], instant: int, order: Any
) -> None:
    charges, plain = Charges(), []
    for charge, remove in steps:
        charges.add(*charge)
        plain.append(charge)
        if remove:
            gone = plain.pop(order.randrange(len(plain)))
            charges.remove(*gone)
    later = [charge for charge in plain if charge[0] > instant]
    assert charges.after(instant) == (sum(x[1] for x in later), sum(x[2] for x in later))
    assert charges.times == sorted(charge[0] for charge in plain)
