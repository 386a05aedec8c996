"""The rule that compares backlogs, the default picker.

Decode is chosen first, across all eligible namespaces, then prefill inside the winner's:

    prefill cost = (active prefill tokens + unanswered tokens) / max_num_batched_tokens
    decode cost  = (active decode blocks + unanswered blocks + ceil(prompt / block size)) / total_kv_blocks

A candidate has a cost when its card gives the capacity and its backlog is known: fresh, or
quiet, which counts as none. Silent and stalled candidates have no cost. If any candidate
has a fresh sample that speaks of the phase, the lowest cost wins and equal ones take
turns. If none has, or no cost is defined at all, nothing can be compared and all
candidates take turns, stalls or not (STORE-12).

Suspect workers are left out of a phase unless all of its workers are suspect.

Costs are one division of integers each, which is correctly rounded everywhere.
Source: specification, "Selection"; PICK-01..10, STORE-03..12, decisions 20, 29, 38.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from projections.events.control import PickSettings
from projections.events.picks import ExcludedReason, Phase, PickReason, Question, Verdict
from projections.load.backlog import phase_value, read_backlog
from projections.registry.fleet import Worker
from projections.view import View, WorkerReading
from router.picker.candidates import partners, pools_of
from router.picker.decision import Decision, PhaseDecision, unchosen
from router.picker.rotation import after, whose_turn
from router.picker.rows import CandidateRow

_new: Any = tuple.__new__
_FRESH, _STALLED, _EXCLUDED = Verdict.FRESH, Verdict.STALLED, Verdict.EXCLUDED
_NONE, _SUSPECT = ExcludedReason.NONE, ExcludedReason.SUSPECT


def decide(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...]) -> Decision:
    """Choose a decode rank and, beside a decode worker with a prefill pool, a prefill rank.

    flags: numbered behaviours of the replica that asked; this release has none.
    """
    pools = pools_of(view.fleet, question, settings)
    if not pools:
        return Decision(
            unchosen(PickReason.NO_CANDIDATE, question.rotation_prefill),
            unchosen(PickReason.NO_CANDIDATE, question.rotation_decode),
        )
    competing = [worker for pool in pools for worker in pool.decode]
    decode = _phase(view, Phase.DECODE, competing, question, settings, question.rotation_decode)
    assert decode.winner is not None  # there are candidates, so one of them wins
    winner = decode.workers[decode.winner]
    pool = next(pool for pool in pools if pool.namespace == winner.key.namespace)
    rotation = rotation_prefill(question, pool.namespace)
    paired = partners(pool, winner)
    if not paired:
        return Decision(unchosen(PickReason.NO_PREFILL_POOL, rotation), decode)
    return Decision(_phase(view, Phase.PREFILL, paired, question, settings, rotation), decode)


def rotation_prefill(question: Question, namespace: str) -> int:
    """The prefill rotation of a namespace, or the common one where none is given for it."""
    for name, rotation in zip(question.namespaces, question.rotations_prefill, strict=False):
        if name == namespace:
            return rotation
    return question.rotation_prefill


def _phase(
    view: View,
    phase: Phase,
    workers: Iterable[Worker],
    question: Question,
    settings: PickSettings,
    rotation: int,
) -> PhaseDecision:
    """Rows of all ranks of `workers`, which is not empty, and who wins."""
    at, weigh = question.asked_at, settings.ledger
    readings = [(worker, view.read(worker, at, weigh)) for worker in workers]
    left_out = any(reading[0] for _, reading in readings) and not all(reading[0] for _, reading in readings)
    rows: list[CandidateRow] = []
    owners: list[Worker] = []
    any_fresh = False
    for worker, reading in readings:
        excluded = left_out and reading.suspect
        fresh = _add_rows(rows, phase, worker, reading, excluded, question, settings)
        owners += [worker] * len(reading.ranks)
        any_fresh |= fresh and not excluded
    costs = [row[3] for row in rows if row[3] is not None] if any_fresh else []
    if costs:
        lowest = min(costs)
        equals = [place for place, row in enumerate(rows) if row[3] == lowest]
        reason = PickReason.LOAD
    else:
        rows = [row._replace(cost=None) for row in rows]
        equals = [place for place, row in enumerate(rows) if row.excluded == _NONE]
        reason = PickReason.ROUND_ROBIN_STALE
    winner = whose_turn(rotation, len(rows), equals)
    return PhaseDecision(reason, rows, owners, winner, after(winner))


def _add_rows(
    rows: list[CandidateRow],
    phase: Phase,
    worker: Worker,
    reading: WorkerReading,
    excluded: bool,
    question: Question,
    settings: PickSettings,
) -> bool:
    """Append the rows of a worker's ranks; whether one has a fresh sample with the phase's field."""
    namespace, instance_id = worker.key
    at, staleness = question.asked_at, settings.max_staleness_us
    prefill = phase is Phase.PREFILL
    capacity = worker.max_num_batched_tokens if prefill else worker.total_kv_blocks
    own = 0 if prefill else blocks_of(question.estimated_tokens, worker.block_size)
    if own is None:
        capacity = None
    any_fresh = False
    for dp_rank, sample, tokens, blocks in reading.ranks:
        verdict, value = read_backlog(sample, phase, at, staleness)
        if verdict is _FRESH and value is not None:
            any_fresh = True
        cost = None
        if excluded:
            verdict = _EXCLUDED
        elif reading.stalled:
            verdict = _STALLED
        elif value is not None and capacity:
            cost = (value + (tokens if prefill else blocks + own)) / capacity  # type: ignore[operator]
        if sample is None:
            active_tokens = active_blocks = age = None
        else:
            active_tokens = sample.active_prefill_tokens
            active_blocks = value if value is not None and not prefill else phase_value(sample, Phase.DECODE)
            age = max(0, at - sample.received_at)
        head = (namespace, instance_id, dp_rank, cost, active_tokens, active_blocks, tokens, blocks)
        reason = _SUSPECT if excluded else _NONE
        rows.append(_new(CandidateRow, (*head, age, verdict, reason, 0)))
    return any_fresh


def blocks_of(tokens: int, block_size: int | None) -> int | None:
    """Blocks that a prompt of this length takes, None where no usable block size is known (B-023)."""
    return -(-tokens // block_size) if block_size is not None and block_size > 0 else None
