"""What would have been picked under other settings, counted over a range of a log.

Bounded whatever the range: counters by rank, model and namespace, the ten largest moves, a
sample of costs, and at most TIMES_MAX stretches of time, which grow together as they fill.
Several alternatives are asked in one walk, for sweeps.

What it cannot tell stands in LIMITS, in LIMITS_OF_MODES where it applies, and in every report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappush, heappushpop
from typing import NamedTuple

from projections.bounds import SECOND_US
from projections.events.picks import PickReason
from projections.events.ports import CheckpointStore, LogReader
from projections.fold_modes import KV_INDEX, LOWER_TIERS, SIDE_INDEX, wanted_modes
from projections.identity import RankKey
from projections.registry.fleet import Role
from replay.alternative import Again, Alternative, Asker
from replay.engine import Asked, Replay, Unverifiable
from replay.log_walk import Progress
from replay.moves import Move, move_of, overlaps_of, why_moved

LARGEST_KEPT = 10
SAMPLES_KEPT = 1_500
TIMES_MAX = 240
NAMES_MAX = 1_024  # of models: clients choose them
OTHERS = "(others)"
LIMITS = (
    "Each pick is asked of the state as it was. Had picks gone elsewhere, the fleet would have loaded"
    " differently, and later samples, unanswered dispatches and suspicions with it: that is not simulated.",
    "Eligible namespaces and frontend health are those recorded; a namespace that no frontend was"
    " configured for then cannot be chosen.",
    "Rotations go on from pick to pick under the other settings; draws are the recorded ones, and where"
    " none were recorded a temperature changes nothing.",
    "Blocks are those that ranks held then. Had picks gone elsewhere, other ranks would hold them.",
    "Costs before and after are both by the settings of then; they say what was believed, not how long"
    " an answer took.",
)

LIMITS_OF_MODES = {
    KV_INDEX: "of these picks were made while the prefix term was off: no blocks were indexed and no prompts"
    " read then, so they go by load whatever the term weighs.",
    LOWER_TIERS: "of these picks were made while blocks in host memory and on disk were not indexed: a"
    " credit for them changes nothing there.",
    SIDE_INDEX: "of these picks were made while own picks stood for no blocks: a lifetime of predicted or"
    " approximate ones changes nothing there.",
}
"""By fold mode: what an alternative cannot tell that reads what the fold did not hold."""

EachPick = Callable[[Asked, Again, Move], None]


class Largest(NamedTuple):
    """One of the largest moves."""

    size: float
    tokens: int
    offset: int
    pick_id: str
    request_id: str
    model: str
    asked_at: int
    move: Move
    why: tuple[str, ...]


class PhaseCost:
    """Sum of costs before and after over the picks that have both."""

    def __init__(self) -> None:
        self.picks = 0
        self.before = self.after = 0.0

    def add(self, before: float | None, after: float | None) -> None:
        """One pick."""
        if before is not None and after is not None:
            self.picks += 1
            self.before += before
            self.after += after


class Spread:
    """Picks and prompt tokens by decode rank, before and after, of one model."""

    def __init__(self) -> None:
        self.before: Counter[RankKey] = Counter()
        self.after: Counter[RankKey] = Counter()
        self.tokens_before: Counter[RankKey] = Counter()
        self.tokens_after: Counter[RankKey] = Counter()

    def ranks(self) -> list[RankKey]:
        """Ranks that could have had picks, in canonical order."""
        return sorted(self.before)


class WhatIf:
    """What one alternative changes.

    by_model, by_namespace: name -> [picks, moved]. spreads: by recorded Dynamo name of the
    model. reasons: (phase, before, after) -> picks. times: (log time, picks, moved).
    gained, lost: picks that a rank has only after or only before, of either phase.
    prefill_before, prefill_after: picks by prefill rank.
    costs_sampled: (before, after) of some decode choices, in order. overlap_before,
    overlap_after: blocks of prompts that the ranks that prefill held. unheld: fold mode -> picks
    whose alternative would read what the fold did not hold without it.
    """

    def __init__(self, alternative: Alternative) -> None:
        self.alternative = alternative
        self.picks = self.moved = 0
        self.by_model: dict[str, list[int]] = {}
        self.by_namespace: dict[str, list[int]] = {}
        self.gained: Counter[RankKey] = Counter()
        self.lost: Counter[RankKey] = Counter()
        self.prefill_before: Counter[RankKey] = Counter()
        self.prefill_after: Counter[RankKey] = Counter()
        self.spreads: dict[str, Spread] = {}
        self.reasons: Counter[tuple[str, str, str]] = Counter()
        self.decode_cost, self.prefill_cost = PhaseCost(), PhaseCost()
        self.overlap_before = self.overlap_after = 0
        self.costs_sampled: list[tuple[float, float]] = []
        self.times = Times()
        self.unheld: Counter[int] = Counter()
        self._sample_every = 1
        self._with_costs = 0
        self._largest: list[tuple[float, int, int, Largest]] = []
        self._candidates: dict[str, tuple[int, tuple[RankKey, ...]]] = {}

    @property
    def share(self) -> float:
        """Moved picks of all."""
        return self.moved / self.picks if self.picks else 0.0

    def largest(self) -> list[Largest]:
        """The largest moves, largest first."""
        return [entry[3] for entry in sorted(self._largest, reverse=True)]

    def add(self, asked: Asked, again: Again, move: Move) -> None:
        """One pick under both settings."""
        question, outcome = asked.fact.question, asked.fact.outcome
        moved = int(move.is_moved)
        self.picks += 1
        self.moved += moved
        _count(self.by_model, question.model, moved)
        _count(self.by_namespace, outcome.namespace or "(none)", moved)
        self.times.add(question.asked_at, moved)
        self.unheld.update(_unheld(asked, again))
        self._spread(asked, move)
        for phase, was, now in (
            ("decode", outcome.decode.reason, again.outcome.decode.reason),
            ("prefill", outcome.prefill.reason, again.outcome.prefill.reason),
        ):
            self.reasons[(phase, PickReason(was).label, PickReason(now).label)] += 1
        before, after = overlaps_of(asked, again)
        self.overlap_before += before
        self.overlap_after += after
        self.decode_cost.add(*move.decode_costs)
        self.prefill_cost.add(*move.prefill_costs)
        self._sample(*move.decode_costs)
        if moved:
            self._move(asked, again, move)

    def _spread(self, asked: Asked, move: Move) -> None:
        model = asked.fact.question.served_model
        if model not in self.spreads and len(self.spreads) >= NAMES_MAX:
            model = OTHERS
        spread = self.spreads.setdefault(model, Spread())
        for rank in self._ranks(asked):
            spread.before.setdefault(rank, 0)
            spread.after.setdefault(rank, 0)
        tokens = asked.fact.question.estimated_tokens
        if move.before.decode is not None:
            spread.before[move.before.decode] += 1
            spread.tokens_before[move.before.decode] += tokens
            spread.after.setdefault(move.before.decode, 0)
        if move.before.prefill is not None:
            self.prefill_before[move.before.prefill] += 1
        if move.after.prefill is not None:
            self.prefill_after[move.after.prefill] += 1
        if move.after.decode is not None:
            spread.after[move.after.decode] += 1
            spread.tokens_after[move.after.decode] += tokens
            spread.before.setdefault(move.after.decode, 0)

    def _ranks(self, asked: Asked) -> tuple[RankKey, ...]:
        """Decode candidates of a pick's model, looked up once a fleet."""
        assert asked.view is not None
        model, fleet = asked.fact.question.served_model, asked.view.fleet
        held = self._candidates.get(model)
        if held is not None and held[0] == fleet.generation:
            return ()
        ranks = tuple(
            RankKey(*worker.key, rank)
            for worker in fleet.workers_of(model)
            if worker.role in (Role.DECODE, Role.AGGREGATED)
            for rank in worker.ranks()
        )
        if len(self._candidates) < NAMES_MAX:
            self._candidates[model] = (fleet.generation, ranks)
        return ranks

    def _sample(self, before: float | None, after: float | None) -> None:
        """Every n-th pair of costs; n doubles when there are too many."""
        if before is None or after is None:
            return
        if self._with_costs % self._sample_every == 0:
            self.costs_sampled.append((before, after))
            if len(self.costs_sampled) > SAMPLES_KEPT:
                self.costs_sampled = self.costs_sampled[::2]
                self._sample_every *= 2
        self._with_costs += 1

    def _move(self, asked: Asked, again: Again, move: Move) -> None:
        for before, after in (
            (move.before.decode, move.after.decode),
            (move.before.prefill, move.after.prefill),
        ):
            if before == after:
                continue
            if before is not None:
                self.lost[before] += 1
            if after is not None:
                self.gained[after] += 1
        fact = asked.fact
        question = fact.question
        key = (move.size, question.estimated_tokens, -asked.offset)
        if len(self._largest) >= LARGEST_KEPT and key <= self._largest[0][:3]:
            return
        entry = Largest(
            move.size,
            question.estimated_tokens,
            asked.offset,
            fact.pick_id.hex(),
            question.request_id,
            question.model,
            question.asked_at,
            move,
            tuple(why_moved(asked, again, move)),
        )
        if len(self._largest) < LARGEST_KEPT:
            heappush(self._largest, (*key, entry))
        else:
            heappushpop(self._largest, (*key, entry))


class Times:
    """Picks and moved ones by stretches of log time, at most TIMES_MAX.

    span: log time of the first and the last pick, None without any.
    """

    def __init__(self) -> None:
        self.span: tuple[int, int] | None = None
        self.step_us = SECOND_US
        self.held: dict[int, list[int]] = {}

    def add(self, at: int, moved: int) -> None:
        """One pick. Late ones come last."""
        first, last = self.span or (at, at)
        self.span = min(first, at), max(last, at)
        row = self.held.setdefault(at // self.step_us, [0, 0])
        row[0] += 1
        row[1] += moved
        while len(self.held) > TIMES_MAX:
            self.step_us *= 2
            wider: dict[int, list[int]] = {}
            for place, (picks, count) in sorted(self.held.items()):
                both = wider.setdefault(place // 2, [0, 0])
                both[0] += picks
                both[1] += count
            self.held = wider

    def rows(self) -> list[tuple[int, int, int]]:
        """(log time of its beginning, picks, moved) in order."""
        return [(place * self.step_us, *counts) for place, counts in sorted(self.held.items())]  # type: ignore[misc]


class WhatIfs(NamedTuple):
    """All alternatives over one range. not_asked: picks that cannot be asked, by reason."""

    results: tuple[WhatIf, ...]
    not_asked: dict[Unverifiable, int]
    records: int

    def limits(self) -> list[str]:
        """What these results cannot tell, a sentence each."""
        found = [*LIMITS]
        for mode, words in LIMITS_OF_MODES.items():
            picks = max(result.unheld[mode] for result in self.results)
            if picks:
                found.append(f"{picks} {words}")
        return found


class Asking:
    """Asks pick by pick under each alternative, and counts. each: told every pick of the first one."""

    def __init__(self, alternatives: Sequence[Alternative], each: EachPick | None = None) -> None:
        self._askers = [Asker(alternative) for alternative in alternatives]
        self._each = each
        self.results = tuple(WhatIf(alternative) for alternative in alternatives)
        self.not_asked: Counter[Unverifiable] = Counter()

    def ask(self, asked: Asked) -> None:
        """A pick, askable or not, in the order of as-ofs."""
        if asked.unverifiable is not None:
            self.not_asked[asked.unverifiable] += 1
            for asker in self._askers:
                asker.pass_by(asked.fact)
            return
        for place, (asker, result) in enumerate(zip(self._askers, self.results, strict=True)):
            again = asker.ask(asked)
            move = move_of(asked, again)
            result.add(asked, again, move)
            if self._each is not None and place == 0:
                self._each(asked, again, move)

    def found(self, records: int) -> WhatIfs:
        """What was found up to now, in a range of so many records."""
        return WhatIfs(self.results, dict(self.not_asked), records)


def what_if(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int,
    stop: int,
    alternatives: Sequence[Alternative],
    on_progress: Progress | None = None,
    each: EachPick | None = None,
) -> WhatIfs:
    """Ask every pick of [start, stop) under each alternative. each: told every pick of the first one.

    Raises what the reader raises.
    """
    replay = Replay(reader, checkpoints, start, stop)
    asking = Asking(alternatives, each)
    for asked in replay.asked(on_progress):
        asking.ask(asked)
    return asking.found(replay.records)


def _unheld(asked: Asked, again: Again) -> list[int]:
    """Fold modes that the other settings want and those of then did not: nothing was held of them."""
    assert asked.settings is not None
    held = wanted_modes(asked.settings.pick)
    wanted = [mode for mode in wanted_modes(again.settings) if mode not in held]
    return wanted[:1] if KV_INDEX in wanted else wanted  # without the index the others are nothing


def _count(held: dict[str, list[int]], name: str, moved: int) -> None:
    if name not in held and len(held) >= NAMES_MAX:
        name = OTHERS
    row = held.setdefault(name, [0, 0])
    row[0] += 1
    row[1] += moved
