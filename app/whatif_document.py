"""What-if results as a document and as CSV rows.

Costs are averages over the picks that have both; shares are of the picks that could be asked.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from projections.identity import RankKey
from replay.alternative import Again
from replay.engine import Asked
from replay.moves import Choice, Move
from replay.spread import gini, max_share
from replay.whatif import Largest, PhaseCost, Spread, WhatIf, WhatIfs

Times = Callable[[int], str]
CSV_COLUMNS = (
    "log_offset",
    "pick_id",
    "request_id",
    "asked_at",
    "model",
    "estimated_tokens",
    "moved",
    "namespace_before",
    "decode_before",
    "decode_rank_before",
    "prefill_before",
    "prefill_rank_before",
    "namespace_after",
    "decode_after",
    "decode_rank_after",
    "prefill_after",
    "prefill_rank_after",
    "decode_cost_before",
    "decode_cost_after",
    "prefill_cost_before",
    "prefill_cost_after",
    "overlap_blocks_before",
    "overlap_blocks_after",
)


def whatif_document(found: WhatIfs, to_time: Times) -> dict[str, Any]:
    """The document of the first alternative, with a row for each one where there are several."""
    result = found.results[0]
    document = {
        **_counts(result),
        "alternative": result.alternative.name,
        "records": found.records,
        "not_asked": sum(found.not_asked.values()),
        "not_asked_reasons": {reason.name.lower(): n for reason, n in found.not_asked.items()},
        "by_model": {name: _share(*row) for name, row in sorted(result.by_model.items())},
        "by_namespace": {name: _share(*row) for name, row in sorted(result.by_namespace.items())},
        "by_worker": _by_worker(result),
        "by_prefill_worker": _rows(result, result.prefill_before, result.prefill_after),
        "reasons": [
            {"phase": phase, "before": was, "after": now, "picks": picks}
            for (phase, was, now), picks in sorted(result.reasons.items())
        ],
        "spread": {
            model: spread_rows(spread) for model, spread in sorted(result.spreads.items()) if spread.before
        },
        "span": None if result.times.span is None else [to_time(at) for at in result.times.span],
        "times": [
            {"at": to_time(at), "picks": picks, "moved": moved} for at, picks, moved in result.times.rows()
        ],
        "largest": [_largest(move, to_time) for move in result.largest()],
        "limits": found.limits(),
    }
    if len(found.results) > 1:
        document["sweep"] = [sweep_row(result) for result in found.results]
    return document


def sweep_row(result: WhatIf) -> dict[str, Any]:
    """One alternative of a sweep in a line."""
    spreads = result.spreads.values()
    return {
        "alternative": result.alternative.name,
        "values": dict(result.alternative.labels),
        **_counts(result),
        "max_share": max((max_share(spread.after.values()) for spread in spreads), default=0.0),
        "gini": max((gini(spread.after.values()) for spread in spreads), default=0.0),
    }


def spread_rows(spread: Spread) -> dict[str, Any]:
    """How evenly a model's picks lie on its ranks, before and after."""
    return {
        "ranks": len(spread.before),
        "max_share": [max_share(spread.before.values()), max_share(spread.after.values())],
        "gini": [gini(spread.before.values()), gini(spread.after.values())],
        "gini_tokens": [_gini_tokens(spread, before=True), _gini_tokens(spread, before=False)],
    }


class PickRows:
    """Writes one CSV row a pick."""

    def __init__(self, out: TextIO, to_time: Times) -> None:
        self._write = csv.writer(out).writerow
        self._to_time = to_time
        self._write(CSV_COLUMNS)

    def add(self, asked: Asked, again: Again, move: Move) -> None:
        """One pick under both settings."""
        fact = asked.fact
        question = fact.question
        self._write(
            (
                asked.offset,
                fact.pick_id.hex(),
                _cell(question.request_id),
                self._to_time(question.asked_at),
                _cell(question.model),
                question.estimated_tokens,
                int(move.is_moved),
                *_choice_cells(move.before),
                *_choice_cells(move.after),
                *move.decode_costs,
                *move.prefill_costs,
                fact.outcome.overlap_blocks,
                again.outcome.overlap_blocks,
            )
        )


def _counts(result: WhatIf) -> dict[str, Any]:
    return {
        "picks": result.picks,
        "moved": result.moved,
        "share": result.share,
        "cost": {"decode": _cost(result.decode_cost), "prefill": _cost(result.prefill_cost)},
        "overlap_blocks": [result.overlap_before, result.overlap_after],
    }


def _cost(cost: PhaseCost) -> dict[str, Any]:
    """Averages over the picks that have costs on both sides."""
    return {
        "picks": cost.picks,
        "before": cost.before / cost.picks if cost.picks else None,
        "after": cost.after / cost.picks if cost.picks else None,
    }


def _share(picks: int, moved: int) -> dict[str, Any]:
    return {"picks": picks, "moved": moved, "share": moved / picks if picks else 0.0}


def _by_worker(result: WhatIf) -> list[dict[str, Any]]:
    before: dict[RankKey, int] = {}
    after: dict[RankKey, int] = {}
    for spread in result.spreads.values():
        for rank in spread.ranks():
            before[rank] = before.get(rank, 0) + spread.before[rank]
            after[rank] = after.get(rank, 0) + spread.after[rank]
    return _rows(result, before, after)


def _rows(
    result: WhatIf, before: Mapping[RankKey, int], after: Mapping[RankKey, int]
) -> list[dict[str, Any]]:
    return [
        {
            "namespace": rank.namespace,
            "worker": str(rank.instance_id),
            "dp_rank": rank.dp_rank,
            "before": before.get(rank, 0),
            "after": after.get(rank, 0),
            "lost": result.lost[rank],
            "gained": result.gained[rank],
        }
        for rank in sorted({*before, *after})
    ]


def _gini_tokens(spread: Spread, before: bool) -> float:
    held = spread.tokens_before if before else spread.tokens_after
    return gini(held[rank] for rank in spread.ranks())


def _largest(found: Largest, to_time: Times) -> dict[str, Any]:
    move = found.move
    return {
        "pick_id": found.pick_id,
        "request_id": found.request_id,
        "log_offset": found.offset,
        "asked_at": to_time(found.asked_at),
        "model": found.model,
        "estimated_tokens": found.tokens,
        "cost_moved": found.size,
        "before": _choice(move.before),
        "after": _choice(move.after),
        "decode_cost": list(move.decode_costs),
        "prefill_cost": list(move.prefill_costs),
        "why": list(found.why),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {"decode": _rank(choice.decode), "prefill": _rank(choice.prefill)}


def _rank(rank: RankKey | None) -> dict[str, Any] | None:
    if rank is None:
        return None
    return {"namespace": rank.namespace, "worker": str(rank.instance_id), "dp_rank": rank.dp_rank}


def _choice_cells(choice: Choice) -> tuple[object, ...]:
    decode, prefill = choice
    return (
        _cell(decode.namespace) if decode else None,
        decode.instance_id if decode else None,
        decode.dp_rank if decode else None,
        prefill.instance_id if prefill else None,
        prefill.dp_rank if prefill else None,
    )


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
