"""What a picking rule hands back: for both phases the rows, the winner and the reason."""

from __future__ import annotations

from typing import NamedTuple

from projections.events.picks import PickReason
from projections.registry.fleet import Worker
from router.picker.rows import CandidateRow


class PhaseDecision(NamedTuple):
    """One phase.

    rows: all candidates in canonical order. workers: the worker of each row.
    winner: position in rows, None where nothing was chosen. rotation: after the choice.
    """

    reason: PickReason
    rows: list[CandidateRow]
    workers: list[Worker]
    winner: int | None
    rotation: int


class Decision(NamedTuple):
    """Both phases. A prefill winner stands in the decode winner's namespace."""

    prefill: PhaseDecision
    decode: PhaseDecision


def unchosen(reason: PickReason, rotation: int) -> PhaseDecision:
    """A phase that has no candidates; its rotation stays."""
    return PhaseDecision(reason, [], [], None, rotation)
