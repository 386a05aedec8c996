"""The terms of a cost by prefix and load, one rank at a time, for people to read.

`prefix_costs` judges all ranks at once and keeps the cost alone; here a table that it made is
taken apart again, by the same formula in the same order, so that the last term is the cost
to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from projections.events.control import PickSettings
from projections.events.picks import Outcome, Phase, PickReason, Question
from router.picker.prefix_costs import Leg
from router.picker.rows import CandidateRow


class CostTerms(NamedTuple):
    """In blocks of the rank's own size, but for decay, a factor. credit is a part of the row.

    raw_blocks: to prefill, with what waits. adjusted_blocks: less the credit. decode_blocks:
    in use with this prompt; None where nobody's backlog was known, so that it played no part.
    """

    raw_blocks: float
    decay: float
    adjusted_blocks: float
    decode_blocks: int | None
    cost: float


def leg_of(phase: Phase, outcome: Outcome) -> Leg:
    """What a phase of this outcome was scored for, if it was scored by prefix."""
    if phase is Phase.PREFILL:
        return Leg.PREFILL
    return Leg.AGGREGATED if outcome.prefill.reason == PickReason.NO_PREFILL_POOL else Leg.DECODE


def terms_of(
    leg: Leg, rows: Sequence[CandidateRow], sizes: Sequence[int], question: Question, settings: PickSettings
) -> list[CostTerms | None]:
    """The terms of each row of a whole table; None for rows without a cost, or scored by load alone.

    sizes: block size of each row's worker.
    """
    kv = settings.kv
    if kv is None or not rows or rows[0].credit is None:
        return [None] * len(rows)
    fresh = [_is_fresh(row, settings.max_staleness_us) for row in rows]
    field = 4 if leg is Leg.PREFILL else 5
    is_told = any(
        is_fresh and row[field] is not None and not row.excluded
        for is_fresh, row in zip(fresh, rows, strict=True)
    )
    backlogs = [_backlog(row, is_fresh and is_told) for is_fresh, row in zip(fresh, rows, strict=True)]
    least = min((b[0] for b, row in zip(backlogs, rows, strict=True) if row.cost is not None), default=0)
    isl = question.isl_tokens
    found: list[CostTerms | None] = []
    for row, size, (tokens, blocks) in zip(rows, sizes, backlogs, strict=True):
        if row.cost is None or row.credit is None:
            found.append(None)
            continue
        decay = 1.0
        if leg is not Leg.DECODE and isl > 0:
            decay = 1.0 / (1.0 + kv.credit_decay * (max(0, tokens - least) / isl))
        raw = (tokens + isl) / size
        decode = blocks + max(0, -(-isl // size) - row.overlap_blocks)
        if leg is Leg.DECODE:
            adjusted = max(0.0, decode - row.credit)
            found.append(CostTerms(0.0, decay, adjusted, decode, adjusted))
        elif is_told:
            adjusted = max(0.0, raw - row.credit)
            found.append(CostTerms(raw, decay, adjusted, decode, kv.prefill_scale * adjusted + decode))
        else:
            adjusted = raw - row.credit
            found.append(CostTerms(raw, decay, adjusted, None, adjusted))
    return found


def _is_fresh(row: CandidateRow, staleness_us_max: int) -> bool:
    return row.sample_age_us is not None and row.sample_age_us <= staleness_us_max


def _backlog(row: CandidateRow, is_known: bool) -> tuple[int, int]:
    """Tokens to prefill and blocks in use, those of unanswered dispatches among them."""
    tokens = (row.active_prefill_tokens or 0) if is_known else 0
    blocks = (row.active_decode_blocks or 0) if is_known else 0
    return tokens + row.unanswered_tokens, blocks + row.unanswered_blocks
