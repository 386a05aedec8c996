"""What a picking rule hands back: for both phases the rows, the winner and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from projections.events.picks import KvResult, PickReason
from projections.registry.fleet import Worker
from router.picker.rows import CandidateRow


class PhaseDecision(NamedTuple):
    """One phase.

    rows: all candidates in canonical order. workers: the worker of each row.
    winner: position in rows, None where nothing was chosen. rotation: after the choice.
    prompt_tokens: with which it was scored and is charged, None for the question's estimate.
    """

    reason: PickReason
    rows: Sequence[CandidateRow]
    workers: Sequence[Worker]
    winner: int | None
    rotation: int
    prompt_tokens: int | None = None


class Decision(NamedTuple):
    """Both phases. A prefill winner stands in the decode winner's namespace.

    kv_result: KvResult, what the prefix term was worth. overlap_blocks, block_size: of the
    rank that prefills, 0 without the term.
    """

    prefill: PhaseDecision
    decode: PhaseDecision
    kv_result: int = KvResult.OFF
    overlap_blocks: int = 0
    block_size: int = 0


def unchosen(reason: PickReason, rotation: int) -> PhaseDecision:
    """A phase that has no candidates; its rotation stays."""
    return PhaseDecision(reason, [], [], None, rotation)
