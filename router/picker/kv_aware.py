"""The rule that weighs what a rank holds of the prompt against what it has to do.

Where the model has prefill and decode workers in one namespace, prefill is chosen first by
prefix and load (see prefix_costs.py), across all namespaces that have such pairs, and decode
then inside the winner's namespace by the rule of loads: the decode leg computes no prompt,
so it has no credit (DYN-20), unless conditional disaggregation lets it prefill by itself.
Any other fleet is aggregated: decode candidates of all namespaces compete by prefix and load.

Equal costs take turns. Prefill turns over the pairs of all namespaces, decode inside each.
With a temperature one candidate is drawn: the question's first draw is for prefill, the
second for decode, and a phase whose draw is missing takes the lowest cost.

Whatever goes wrong with the term, the rule of loads decides alone (KVP-14).

Source: specification, "The formula"; KVP-01..15, MNS-05, MIX-05, CDG-01..06, DYN-20.
"""

from __future__ import annotations

from projections.events.control import KvPickSettings, PickSettings
from projections.events.picks import KvResult, Phase, PickReason, Question
from projections.registry.fleet import Worker
from projections.view import View
from router.picker.candidates import Pool, pair_pools, pools_of
from router.picker.conditional import may_bypass
from router.picker.decision import Decision, PhaseDecision, unchosen
from router.picker.load_based import decide as decide_by_load
from router.picker.load_based import decide_phase, rotation_prefill
from router.picker.pick_flags import SHARED_IN_FLIGHT
from router.picker.prefix_costs import Asked, Leg, score

WEIGHT_MAX = 1e100  # of each setting: no product of two and a load overflows a double


def decide(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...]) -> Decision:
    """By prefix and load where settings and prompt allow it, else by load alone; never raises for either."""
    kv = settings.kv
    if kv is None or question.prompt_result != KvResult.READY:
        result = KvResult.OFF if kv is None else question.prompt_result
        return decide_by_load(view, question, settings, flags)._replace(kv_result=result)
    try:
        return _decide(view, question, settings, kv, flags)
    except Exception:  # KVP-14: no failure of the term may cost a request
        return decide_by_load(view, question, settings, flags)._replace(kv_result=KvResult.UNSUPPORTED)


def _decide(
    view: View, question: Question, settings: PickSettings, kv: KvPickSettings, flags: tuple[int, ...]
) -> Decision:
    if not all(0.0 <= weight <= WEIGHT_MAX for weight in kv[:6]) or question.isl_tokens < 0:
        raise ValueError("weights that no configuration allows")
    pools, competing = pools_of(view.fleet, question, settings)
    if not pools:
        return decide_by_load(view, question, settings, flags)._replace(kv_result=KvResult.NO_OVERLAP)
    depths = view.device_depths(question)
    if depths is not None:
        asked = Asked(view, question, settings, kv, depths)
    else:
        held = view.prefixes(question, kv)
        in_flight = view.in_flight(question, kv, held) if SHARED_IN_FLIGHT in flags else None
        asked = Asked(view, question, settings, kv, held, in_flight)
    pairs = pair_pools(pools)
    if pairs:
        return _pair(asked, pairs)
    decode = score(asked, Leg.AGGREGATED, competing, (), question.rotation_decode)
    namespace = _winner(decode).key.namespace
    prefill = unchosen(PickReason.NO_PREFILL_POOL, rotation_prefill(question, namespace))
    return _with_result(Decision(prefill, decode), decode)


def _pair(asked: Asked, pairs: tuple[Pool, ...]) -> Decision:
    """Prefill across namespaces, decode inside the winner's; perhaps without the prefill after all."""
    question, settings, conditional = asked.question, asked.settings, asked.kv.conditional
    workers = tuple(worker for pool in pairs for worker in pool.prefill)
    prefill = score(asked, Leg.PREFILL, workers, (), question.rotation_prefill)
    namespace = _winner(prefill).key.namespace
    pool = next(pool for pool in pairs if pool.namespace == namespace)
    rotation = rotation_decode(question, namespace)
    if conditional is None:
        decode = decide_phase(asked.view, Phase.DECODE, pool.decode, question, settings, rotation, True)
        return _with_result(Decision(prefill, decode), prefill)
    decode = score(asked, Leg.DECODE, pool.decode, (namespace,), rotation)
    assert prefill.winner is not None and decode.winner is not None
    both = [(phase.rows[phase.winner or 0], _winner(phase)) for phase in (prefill, decode)]
    if not may_bypass(conditional, question.isl_tokens, *both):
        return _with_result(Decision(prefill, decode), prefill)
    passed_by = prefill._replace(
        reason=PickReason.CONDITIONAL_BYPASS, winner=None, rotation=question.rotation_prefill
    )
    return _with_result(Decision(passed_by, decode), decode)._replace(kv_result=KvResult.BYPASS)


def rotation_decode(question: Question, namespace: str) -> int:
    """The decode rotation of a namespace, or the common one where none is given for it."""
    for name, rotation in zip(question.namespaces, question.rotations_decode, strict=False):
        if name == namespace:
            return rotation
    return question.rotation_decode


def _winner(phase: PhaseDecision) -> Worker:
    assert phase.winner is not None  # there are candidates, so one of them wins
    return phase.workers[phase.winner]


def _with_result(decision: Decision, prefills: PhaseDecision) -> Decision:
    """With what the term was worth for the rank that prefills."""
    assert prefills.winner is not None
    row, size = prefills.rows[prefills.winner], _winner(prefills).block_size or 0
    has_any = row.overlap_blocks or row.host_blocks or row.disk_blocks
    result = KvResult.OVERLAP if has_any else KvResult.NO_OVERLAP
    return decision._replace(kv_result=result, overlap_blocks=row.overlap_blocks, block_size=size)
