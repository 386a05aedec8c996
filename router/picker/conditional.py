"""Conditional disaggregation: may the chosen decode worker prefill by itself?

A decode worker that holds most of a prompt computes the rest sooner than a transfer would
take. Judged for each request after both phases have chosen, on the rows of the two winners.

Source: specification, "Conditional disaggregation"; wire contract, 10.3; CDG-01..06.
"""

from __future__ import annotations

from projections.events.control import ConditionalSettings
from projections.events.picks import Verdict
from projections.registry.fleet import Worker
from router.picker.rows import CandidateRow


def may_bypass(
    settings: ConditionalSettings,
    isl_tokens: int,
    prefill: tuple[CandidateRow, Worker],
    decode: tuple[CandidateRow, Worker],
) -> bool:
    """Whether the request goes to the decode rank alone. A policy of no known name never bypasses."""
    by_isl = settings.policy in ("isl_bounding", "isl_or_load") and _is_short(settings, isl_tokens, *decode)
    by_load = settings.policy in ("prefill_load", "isl_or_load") and _is_busy(settings, *prefill)
    return (by_isl or by_load) and _has_room(settings, isl_tokens, *decode)


def _is_short(settings: ConditionalSettings, isl_tokens: int, row: CandidateRow, worker: Worker) -> bool:
    """Few net new tokens, and a small share of the prompt; both strictly (CDG-02)."""
    new_tokens = max(0, isl_tokens - row.overlap_blocks * (worker.block_size or 0))
    share = new_tokens / max(isl_tokens, 1)
    return new_tokens < settings.eff_isl_tokens and share < settings.eff_isl_ratio


def _is_busy(settings: ConditionalSettings, row: CandidateRow, worker: Worker) -> bool:
    """The prefill rank's backlog is above its share of a batch (CDG-03); without capacity it is not known."""
    capacity = worker.max_num_batched_tokens or 0
    if settings.prefill_busy is None or capacity <= 0:
        return False
    known = row.active_prefill_tokens if row.verdict is Verdict.FRESH else None
    return (known or 0) + row.unanswered_tokens > settings.prefill_busy * capacity


def _has_room(settings: ConditionalSettings, isl_tokens: int, row: CandidateRow, worker: Worker) -> bool:
    """The blocks in use with this request stay within the share (CDG-04); unknown ones veto (CDG-05)."""
    if settings.decode_busy is None:
        return True
    total, size = worker.total_kv_blocks or 0, worker.block_size or 0
    held = row.active_decode_blocks
    if total <= 0 or size <= 0 or held is None or row.verdict not in (Verdict.FRESH, Verdict.QUIET):
        return False
    in_use = held if row.verdict is Verdict.FRESH else 0
    added = max(0, -(-isl_tokens // size) - row.overlap_blocks)
    return in_use + row.unanswered_blocks + added <= settings.decode_busy * total
