"""Pick: ask a question of a view, by the rule that the settings name.

The result is a function of its arguments, to the bit: no clock, no draw, no order that
insertion history or hashing could change. So a recorded question asked again of the same
as-of yields the same outcome, byte for byte (decision 14, 28).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from projections.bounds import PICK_ROWS_MAX
from projections.events.control import PickSettings
from projections.events.picks import Chosen, Outcome, Phase, PhaseOutcome, Question
from projections.view import View
from router.picker import kv_aware, round_robin
from router.picker.decision import Decision, PhaseDecision
from router.picker.load_based import blocks_of
from router.picker.rank_table import costs_of, packed
from router.picker.rows import CandidateRow, pack_rows

Rule = Callable[[View, Question, PickSettings, tuple[int, ...]], Decision]

PICKERS: dict[str, Rule] = {"load_based": kv_aware.decide, "round_robin": round_robin.decide}
"""Picking rules by the name that `PickSettings.picker` gives.

load_based takes in the prefix term where the settings ask for it.
"""

DEFAULT_PICKER = "load_based"


class UnknownPicker(ValueError):
    """Settings name a rule that this release does not have."""


def pick(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...] = ()) -> Outcome:
    """The outcome of a question. Raises UnknownPicker, nothing else.

    flags: numbered behaviours of the replica that asked, from its ReplicaStarted.
    """
    decision = _decide(view, question, settings, flags)
    prefill, decode = decision.prefill, decision.decode
    winner = decode.workers[decode.winner] if decode.winner is not None else None
    digest = xxhash.xxh3_128(packed(prefill.rows))
    digest.update(packed(decode.rows))
    tokens = question.estimated_tokens
    return Outcome(
        namespace=winner.key.namespace if winner is not None else None,
        prefill=_outcome(prefill, _charged(prefill, tokens)),
        decode=_outcome(decode, _charged(decode, tokens, is_pair=prefill.winner is not None)),
        rotation_prefill=prefill.rotation,
        rotation_decode=decode.rotation,
        rows_digest=digest.digest(),
        kv_result=int(decision.kv_result),
        overlap_blocks=decision.overlap_blocks,
        block_size=decision.block_size,
    )


def candidate_table(
    view: View, question: Question, settings: PickSettings, flags: tuple[int, ...] = ()
) -> dict[Phase, list[CandidateRow]]:
    """All candidates of both phases: the winner first, then as in the recorded rows."""
    decision = _decide(view, question, settings, flags)
    return {Phase.PREFILL: _ranked(decision.prefill), Phase.DECODE: _ranked(decision.decode)}


def _decide(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...]) -> Decision:
    rule = PICKERS.get(settings.picker)
    if rule is None:
        raise UnknownPicker(f"no picker named {settings.picker!r}: it is one of {', '.join(sorted(PICKERS))}")
    return rule(view, question, settings, flags)


def _outcome(decision: PhaseDecision, chosen: Chosen | None) -> PhaseOutcome:
    best = _ranked(decision, PICK_ROWS_MAX)
    margin = None
    if len(best) > 1:
        cost, next_cost = best[0].cost, best[1].cost
        if cost is not None and next_cost is not None:
            margin = next_cost - cost
    return PhaseOutcome(int(decision.reason), chosen, len(decision.rows), margin, pack_rows(best))


def _charged(decision: PhaseDecision, estimated_tokens: int, is_pair: bool = False) -> Chosen | None:
    """The chosen rank with what it is charged: tokens unless its partner in a pair gets them, and blocks.

    A phase that was scored by prefix charges the counted tokens that its rank has yet to
    compute, as Dynamo's own tracking does: with all of them a rank that answers from its
    cache would look as busy as one that computes, and conversations would wander off. Any
    other phase charges the estimate. Blocks are all of the prompt's: cached ones are in use.
    """
    if decision.winner is None:
        return None
    row, worker = decision.rows[decision.winner], decision.workers[decision.winner]
    prompt = estimated_tokens if decision.prompt_tokens is None else decision.prompt_tokens
    blocks = blocks_of(prompt, worker.block_size)
    tokens = prompt
    if decision.prompt_tokens is not None:
        tokens = max(0, prompt - row.overlap_blocks * (worker.block_size or 0))
    return Chosen(row.instance_id, row.dp_rank, worker.dp_declared, 0 if is_pair else tokens, blocks)


def _ranked(decision: PhaseDecision, limit: int | None = None) -> list[CandidateRow]:
    """Winner, then by cost, then those without one; equals in canonical order, left-out last."""
    rows, winner = decision.rows, decision.winner
    if winner is None:
        return [*rows[:limit]]
    costs = costs_of(rows)
    defined: Sequence[int] = range(len(costs))
    if None in costs:
        defined = [place for place, cost in enumerate(costs) if cost is not None]
    order = sorted(defined, key=costs.__getitem__)  # type: ignore[arg-type]  # stable: equals stay in order
    if winner in order:
        order.remove(winner)
    order.insert(0, winner)
    if limit is None or len(order) < limit:
        without = [place for place, cost in enumerate(costs) if cost is None and place != winner]
        order += [place for place in without if not rows[place].excluded]
        order += [place for place in without if rows[place].excluded]
    return [rows[place] for place in order[:limit]]
