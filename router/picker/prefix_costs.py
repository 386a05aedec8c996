"""Costs of ranks by what they hold of the prompt and what they have to do, in blocks.

    overlap      whole blocks of the prompt, from the root, that the rank holds or is predicted to
    raw blocks   (active prefill tokens + unanswered tokens + isl) / block size
    credit       overlap credit * decay * overlap + host credit * host + disk credit * disk
    adjusted     max(0, raw blocks - credit)
    decode cost  active decode blocks + unanswered blocks + max(0, ceil(isl / block size) - overlap)
    cost         prefill scale * adjusted + decode cost
    decay        1 / (1 + k * (backlog tokens - those of the least loaded candidate) / isl)

Unanswered tokens and blocks of dispatches that share a beginning with the prompt are left out
as far as they do, where a prediction still stands for them (flag SHARED_IN_FLIGHT): the rank
computes those blocks once for all of them, and a burst with one prefix stays together.

Block sizes are each worker's own. Host and disk count blocks that go on, without a hole,
where the faster tiers end. The decode rank of a pair that may prefill by itself costs
max(0, decode cost - credit), without decay; its overlap counts twice, as in Dynamo (Q12).

Ranks with a fresh sample that speaks of the phase compete with the quiet ones; others sit
out. Where no rank has such a sample, all compete on raw blocks - credit (the decode leg on
its own cost), and unanswered dispatches are the only backlog; stalled ranks sit out then
where somebody was heard of: else nobody could have answered. Suspect workers are left out
unless all are.

Costs are + - * / of doubles and integers in the order written, so they are the same
everywhere. Ranks are judged a column at a time, which costs a sixth of judging them one by
one. Source: specification, "The formula"; KVP-01..08, KVP-15, CDG-01, DYN-01, 02, 04, 05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from operator import add
from typing import Any, NamedTuple

from projections.events.control import KvPickSettings, PickSettings
from projections.events.picks import ExcludedReason, PickReason, Question, Verdict
from projections.load.store import HeldSample
from projections.registry.fleet import Worker
from projections.view import DeviceDepths, InFlight, RankPrefix, View, WorkerReading
from router.picker.decision import PhaseDecision
from router.picker.overlaps import Crowd, fill, fill_device, leave_out
from router.picker.rank_table import FLAW_NO_SIZE, RankTable, Roster, roster_of
from router.picker.rotation import after, whose_turn
from router.picker.softmax import softmax_index

# as the numbers that tables hold
_VERDICT_FRESH, _VERDICT_QUIET, _VERDICT_SILENT = map(int, (Verdict.FRESH, Verdict.QUIET, Verdict.SILENT))
_VERDICT_STALLED, _VERDICT_EXCLUDED = int(Verdict.STALLED), int(Verdict.EXCLUDED)
_SUSPECT = int(ExcludedReason.SUSPECT)
_NEVER = -(1 << 62)
_NO_SAMPLE = HeldSample(0, 0, _NEVER, None, None, None)
_STALE, _UNKNOWN, _EXCLUDED, _STALLED, _NO_SIZE = 1, 2, 4, 8, FLAW_NO_SIZE  # why a rank may sit out


class Leg(Enum):
    """What a phase is scored for."""

    PREFILL = 1  # the prefill rank of a pair
    AGGREGATED = 2  # a rank that does both
    DECODE = 3  # the decode rank of a pair, which may yet prefill by itself


class Asked(NamedTuple):
    """What every leg of one pick is scored with. in_flight: None where it does not count."""

    view: View
    question: Question
    settings: PickSettings
    kv: KvPickSettings
    prefixes: Mapping[tuple[str, int, int], RankPrefix] | DeviceDepths
    in_flight: Mapping[tuple[str, int, int], InFlight] | None = None


class Loads(NamedTuple):
    """What the ranks of a table have to do, in their order.

    tokens, blocks: to prefill and in use, of fresh samples (0 where none is known) and of
    unanswered dispatches. sits_out: why a rank may not compete, a bit for each cause.
    """

    tokens: Sequence[int]
    blocks: Sequence[int]
    sits_out: bytearray


def score(
    asked: Asked, leg: Leg, workers: tuple[Worker, ...], part: tuple[str, ...], rotation: int
) -> PhaseDecision:
    """The table of `workers`, which are not empty, and who wins.

    part: what names these workers beside leg, model and namespaces. rotation: of the phase.
    """
    question, settings, kv = asked.question, asked.settings, asked.kv
    key = (leg, part, question.served_model, question.namespaces, settings.namespaces)
    table = RankTable(roster_of(asked.view.fleet, workers, key))
    loads = read_loads(asked, leg, workers, table)
    sits_out = loads.sits_out
    is_comparable = not all(why & (_STALE | _UNKNOWN | _EXCLUDED) for why in sits_out)
    if is_comparable:
        barred = _UNKNOWN | _EXCLUDED | _STALLED | _NO_SIZE
    else:
        is_heard = not all(why & (_STALE | _EXCLUDED) for why in sits_out)
        barred = _EXCLUDED | _NO_SIZE | (_STALLED if is_heard else 0)
        loads = Loads(table.unanswered_tokens, table.unanswered_blocks, sits_out)
    competing: Sequence[int] = range(len(table))
    if any(sits_out):
        competing = [place for place, why in enumerate(sits_out) if not why & barred]
    table.costs = price(asked, leg, table, loads, competing, is_comparable)
    draw = question.draws[0 if leg is Leg.PREFILL else 1 :][:1]
    if not competing:
        left = [place for place, why in enumerate(sits_out) if not why & _EXCLUDED]
        reason, winner = PickReason.ROUND_ROBIN_STALE, whose_turn(rotation, len(table), left)
    else:
        reason, winner = choose(table, competing, kv.temperature, draw, rotation, is_comparable)
    return PhaseDecision(reason, table, table.roster.owners, winner, after(winner), question.isl_tokens)


def choose(
    table: RankTable,
    competing: Sequence[int],
    temperature: float,
    draw: tuple[int, ...],
    rotation: int,
    is_comparable: bool,
) -> tuple[PickReason, int]:
    """Reason and place of the winner. A tie that no known backlog could have parted is told as such."""
    costs: Sequence[Any] = table.costs
    if len(competing) < len(costs):
        costs = [costs[place] for place in competing]
    lowest = min(costs)
    if costs.count(lowest) == 1:
        equals = [competing[costs.index(lowest)]]
    else:
        equals = [place for place, cost in zip(competing, costs, strict=True) if cost == lowest]
    if temperature > 0.0 and draw:
        winner = competing[softmax_index(costs, temperature, draw[0])]
        is_tie = 1 < len(equals) == len(competing)
    else:
        is_tie = len(equals) > 1
        winner = whose_turn(rotation, len(table), equals) if is_tie else equals[0]
    reason = PickReason.ROUND_ROBIN_STALE if is_tie and not is_comparable else PickReason.KV_AWARE
    return reason, winner


# What they have to do ---------------------------------------------------------------------


def read_loads(asked: Asked, leg: Leg, workers: tuple[Worker, ...], table: RankTable) -> Loads:
    """Read samples, dispatches and suspicions into the table's columns."""
    at = asked.question.asked_at
    readings = asked.view.read(workers, at, asked.settings.ledger)
    held = [
        reading[3].get(dp_rank, _NO_SAMPLE)
        for reading, ranks in zip(readings, table.roster.ranges, strict=True)
        for dp_rank in ranks
    ]
    _, _, received, active, waiting, used = zip(*held, strict=True)
    oldest = at - asked.settings.max_staleness_us
    sits_out = bytearray(table.roster.flaws)
    _add_dispatches(readings, table, sits_out)
    if asked.in_flight:
        leave_out(asked.in_flight, table)
    table.ages = [at - time for time in received] if max(received) <= at else _ages(received, at)
    if min(received) >= oldest:
        try:  # the usual case: every rank has a fresh sample, and none lacks a field
            loads = Loads(
                [*map(add, waiting, table.unanswered_tokens)],
                [*map(add, active, table.unanswered_blocks)],
                sits_out,
            )
        except TypeError:
            pass
        else:
            table.active_prefill, table.active_decode = waiting, active
            return loads
    return _read_gaps(leg, table, (received, active, waiting, used), oldest, sits_out)


def _read_gaps(
    leg: Leg, table: RankTable, columns: tuple[Sequence[Any], ...], oldest: int, sits_out: bytearray
) -> Loads:
    """The same where samples are missing or old, or lack a field.

    columns: received, active, waiting, used.
    """
    received, active, waiting, used = columns
    in_use = [u if a is None else a for a, u in zip(active, used, strict=True)]
    table.active_prefill, table.active_decode = waiting, in_use
    table.ages = [None if time == _NEVER else age for time, age in zip(received, table.ages, strict=True)]
    _judge(table, received, waiting if leg is Leg.PREFILL else in_use, oldest, sits_out)
    fresh = [time >= oldest for time in received]
    return Loads(
        [*map(add, _known(waiting, fresh), table.unanswered_tokens)],
        [*map(add, _known(in_use, fresh), table.unanswered_blocks)],
        sits_out,
    )


def _ages(received: Sequence[int], at: int) -> list[int]:
    """Samples stamped after the question are of no age."""
    return [at - time if time < at else 0 for time in received]


def _known(values: Sequence[int | None], fresh: list[bool]) -> list[int]:
    return [value or 0 if is_fresh else 0 for value, is_fresh in zip(values, fresh, strict=True)]


def _judge(
    table: RankTable,
    received: Sequence[int],
    field: Sequence[int | None],
    oldest: int,
    sits_out: bytearray,
) -> None:
    """Verdicts of ranks without a fresh sample, and whose backlog is not known."""
    verdicts = table.verdicts
    for place, (time, value) in enumerate(zip(received, field, strict=True)):
        if time >= oldest:
            if value is None:
                sits_out[place] |= _UNKNOWN
            continue
        is_quiet = value == 0 or time == _NEVER
        sits_out[place] |= _STALE if is_quiet else _STALE | _UNKNOWN
        if verdicts[place] == _VERDICT_FRESH:  # else it is stalled or left out
            verdicts[place] = _VERDICT_QUIET if is_quiet else _VERDICT_SILENT


def _add_dispatches(readings: list[WorkerReading], table: RankTable, sits_out: bytearray) -> None:
    """Unanswered dispatches, and the stalls and suspicions that they raise."""
    # fields by place: suspect, stalled, unanswered
    told = [number for number, reading in enumerate(readings) if reading[4] or reading[1] or reading[2]]
    suspects = [number for number in told if readings[number].suspect]
    left_out = 0 < len(suspects) < len(readings)
    for number in told:
        worker, suspect, stalled, _, unanswered = readings[number]
        start, first, size = table.roster.starts[number], worker.dp_start_rank, worker.dp_size
        for dp_rank, (tokens, blocks) in unanswered.items():
            if 0 <= dp_rank - first < size:
                table.unanswered_tokens[start + dp_rank - first] = tokens
                table.unanswered_blocks[start + dp_rank - first] = blocks
        for place in range(start, start + size):
            if suspect and left_out:
                table.verdicts[place], table.excluded[place] = _VERDICT_EXCLUDED, _SUSPECT
                sits_out[place] |= _EXCLUDED
            elif stalled:
                table.verdicts[place] = _VERDICT_STALLED
                sits_out[place] |= _STALLED


# What they cost ---------------------------------------------------------------------------


def price(
    asked: Asked, leg: Leg, table: RankTable, loads: Loads, competing: Sequence[int], is_comparable: bool
) -> Sequence[float | None]:
    """The cost of each rank that competes; its overlap and credit go into the table's columns.

    raw blocks are written as their sum: (isl - cached) + cached is isl, whatever is cached (Q13).
    """
    isl, scale = asked.question.isl_tokens, asked.kv.prefill_scale
    tokens, blocks = loads.tokens, loads.blocks
    least = None
    if asked.kv.credit_decay > 0.0 and leg is not Leg.DECODE and isl > 0 and competing:
        least = min([tokens[place] for place in competing])
    is_usual = is_comparable and leg is not Leg.DECODE and table.roster.has_one_size and scale == 1.0
    if isinstance(asked.prefixes, DeviceDepths):
        crowd = fill_device(asked.view.fleet, asked.prefixes, table)
        if crowd is not None and is_usual and least is None:
            shared = _price_crowd(asked, crowd, table, loads)
            if shared is not None:
                return _of_competing(shared, competing)
    else:
        fill(asked.prefixes, table)
    _credit(asked, table, tokens, least)
    overlaps, credits_ = table.overlaps, table.credits
    costs: list[Any]
    if is_usual:
        size = table.roster.usable_sizes[0]
        need = -(-isl // size)  # the usual case: a scale of 1 changes no bit of a cost
        costs = [
            (adjusted if (adjusted := (t + isl) / size - c) > 0.0 else 0.0)
            + (b + (need - o if need > o else 0))
            for t, b, o, c in zip(tokens, blocks, overlaps, credits_, strict=True)
        ]
        return _of_competing(costs, competing)
    sizes, needs = _sizes(table.roster, isl)
    if leg is Leg.DECODE:
        columns = zip(blocks, overlaps, credits_, needs, strict=True)
        costs = [cost if (cost := b + (n - o if n > o else 0) - c) > 0.0 else 0.0 for b, o, c, n in columns]
    elif is_comparable and table.roster.has_one_size:
        size, need = sizes[0], needs[0]
        costs = [
            scale * (adjusted if (adjusted := (t + isl) / size - c) > 0.0 else 0.0)
            + (b + (need - o if need > o else 0))
            for t, b, o, c in zip(tokens, blocks, overlaps, credits_, strict=True)
        ]
    elif is_comparable:
        costs = [
            scale * (adjusted if (adjusted := (t + isl) / size - c) > 0.0 else 0.0)
            + (b + (n - o if n > o else 0))
            for t, b, o, c, size, n in zip(tokens, blocks, overlaps, credits_, sizes, needs, strict=True)
        ]
    else:
        costs = [(t + isl) / size - c for t, size, c in zip(tokens, sizes, credits_, strict=True)]
    return _of_competing(costs, competing)


def _of_competing(whole: list[Any], competing: Sequence[int]) -> Sequence[float | None]:
    """Costs of those that compete, None for the others."""
    if len(competing) == len(whole):
        return whole
    costs: list[float | None] = [None] * len(whole)
    for place in competing:
        costs[place] = whole[place]
    return costs


def _price_crowd(asked: Asked, crowd: Crowd, table: RankTable, loads: Loads) -> list[Any] | None:
    """Costs and credits in the usual case where nothing decays: the crowd's at once, others one by one.

    None where a cost of the crowd is cut off at zero, so that each rank has to be looked at.
    """
    isl, full, size = asked.question.isl_tokens, asked.kv.overlap_credit, table.roster.usable_sizes[0]
    need = -(-isl // size)
    credit, uncached = full * crowd.depth, need - crowd.depth
    tokens, blocks, overlaps = loads.tokens, loads.blocks, table.overlaps
    if uncached < 0 or (isl / size < credit and (min(tokens) + isl) / size < credit):  # no backlog is below 0
        return None
    columns = zip(tokens, blocks, strict=True)
    costs: list[Any] = [(t + isl) / size - credit + (b + uncached) for t, b in columns]
    credits_ = [credit] * len(costs)
    for place in crowd.others:
        overlap = overlaps[place]
        credits_[place] = credit = full * overlap
        adjusted = (tokens[place] + isl) / size - credit
        in_use = blocks[place] + (need - overlap if need > overlap else 0)
        costs[place] = (adjusted if adjusted > 0.0 else 0.0) + in_use
    table.credits = credits_
    return costs


def _credit(asked: Asked, table: RankTable, tokens: Sequence[int], least: int | None) -> None:
    """What the blocks are worth. least: backlog of the least loaded candidate, None without decay."""
    kv, isl, full = asked.kv, asked.question.isl_tokens, asked.kv.overlap_credit
    if least is None:
        credits_ = [full * overlap for overlap in table.overlaps]
    else:
        # one that sits out may have less than the least
        credits_ = [
            full * (1.0 / (1.0 + kv.credit_decay * (max(0, t - least) / isl))) * overlap if overlap else 0.0
            for t, overlap in zip(tokens, table.overlaps, strict=True)
        ]
    has_lower = not isinstance(asked.prefixes, DeviceDepths)  # which are of the device alone
    if has_lower and (any(table.host) or any(table.disk)):
        columns = zip(credits_, table.host, table.disk, strict=True)
        credits_ = [c + kv.host_credit * host + kv.disk_credit * disk for c, host, disk in columns]
    table.credits = credits_


def _sizes(roster: Roster, isl: int) -> tuple[Sequence[int], Sequence[int]]:
    """Block size of each rank (1 where it has none and sits out), and the prompt's blocks at that size."""
    sizes = roster.usable_sizes
    if roster.has_one_size:
        return sizes, [-(-isl // sizes[0])] * len(sizes)
    return sizes, [-(-isl // size) for size in sizes]
