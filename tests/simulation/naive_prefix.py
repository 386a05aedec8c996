"""The naive model's picks by prefix, from the words of the rows: KVP-01..15, CDG-01..05, DYN-02, 05, 20.

Every rank is judged by itself, from what `Known` and `Blocks` say; the draw is made with
decimal arithmetic of 60 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from projections.events.control import ConditionalSettings, KvPickSettings, PickSettings
from projections.events.picks import KvResult, PickMade, PickReason, Question, Verdict
from router.picker.rows import CandidateRow
from tests.simulation.naive_model import (
    Candidate,
    Known,
    NaiveModel,
    Phase,
    decide,
    phase_of,
    pools_of,
    row_of,
)

EXACT = Context(prec=60)


class Expected(NamedTuple):
    """All that an outcome must say."""

    prefill: Phase
    decode: Phase
    kv_result: int = 0
    overlap_blocks: int = 0
    block_size: int = 0


class Judged(NamedTuple):
    """A candidate's row without a cost, and what its cost is made of."""

    row: CandidateRow
    is_fresh: bool
    is_heard: bool
    size: int
    tokens: int
    blocks: int
    is_known: bool
    is_stalled: bool


def pick(
    model: NaiveModel, made: PickMade, own: Sequence[tuple[int, Any]], settings: PickSettings
) -> Expected:
    """What the pick must have decided."""
    known, question = Known(model, made, own), made.question
    result = question.prompt_result if settings.kv is not None else 0
    if result != KvResult.READY:
        return Expected(*decide(known, question, settings), result)
    assert settings.kv is not None
    pool, pairs = pools_of(known, question)
    if not pool:
        return Expected(*decide(known, question, settings), int(KvResult.NO_OVERLAP))
    if not any(pairs.values()):
        decode = _scored(known, pool, "aggregated", question, settings, question.rotation_decode)
        turns = dict(zip(question.namespaces, question.rotations_prefill, strict=False))
        start = turns.get(decode.winner[0] if decode.winner else "", question.rotation_prefill)
        return _told(known, Phase(None, PickReason.NO_PREFILL_POOL, [], start), decode, decode)
    candidates = [one for space in sorted(pairs) for one in pairs[space]]
    prefill = _scored(known, candidates, "prefill", question, settings, question.rotation_prefill)
    assert prefill.winner is not None
    space = prefill.winner[0]
    inside = [one for one in pool if one[0][0] == space]
    turns = dict(zip(question.namespaces, question.rotations_decode, strict=False))
    start = turns.get(space, question.rotation_decode)
    if settings.kv.conditional is None:
        decode = phase_of(known, inside, False, question, settings, start)
        return _told(known, prefill, decode, prefill)
    decode = _scored(known, inside, "decode", question, settings, start)
    if not _bypassed(known, prefill, decode, question, settings.kv.conditional):
        return _told(known, prefill, decode, prefill)
    nobody = prefill._replace(
        winner=None, reason=PickReason.CONDITIONAL_BYPASS, rotation=question.rotation_prefill
    )
    return _told(known, nobody, decode, decode)._replace(kv_result=int(KvResult.BYPASS))


def _told(known: Known, prefill: Phase, decode: Phase, prefills: Phase) -> Expected:
    row = _winner(prefills)
    size = known.fleet.members[row[:2]].block_size or 0
    has_any = row.overlap_blocks + row.host_blocks + row.disk_blocks > 0
    result = KvResult.OVERLAP if has_any else KvResult.NO_OVERLAP
    return Expected(prefill, decode, int(result), row.overlap_blocks, size)


def _winner(phase: Phase) -> CandidateRow:
    return next(row for row in phase.rows if row[:3] == phase.winner)


def _scored(
    known: Known, pool: list[Candidate], leg: str, question: Question, settings: PickSettings, rotation: int
) -> Phase:
    kv = settings.kv
    assert kv is not None
    suspects = {name for name, _, _ in pool if settings.ledger and known.is_suspect(name)}
    if all(name in suspects for name, _, _ in pool):
        suspects = set()
    judged = [_judged(known, one, leg, question, settings, one[0] in suspects) for one in pool]
    is_told = any(one.is_fresh and not one.row.excluded for one in judged)
    is_anybody_heard = any(one.is_heard and not one.row.excluded for one in judged)

    def competes(one: Judged) -> bool:
        if one.row.excluded or not one.size:
            return False
        if is_told:
            return one.is_known and not one.is_stalled
        return not (one.is_stalled and is_anybody_heard)

    backlog = [(one.tokens if is_told else 0) + one.row.unanswered_tokens for one in judged]
    least = min((b for b, one in zip(backlog, judged, strict=True) if competes(one)), default=None)
    rows = [
        _priced(one, leg, question, kv, is_told, backlog[place], least, competes(one))
        for place, one in enumerate(judged)
    ]
    return _chosen(rows, leg, question, kv, is_told, rotation)


def _judged(
    known: Known, candidate: Candidate, leg: str, question: Question, settings: PickSettings, suspect: bool
) -> Judged:
    name, member, rank = candidate
    is_prefill = leg == "prefill"
    row, is_fresh = row_of(known, name, member, rank, is_prefill, question, settings)
    is_stalled = row.verdict is Verdict.STALLED
    is_recent = row.sample_age_us is not None and row.sample_age_us <= settings.max_staleness_us
    field = row.active_prefill_tokens if is_prefill else row.active_decode_blocks
    is_quiet = not is_recent and (row.sample_age_us is None or field == 0)
    assert settings.kv is not None
    device, host, disk, predicted = known.blocks.prefix((*name, rank), question, settings.kv)
    overlap = max(device, predicted)
    ends = device + host, device + host + disk
    computing, shared = known.in_flight((*name, rank), question, settings.kv)
    row = row._replace(
        unanswered_tokens=max(0, row.unanswered_tokens - computing * (member.block_size or 0)),
        unanswered_blocks=max(0, row.unanswered_blocks - shared),
        cost=None,
        overlap_blocks=overlap,
        host_blocks=max(0, ends[0] - overlap),
        disk_blocks=max(0, ends[1] - max(ends[0], overlap)),
        predicted_blocks=overlap - device,
    )
    if suspect:
        row = row._replace(verdict=Verdict.EXCLUDED, excluded=1)  # type: ignore[arg-type]
    return Judged(
        row,
        is_fresh,
        is_recent,
        member.block_size or 0,
        (row.active_prefill_tokens or 0) if is_recent else 0,
        (row.active_decode_blocks or 0) if is_recent else 0,
        is_quiet or (is_recent and field is not None),
        is_stalled,
    )


def _priced(
    one: Judged,
    leg: str,
    question: Question,
    kv: KvPickSettings,
    is_told: bool,
    tokens: int,
    least: int | None,
    competes: bool,
) -> CandidateRow:
    row, isl, size = one.row, question.isl_tokens, one.size
    decay = 1.0
    if leg != "decode" and isl > 0 and least is not None:
        decay = 1.0 / (1.0 + kv.credit_decay * (max(0, tokens - least) / isl))
    credit = kv.overlap_credit * decay * row.overlap_blocks
    credit = credit + kv.host_credit * row.host_blocks + kv.disk_credit * row.disk_blocks
    row = row._replace(credit=credit)
    if not competes:
        return row
    raw = (tokens + isl) / size
    blocks = (one.blocks if is_told else 0) + row.unanswered_blocks
    decode_cost = blocks + max(0, -(-isl // size) - row.overlap_blocks)
    if leg == "decode":
        return row._replace(cost=max(0.0, decode_cost - credit))
    if is_told:
        return row._replace(cost=kv.prefill_scale * max(0.0, raw - credit) + decode_cost)
    return row._replace(cost=raw - credit)


def _chosen(
    rows: list[CandidateRow], leg: str, question: Question, kv: KvPickSettings, is_told: bool, rotation: int
) -> Phase:
    competing = [place for place, row in enumerate(rows) if row.cost is not None]
    tied = [place for place, row in enumerate(rows) if not row.excluded]
    reason = PickReason.ROUND_ROBIN_STALE
    draw = question.draws[0:1] if leg == "prefill" else question.draws[1:2]
    place = None
    if competing:
        costs = [rows[place].cost for place in competing]
        lowest = min(costs)  # type: ignore[type-var]
        tied = [place for place in competing if rows[place].cost == lowest]
        is_tie = len(tied) > 1
        if kv.temperature > 0 and draw:
            place = competing[_drawn(costs, kv.temperature, draw[0])]
            is_tie = is_tie and len(tied) == len(competing)
        if is_told or not is_tie:
            reason = PickReason.KV_AWARE
    if place is None:
        start = rotation % len(rows)
        place = min(tied, key=lambda tie: (tie - start) % len(rows))
    return Phase(rows[place][:3], reason, rows, place + 1)


def _drawn(costs: list[Any], temperature: float, draw: int) -> int:
    lowest, highest = Fraction(min(costs)), Fraction(max(costs))
    weights = []
    for cost in costs:
        share = (Fraction(cost) - lowest) / (highest - lowest) if highest > lowest else Fraction(0)
        exponent = -share / Fraction(temperature)
        weights.append(EXACT.exp(EXACT.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))))
    total = sum(weights)
    reached = Decimal(0)
    for place, weight in enumerate(weights):
        reached += weight / total
        if reached >= Decimal(draw) / Decimal(1 << 53):
            return place
    return len(costs) - 1


def _bypassed(
    known: Known, prefill: Phase, decode: Phase, question: Question, conditional: ConditionalSettings
) -> bool:
    there, here = _winner(prefill), _winner(decode)
    prefiller, decoder = known.fleet.members[there[:2]], known.fleet.members[here[:2]]
    isl, size = question.isl_tokens, decoder.block_size or 0
    new = max(0, isl - here.overlap_blocks * size)
    is_short = new < conditional.eff_isl_tokens and new / max(isl, 1) < conditional.eff_isl_ratio
    active = (there.active_prefill_tokens or 0) if there.verdict is Verdict.FRESH else 0
    is_busy = (
        conditional.prefill_busy is not None
        and bool(prefiller.batched_tokens)
        and active + there.unanswered_tokens > conditional.prefill_busy * (prefiller.batched_tokens or 0)
    )
    may = {"isl_bounding": is_short, "prefill_load": is_busy, "isl_or_load": is_short or is_busy}
    if not may[conditional.policy] or conditional.decode_busy is None:
        return may[conditional.policy]
    blocks = here.active_decode_blocks
    if (
        blocks is None
        or here.verdict not in (Verdict.FRESH, Verdict.QUIET)
        or not decoder.kv_blocks
        or not size
    ):
        return False
    blocks = blocks if here.verdict is Verdict.FRESH else 0
    blocks += here.unanswered_blocks + max(0, -(-isl // size) - here.overlap_blocks)
    return blocks <= conditional.decode_busy * decoder.kv_blocks
