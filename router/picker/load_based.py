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
from projections.load.backlog import read_backlog
from projections.registry.fleet import Worker
from projections.view import View, WorkerReading
from router.picker.candidates import partners, pools_of
from router.picker.decision import Decision, PhaseDecision, unchosen
from router.picker.rotation import after, whose_turn
from router.picker.rows import CandidateRow

_new: Any = tuple.__new__
_FRESH, _QUIET, _STALLED, _EXCLUDED = Verdict.FRESH, Verdict.QUIET, Verdict.STALLED, Verdict.EXCLUDED
_NONE, _SUSPECT = ExcludedReason.NONE, ExcludedReason.SUSPECT
_ZERO = (0, 0)
_NO_PREFIX = (0, 0, 0, 0, None)  # the last fields of a row: no prefix term


def decide(
    view: View, question: Question, settings: PickSettings, flags: tuple[int, ...], compare: bool = True
) -> Decision:
    """Choose a decode rank and, beside a decode worker with a prefill pool, a prefill rank.

    flags: numbered behaviours of the replica that asked; none of them is of this rule.
    compare: False lets all take turns, as if no cost were defined.
    """
    pools, competing = pools_of(view.fleet, question, settings)
    if not pools:
        return Decision(
            unchosen(PickReason.NO_CANDIDATE, question.rotation_prefill),
            unchosen(PickReason.NO_CANDIDATE, question.rotation_decode),
        )
    decode = decide_phase(
        view, Phase.DECODE, competing, question, settings, question.rotation_decode, compare
    )
    assert decode.winner is not None  # there are candidates, so one of them wins
    winner = decode.workers[decode.winner]
    pool = next(pool for pool in pools if pool.namespace == winner.key.namespace)
    rotation = rotation_prefill(question, pool.namespace)
    paired = partners(pool, winner)
    if not paired:
        return Decision(unchosen(PickReason.NO_PREFILL_POOL, rotation), decode)
    return Decision(decide_phase(view, Phase.PREFILL, paired, question, settings, rotation, compare), decode)


def rotation_prefill(question: Question, namespace: str) -> int:
    """The prefill rotation of a namespace, or the common one where none is given for it."""
    for name, rotation in zip(question.namespaces, question.rotations_prefill, strict=False):
        if name == namespace:
            return rotation
    return question.rotation_prefill


def decide_phase(
    view: View,
    phase: Phase,
    workers: Iterable[Worker],
    question: Question,
    settings: PickSettings,
    rotation: int,
    compare: bool,
) -> PhaseDecision:
    """Rows of all ranks of `workers`, which is not empty, and who wins. compare: as in `decide`."""
    readings = view.read(workers, question.asked_at, settings.ledger)
    suspects = [reading for reading in readings if reading[1]]
    left_out = 0 < len(suspects) < len(readings)
    rows, owners, any_fresh = _rows(phase, readings, left_out, question, settings.max_staleness_us)
    costs = [row[3] for row in rows if row[3] is not None] if any_fresh and compare else []
    if costs:
        lowest = min(costs)
        equals = [place for place, row in enumerate(rows) if row[3] == lowest]
        reason = PickReason.LOAD
    else:
        rows = [_new(CandidateRow, (*row[:3], None, *row[4:])) for row in rows]
        equals = [place for place, row in enumerate(rows) if row[10] is _NONE]
        reason = PickReason.ROUND_ROBIN_STALE
    winner = whose_turn(rotation, len(rows), equals)
    return PhaseDecision(reason, rows, owners, winner, after(winner))


def _rows(
    phase: Phase, readings: list[WorkerReading], left_out: bool, question: Question, staleness_us_max: int
) -> tuple[list[CandidateRow], list[Worker], bool]:
    """Rows of all ranks, the worker of each, and whether one that may compete has a fresh
    sample with the phase's field.

    The usual reading, a fresh sample with the field, is judged in place: this loop is most
    of a pick.
    """
    at, prefill = question.asked_at, phase is Phase.PREFILL
    rows: list[CandidateRow] = []
    owners: list[Worker] = []
    any_fresh = False
    value: int | None
    last_size: int | None = None
    own = 0  # blocks that the prompt takes at `last_size`, 0 where none can be said
    for worker, suspect, stalled, samples, unanswered in readings:
        namespace, instance = worker[0]
        if prefill:
            capacity, own = worker.max_num_batched_tokens or 0, 0
        else:
            size = worker.block_size
            if size != last_size:
                last_size, own = size, blocks_of(question.estimated_tokens, size) or 0
            capacity = (worker.total_kv_blocks or 0) if own else 0
        excluded = left_out and suspect
        competes = capacity > 0 and not excluded and not stalled
        first, ranks = worker.dp_start_rank, worker.dp_size
        for dp_rank in (first,) if ranks == 1 else range(first, first + ranks):
            sample = samples.get(dp_rank)
            tokens, blocks = unanswered.get(dp_rank, _ZERO) if unanswered else _ZERO
            if sample is None:
                verdict, value = _QUIET, 0
                waiting = in_use = age = None
            else:
                _, _, received_at, in_use, waiting, used_blocks = sample
                if in_use is None:
                    in_use = used_blocks
                age = at - received_at if at > received_at else 0
                value = waiting if prefill else in_use
                if value is not None and age <= staleness_us_max:
                    verdict = _FRESH
                    any_fresh = any_fresh or not excluded
                else:
                    verdict, value = read_backlog(sample, phase, at, staleness_us_max)
            cost, why = None, _NONE
            if competes and value is not None:
                cost = (value + (tokens if prefill else blocks + own)) / capacity
            elif excluded:
                verdict, why = _EXCLUDED, _SUSPECT
            elif stalled:
                verdict = _STALLED
            row = (namespace, instance, dp_rank, cost, waiting, in_use, tokens, blocks, age, verdict, why)
            rows.append(_new(CandidateRow, row + _NO_PREFIX))
            owners.append(worker)
    return rows, owners, any_fresh


def blocks_of(tokens: int, block_size: int | None) -> int | None:
    """Blocks that a prompt of this length takes, None where no usable block size is known (B-023)."""
    return -(-tokens // block_size) if block_size is not None and block_size > 0 else None
