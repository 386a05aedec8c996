"""A phase without candidates."""

from __future__ import annotations

from projections.events.picks import PickReason
from router.picker.decision import unchosen


def test_phase_without_candidates_keeps_its_rotation() -> None:
    decision = unchosen(PickReason.NO_PREFILL_POOL, 7)
    assert (decision.reason, decision.rotation, decision.winner) == (PickReason.NO_PREFILL_POOL, 7, None)
    assert decision.rows == [] and decision.workers == []
