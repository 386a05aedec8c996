"""A pick that would have gone elsewhere, measured and explained.

Both choices are put on one scale, the costs that the settings of then give them. Where those
had no costs (nothing fresh to compare, another model) a move has no size but its prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.events.picks import KvResult, Outcome, Phase, PhaseOutcome, PickReason
from projections.identity import RankKey
from replay.alternative import Again
from replay.engine import Asked
from router.picker.pick import candidate_table
from router.picker.rows import CandidateRow, unpack_rows

Rows = dict[RankKey, CandidateRow]


class Choice(NamedTuple):
    """Where a pick goes, prefill None where the decode rank prefills for itself or nothing is chosen."""

    decode: RankKey | None
    prefill: RankKey | None


class Move(NamedTuple):
    """One pick under both settings. Costs are by the settings of then, None where they gave none."""

    before: Choice
    after: Choice
    decode_costs: tuple[float | None, float | None]
    prefill_costs: tuple[float | None, float | None]

    @property
    def is_moved(self) -> bool:
        """Whether it would have gone elsewhere."""
        return self.before != self.after

    @property
    def size(self) -> float:
        """How much dearer or cheaper the other choice is, by the costs of then."""
        total = 0.0
        for before, after in (self.decode_costs, self.prefill_costs):
            if before is not None and after is not None:
                total += abs(after - before)
        return total


def choice_of(outcome: Outcome) -> Choice:
    """The ranks that an outcome chose."""
    return Choice(_rank(outcome, outcome.decode), _rank(outcome, outcome.prefill))


def move_of(asked: Asked, again: Again) -> Move:
    """Both choices of a pick, on the scale of the settings of then."""
    before, after = choice_of(asked.fact.outcome), choice_of(again.outcome)
    if before == after:
        decode = _cost(_recorded_rows(asked, Phase.DECODE), before.decode)
        prefill = _cost(_recorded_rows(asked, Phase.PREFILL), before.prefill) if before.prefill else None
        return Move(before, after, (decode, decode), (prefill, prefill))
    assert asked.view is not None and asked.settings is not None
    then = candidate_table(asked.view, asked.fact.question, asked.settings.pick, asked.flags)
    costs = {phase: _by_rank(then[phase]) for phase in (Phase.DECODE, Phase.PREFILL)}
    return Move(
        before,
        after,
        (_cost(costs[Phase.DECODE], before.decode), _cost(costs[Phase.DECODE], after.decode)),
        (_cost(costs[Phase.PREFILL], before.prefill), _cost(costs[Phase.PREFILL], after.prefill)),
    )


def overlaps_of(asked: Asked, again: Again) -> tuple[int, int]:
    """Blocks of the prompt that the rank that prefills held, before and after, on one scale.

    Both are by what the view says under the settings of then, or the other ones where those
    had no prefix term; 0 where neither has one, or the prompt was not read.
    """
    assert asked.view is not None and asked.settings is not None
    kv = asked.settings.pick.kv or again.settings.kv
    if kv is None or asked.fact.question.prompt_result != KvResult.READY:
        return 0, 0
    held = []
    for question, outcome in (
        (asked.fact.question, asked.fact.outcome),
        (again.question, again.outcome),
    ):
        choice = choice_of(outcome)
        rank = choice.prefill or choice.decode
        prefix = asked.view.prefixes(question, kv).get(rank) if rank is not None else None
        held.append(max(prefix.device, prefix.predicted) if prefix is not None else 0)
    return held[0], held[1]


def why_moved(asked: Asked, again: Again, move: Move) -> list[str]:
    """Sentences on what made the difference, phase by phase."""
    assert asked.view is not None and asked.settings is not None
    then = candidate_table(asked.view, asked.fact.question, asked.settings.pick, asked.flags)
    other = candidate_table(asked.view, again.question, again.settings, asked.flags)
    found = []
    outcome = asked.fact.outcome
    for phase, before, after, was, now in (
        (Phase.DECODE, move.before.decode, move.after.decode, outcome.decode, again.outcome.decode),
        (Phase.PREFILL, move.before.prefill, move.after.prefill, outcome.prefill, again.outcome.prefill),
    ):
        if before != after:
            found.append(f"{phase.label}: {_name(before)} then, {_name(after)} otherwise")
            found += _causes(_by_rank(then[phase]), _by_rank(other[phase]), before, after)
            found += _turns(was, now)
    return found


def _causes(then: Rows, other: Rows, before: RankKey | None, after: RankKey | None) -> list[str]:
    found = []
    for rank in (before, after):
        if rank is None:
            continue
        was, now = then.get(rank), other.get(rank)
        if was is None or now is None:
            place = "then" if was is None else "otherwise"
            found.append(f"{_name(rank)} was no candidate {place}")
        elif was.verdict is not now.verdict:
            age = "" if now.sample_age_us is None else f", its sample {now.sample_age_us / 1e6:.3f} s old"
            found.append(f"{_name(rank)} reads {now.verdict.label} instead of {was.verdict.label}{age}")
        elif was.cost is not None or now.cost is not None:
            found.append(f"{_name(rank)} {_prices(was.cost, now.cost)}{_prefix(was, now)}")
    return found


def _prefix(was: CandidateRow, now: CandidateRow) -> str:
    held = max(was.overlap_blocks, now.overlap_blocks)
    if not held:
        return ""
    credits_ = " and ".join(
        f"{row.credit:.2f} {when}"
        for row, when in ((was, "then"), (now, "otherwise"))
        if row.credit is not None
    )
    return f", of {held} blocks held: credit {credits_}"


def _turns(was: PhaseOutcome, now: PhaseOutcome) -> list[str]:
    if was.reason != now.reason:
        return [f"the reason is {PickReason(now.reason).label} instead of {PickReason(was.reason).label}"]
    if now.reason == PickReason.ROUND_ROBIN_STALE:
        return ["both take turns, and the rotation stands elsewhere by then"]
    return []


def _rank(outcome: Outcome, phase: PhaseOutcome) -> RankKey | None:
    if phase.chosen is None or outcome.namespace is None:
        return None
    return RankKey(outcome.namespace, phase.chosen.instance_id, phase.chosen.dp_rank)


def _recorded_rows(asked: Asked, phase: Phase) -> Rows:
    outcome = asked.fact.outcome
    return _by_rank(unpack_rows((outcome.decode if phase is Phase.DECODE else outcome.prefill).rows))


def _by_rank(rows: list[CandidateRow]) -> Rows:
    return {RankKey(row.namespace, row.instance_id, row.dp_rank): row for row in rows}


def _cost(rows: Rows, rank: RankKey | None) -> float | None:
    row = rows.get(rank) if rank is not None else None
    return row.cost if row is not None else None


def _name(rank: RankKey | None) -> str:
    return "nothing" if rank is None else f"{rank.namespace}/{rank.instance_id} rank {rank.dp_rank}"


def _prices(was: float | None, now: float | None) -> str:
    if was is None or now is None or was == now:
        cost, when = (now, "otherwise") if was is None else (was, "then")
        return f"costs {cost:.6f} {'both times' if was == now else when}"
    return f"costs {was:.6f} then, {now:.6f} otherwise"
