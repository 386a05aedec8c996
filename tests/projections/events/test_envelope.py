"""Marks are ordered positions, written the same everywhere."""

from __future__ import annotations

from projections.events.envelope import LANE, NOTHING, REPLICA_EPOCH, Mark


def test_a_mark_is_written_as_lane_and_offset() -> None:
    assert Mark(18_233, 5, 7).to_text() == "0:18233"
    assert LANE == 0 and REPLICA_EPOCH == 0


def test_the_mark_of_nothing_lies_before_every_offset() -> None:
    assert NOTHING < Mark(0, 0, 0) < Mark(1, 0, 0)
