"""Numbers of behaviours are part of logs: they are never taken back."""

from __future__ import annotations

from router.picker.pick_flags import PICK_FLAGS, SHARED_IN_FLIGHT


def test_numbers_stay_what_they_were() -> None:
    assert SHARED_IN_FLIGHT == 1
    assert [*PICK_FLAGS] == sorted(set(PICK_FLAGS))
