"""Costs by prefix and load, row by row, against the formula written out plainly."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.picks import Fault, Phase, PickReason, Question, Verdict
from projections.identity import RankKey
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role
from projections.view import DeviceDepths, View
from router.picker.pick import candidate_table, pick
from router.picker.rows import CandidateRow
from tests.router.picker.builders import (
    NAMESPACE,
    NOW,
    PrefixView,
    S,
    a_fleet,
    a_kv_question,
    a_prefix_view,
    a_record,
    a_sample,
    a_worker,
    an_end,
    kv_settings,
    made,
    some_settings,
)

A, D, P = Role.AGGREGATED, Role.DECODE, Role.PREFILL
NOTHING = (0, 0, 0, 0)


def sampled(
    fleet: Fleet, *said: tuple[int, int | None, int | None], age: int = 0, rank: int = 0
) -> LoadStore:
    """A store where workers said (worker, decode blocks, prefill tokens) `age` ago."""
    load = LoadStore()
    for worker, blocks, tokens in said:
        load.apply_sample(
            a_record(a_sample(worker, 1, rank=rank, blocks=blocks, tokens=tokens), NOW - age), fleet
        )
    return load


def rows_of(
    view: View, phase: Phase = Phase.DECODE, question: Question | None = None, **kv: Any
) -> dict[int, CandidateRow]:
    settings = some_settings(kv=kv_settings(**kv))
    table = candidate_table(view, question or a_kv_question(), settings)[phase]
    return {row.instance_id: row for row in table}


@pytest.mark.req("KVP-01", "KVP-02", "KVP-03", "DYN-01")
@pytest.mark.parametrize(
    ("isl", "size", "overlap", "tokens", "blocks", "credit", "scale", "cost"),
    [
        (160, 16, 0, 0, 0, 1.0, 1.0, 10 + 10),
        (160, 16, 4, 0, 0, 1.0, 1.0, 6 + 6),
        (160, 16, 10, 0, 0, 1.0, 1.0, 0),
        (165, 16, 10, 0, 0, 1.0, 1.0, 0.3125 + 1),
        (160, 16, 4, 320, 100, 1.0, 1.0, (30 - 4) + 100 + 6),
        (160, 16, 4, 320, 100, 0.5, 1.0, (30 - 2) + 100 + 6),
        (160, 16, 4, 320, 100, 1.0, 0.25, (30 - 4) / 4 + 100 + 6),
        (160, 16, 4, 320, 100, 0.0, 0.0, 106),
        (160, 16, 4, 0, 0, 9.0, 1.0, 0 + 6),
        (640, 16, 20, 320, 80, 1.0, 1.0, 40 + 80 + 20),
        (100, 64, 1, 28, 0, 1.0, 1.0, (2 - 1) + 1),
        (5, 16, 0, 0, 3, 1.0, 1.0, 0.3125 + 4),
    ],
)
def test_cost_of_a_rank(
    isl: int,
    size: int,
    overlap: int,
    tokens: int,
    blocks: int,
    credit: float,
    scale: float,
    cost: float,
) -> None:
    fleet = a_fleet(a_worker(1, A, block_size=size))
    view = a_prefix_view(fleet, {(1, 0): (overlap, 0, 0, 0)}, sampled(fleet, (1, blocks, tokens)))
    row = rows_of(view, question=a_kv_question(isl), overlap_credit=credit, prefill_scale=scale)[1]
    assert row.cost == cost
    assert (row.overlap_blocks, row.credit) == (overlap, credit * overlap)


@pytest.mark.req("DYN-02")
@pytest.mark.parametrize(
    ("prefix", "host", "disk", "credit"),
    [
        ((4, 0, 0, 0), 0, 0, 4.0),
        ((4, 2, 0, 0), 2, 0, 5.5),
        ((4, 0, 4, 0), 0, 4, 5.0),
        ((4, 2, 4, 0), 2, 4, 6.5),
        ((0, 3, 0, 0), 3, 0, 2.25),
        ((4, 2, 4, 5), 1, 4, 6.75),  # predicted on the device, so no longer counted in host memory
        ((4, 2, 4, 8), 0, 2, 8.5),
        ((4, 2, 4, 10), 0, 0, 10.0),
    ],
)
def test_lower_tiers_are_worth_their_share(
    prefix: tuple[int, int, int, int], host: int, disk: int, credit: float
) -> None:
    fleet = a_fleet(a_worker(1, A))
    view = a_prefix_view(fleet, {(1, 0): prefix}, sampled(fleet, (1, 0, 0)))
    row = rows_of(view, host_credit=0.75, disk_credit=0.25)[1]
    assert (row.host_blocks, row.disk_blocks, row.credit) == (host, disk, credit)
    assert row.overlap_blocks == max(prefix[0], prefix[3])
    assert row.predicted_blocks == max(0, prefix[3] - prefix[0])
    assert row.cost == max(0.0, 10 - credit) + 10 - row.overlap_blocks


@pytest.mark.req("DYN-02")
def test_worked_example_of_the_wire_contract() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    view = a_prefix_view(fleet, {(1, 0): (20, 8, 0, 0)}, sampled(fleet, (1, 80, 320), (2, 20, 0)))
    rows = rows_of(view, question=a_kv_question(640), host_credit=0.75)
    assert rows[1].cost == 34 + 100
    assert rows[2].cost == 40 + 60
    assert next(iter(rows)) == 2


@pytest.mark.req("DYN-05")
@pytest.mark.parametrize(("decay", "credit"), [(0.0, 8.0), (0.5, 4.0), (1.0, 8 / 3), (3.0, 8 / 7)])
def test_credit_falls_with_the_backlog_above_the_least_loaded(decay: float, credit: float) -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    load = sampled(fleet, (1, 0, 420), (2, 0, 100))  # an excess of two prompts of 160
    view = a_prefix_view(fleet, {(1, 0): (8, 0, 0, 0), (2, 0): (8, 0, 0, 0)}, load)
    rows = rows_of(view, credit_decay=decay)
    assert rows[1].credit == pytest.approx(credit, abs=1e-12)
    assert rows[2].credit == 8.0


@pytest.mark.req("DYN-05")
def test_who_sits_out_is_not_the_least_loaded() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A), a_worker(3, A))
    load = sampled(fleet, (1, 0, 420), (2, 0, 100))
    load.apply_sample(a_record(a_sample(3, 1, blocks=50, tokens=0), NOW - 9 * S), fleet)
    rows = rows_of(a_prefix_view(fleet, {(1, 0): (8, 0, 0, 0)}, load), credit_decay=1.0)
    assert rows[3].cost is None
    assert rows[1].credit == pytest.approx(8 / 3)


@pytest.mark.req("DYN-05", "KVP-14")
def test_who_sits_out_with_less_than_the_least_keeps_its_credit() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A, block_size=None))
    load = sampled(fleet, (1, 0, 200), (2, 0, 40))  # less by a prompt of 160: 1 + 1 * -1 is nought
    held = {(1, 0): (8, 0, 0, 0), (2, 0): (8, 0, 0, 0)}
    rows = rows_of(a_prefix_view(fleet, held, load), credit_decay=1.0)
    assert (rows[2].cost, rows[2].credit) == (None, 8.0)
    assert rows[1].credit == 8.0


@pytest.mark.req("KVP-07")
def test_fresh_and_quiet_ranks_compete_and_others_sit_out() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3, 4)))
    load = sampled(fleet, (1, 5, None))
    load.apply_sample(a_record(a_sample(2, 1, blocks=0), NOW - 60 * S), fleet)
    load.apply_sample(a_record(a_sample(3, 1, blocks=7), NOW - 60 * S), fleet)
    rows = rows_of(a_prefix_view(fleet, {(3, 0): (9, 0, 0, 0)}, load))
    assert [rows[place].verdict for place in (1, 2, 3, 4)] == [
        Verdict.FRESH,
        Verdict.QUIET,
        Verdict.SILENT,
        Verdict.QUIET,
    ]
    assert [rows[place].cost for place in (1, 2, 3, 4)] == [25, 20, None, 20]
    assert rows[3].overlap_blocks == 9


@pytest.mark.req("KVP-07", "PICK-07")
def test_prefill_rank_without_the_field_sits_out_beside_one_that_has_it() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, D))
    load = sampled(fleet, (1, 10, None), (2, 10, 800))
    rows = rows_of(a_prefix_view(fleet, {(1, 0): (10, 0, 0, 0)}, load), Phase.PREFILL)
    assert (rows[1].cost, rows[1].verdict) == (None, Verdict.FRESH)
    assert rows[2].cost == 60 + 20


@pytest.mark.req("KVP-08")
def test_prefill_pool_without_backlogs_competes_on_prefix_and_size_alone() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, P), a_worker(4, D))
    load = sampled(fleet, (1, 900, None), (2, 5, None))
    load.apply_sample(a_record(a_sample(3, 1, tokens=900), NOW - 60 * S), fleet)
    rows = rows_of(
        a_prefix_view(fleet, {(1, 0): (4, 0, 0, 0), (3, 0): (6, 0, 0, 0)}, load),
        Phase.PREFILL,
        overlap_credit=2.0,
        prefill_scale=0.0,
    )
    assert [rows[place].cost for place in (1, 2, 3)] == [2, 10, -2]


@pytest.mark.req("KVP-08")
def test_tie_without_backlogs_says_round_robin_and_takes_turns() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, P), a_worker(4, D))
    view = a_prefix_view(fleet, {(1, 0): (4, 0, 0, 0), (3, 0): (4, 0, 0, 0)})
    turns, rotation = [], 0
    for _ in range(4):
        outcome = pick(view, a_kv_question(rotation_prefill=rotation), some_settings(kv=kv_settings()))
        assert outcome.prefill.chosen is not None
        assert outcome.prefill.reason == PickReason.ROUND_ROBIN_STALE
        turns.append(outcome.prefill.chosen.instance_id)
        rotation = outcome.rotation_prefill
    assert turns == [1, 3, 1, 3]


@pytest.mark.req("KVP-08")
def test_lone_best_without_backlogs_is_no_tie() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(4, D))
    outcome = pick(
        a_prefix_view(fleet, {(2, 0): (4, 0, 0, 0)}), a_kv_question(), some_settings(kv=kv_settings())
    )
    assert outcome.prefill.chosen is not None
    assert (outcome.prefill.chosen.instance_id, outcome.prefill.reason) == (2, PickReason.KV_AWARE)
    assert outcome.prefill.margin == 4


@pytest.mark.req("KVP-10")
def test_aggregated_rank_counts_blocks_in_use_and_prefill_tokens_where_told() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    load = sampled(fleet, (2, 30, 160))
    load.apply_sample(a_record(a_sample(1, 1, used=30)), fleet)
    rows = rows_of(a_prefix_view(fleet, {}, load))
    assert (rows[1].cost, rows[2].cost) == (10 + 40, 20 + 40)


def dispatched(fleet: Fleet, worker: int, ago: int, ledger: Ledger | None = None, number: int = 1) -> Ledger:
    """A ledger with a pick of `worker` so long ago: 160 tokens, 10 blocks."""
    ledger = ledger or Ledger()
    alone = a_fleet(*(one for key, one in fleet.workers.items() if key.instance_id == worker))
    question = a_kv_question(asked_at=NOW - ago)
    outcome = pick(a_prefix_view(alone, {}), question, some_settings(kv=kv_settings()))
    ledger.apply_pick(a_record(made(question, outcome, number)), fleet)
    return ledger


@pytest.mark.req("KVP-15", "STORE-06")
def test_unanswered_dispatches_add_tokens_and_blocks() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    view = a_prefix_view(fleet, {}, sampled(fleet, (2, 0, 0)), dispatched(fleet, 1, S))
    rows = rows_of(view)
    assert (rows[1].unanswered_tokens, rows[1].unanswered_blocks) == (160, 10)
    assert (rows[1].cost, rows[2].cost) == (20 + 20, 10 + 10)


@pytest.mark.req("KVP-15", "STORE-06", "KVP-08")
def test_unanswered_dispatches_weigh_against_a_prefix_where_no_backlog_is_known() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    view = a_prefix_view(fleet, {(1, 0): (4, 0, 0, 0)}, None, dispatched(fleet, 1, S))
    rows = rows_of(view)
    assert (rows[1].cost, rows[2].cost) == (20 - 4, 10)


@pytest.mark.req("KVP-15", "STORE-08", "STORE-12")
@pytest.mark.field("B-085")
def test_stalled_rank_sits_out_where_somebody_was_heard_of() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    held = {(1, 0): (9, 0, 0, 0)}
    ledger = dispatched(fleet, 1, 6 * S)
    for load in (sampled(fleet, (2, 5, None)), sampled(fleet, (2, None, 7))):
        rows = rows_of(a_prefix_view(fleet, held, load, ledger))
        assert (rows[1].verdict, rows[1].cost) == (Verdict.STALLED, None)
        assert rows[2].cost is not None
    rows = rows_of(a_prefix_view(fleet, held, None, ledger))
    assert (rows[1].verdict, rows[1].cost) == (Verdict.STALLED, 20 - 9)


@pytest.mark.req("KVP-15", "DYN-14")
@pytest.mark.field("B-004", "B-005")
def test_suspect_rank_is_left_out_unless_all_are() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    ledger = dispatched(fleet, 1, S)
    ledger.apply_end(a_record(an_end((1).to_bytes(16, "big"), NOW, fault=Fault.FAULT)))
    view = a_prefix_view(fleet, {(1, 0): (9, 0, 0, 0)}, sampled(fleet, (2, 800, 0)), ledger)
    rows = rows_of(view)
    assert (rows[1].verdict, rows[1].cost) == (Verdict.EXCLUDED, None)
    assert next(iter(rows)) == 2
    dispatched(fleet, 2, S, ledger, 3)
    ledger.apply_end(a_record(an_end((3).to_bytes(16, "big"), NOW, fault=Fault.FAULT, number=4)))
    assert all(row.cost is not None for row in rows_of(a_prefix_view(fleet, {}, None, ledger)).values())


@pytest.mark.field("B-023")
def test_rank_of_no_block_size_sits_out_and_nobody_else_does() -> None:
    fleet = a_fleet(a_worker(1, A, block_size=None), a_worker(2, A, block_size=64), a_worker(3, A))
    rows = rows_of(a_prefix_view(fleet, {}, sampled(fleet, (1, 0, 0), (2, 0, 0), (3, 0, 0))))
    assert [rows[place].cost for place in (1, 2, 3)] == [None, 2.5 + 3, 10 + 10]


def test_fleet_of_no_block_size_takes_turns() -> None:
    fleet = a_fleet(a_worker(1, A, block_size=0), a_worker(2, A, block_size=None))
    question = a_kv_question(rotation_decode=1)
    outcome = pick(a_prefix_view(fleet, {}), question, some_settings(kv=kv_settings()))
    assert outcome.decode.chosen is not None
    assert (outcome.decode.chosen.instance_id, outcome.decode.reason) == (2, PickReason.ROUND_ROBIN_STALE)


@pytest.mark.req("RND-13")
def test_each_worker_counts_in_blocks_of_its_own() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A, block_size=64), a_worker(3, A, block_size=32))
    view = a_prefix_view(fleet, {(1, 0): (8, 0, 0, 0), (2, 0): (2, 0, 0, 0)})
    rows = rows_of(view)
    assert [rows[place].cost for place in (1, 2, 3)] == [2, 0.5, 5]


# Against the formula, written out one rank at a time -----------------------------------------

MAYBE = st.none() | st.integers(0, 3_000)
RANK = st.tuples(
    MAYBE,
    MAYBE,
    st.integers(0, 12),
    st.sampled_from([None, 16, 16, 64]),
    st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 3), st.integers(0, 12)),
)
WEIGHTS = st.builds(
    KvPickSettings,
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.just(0.0),
    st.sampled_from([0.0, 0.4, 3.0]),
    st.sampled_from([0.0, 0.75]),
    st.sampled_from([0.0, 0.25]),
    conditional=st.sampled_from([None, ConditionalSettings("isl_bounding", 0, 0.0, None, None)]),
)


def plain_cost(
    leg: str, size: int, isl: int, backlog: tuple[int, int], row: CandidateRow, credit: float
) -> float:
    tokens, blocks = backlog[0] + row.unanswered_tokens, backlog[1] + row.unanswered_blocks
    cached = min(row.overlap_blocks * size, isl)
    raw_blocks = (tokens + (isl - cached) + cached) / size
    assert raw_blocks == (tokens + isl) / size
    decode_cost = blocks + max(0, math.ceil(isl / size) - row.overlap_blocks)
    if leg == "decode":
        return max(0.0, decode_cost - credit)
    return max(0.0, raw_blocks - credit)


@pytest.mark.req("KVP-01", "KVP-02", "KVP-03", "KVP-07", "CDG-01", "DYN-02", "DYN-05")
@given(st.lists(RANK, min_size=1, max_size=8), WEIGHTS, st.integers(0, 3_000), st.sampled_from("apd"))
def test_costs_of_all_ranks_are_those_of_the_formula(
    ranks: list[Any], kv: KvPickSettings, isl: int, leg: str
) -> None:
    role = {"a": A, "p": P, "d": D}[leg]
    workers = [a_worker(place, role, block_size=rank[3]) for place, rank in enumerate(ranks, 1)]
    partner = {"a": [], "p": [a_worker(99, D)], "d": [a_worker(99, P)]}[leg]
    fleet, load = a_fleet(*workers, *partner), LoadStore()
    for place, (blocks, tokens, age, _, _) in enumerate(ranks, 1):
        load.apply_sample(a_record(a_sample(place, 1, blocks=blocks, tokens=tokens), NOW - age * S), fleet)
    held = {(place, 0): rank[4] for place, rank in enumerate(ranks, 1) if rank[4] != NOTHING}
    if leg == "d" and kv.conditional is None:
        return
    view = a_prefix_view(fleet, held, load)
    settings = some_settings(kv=kv)
    phase = Phase.PREFILL if leg == "p" else Phase.DECODE
    table = candidate_table(view, a_kv_question(isl), settings)[phase]
    field = 1 if leg == "p" else 0
    fresh = {place: rank[2] <= 3 for place, rank in enumerate(ranks, 1)}
    told = any(fresh[place] and rank[field] is not None for place, rank in enumerate(ranks, 1))
    backlog: dict[int, tuple[int, int] | None] = {}
    for place, rank in enumerate(ranks, 1):
        if rank[3] is None or (told and rank[field] is None) or (told and not fresh[place] and rank[field]):
            backlog[place] = None
        elif told and fresh[place]:
            backlog[place] = (rank[1] or 0, rank[0] or 0)
        else:
            backlog[place] = (0, 0)
    least = min((one[0] for one in backlog.values() if one is not None), default=0)
    for row in table:
        rank, mine = ranks[row.instance_id - 1], backlog[row.instance_id]
        if mine is None:
            assert row.cost is None
            continue
        decay = 1.0
        if kv.credit_decay and isl and leg != "d":
            decay = 1 / (1 + kv.credit_decay * ((mine[0] - least) / isl))
        credit = kv.overlap_credit * decay * row.overlap_blocks
        credit = credit + kv.host_credit * row.host_blocks + kv.disk_credit * row.disk_blocks
        assert row.credit == credit
        size = rank[3]
        if leg == "d":
            assert row.cost == plain_cost("decode", size, isl, mine, row, credit)
        elif told:
            need = max(0, math.ceil(isl / size) - row.overlap_blocks)
            adjusted = plain_cost("prefill", size, isl, mine, row, credit)
            assert row.cost == kv.prefill_scale * adjusted + (mine[1] + need)
        else:
            assert row.cost == isl / size - credit


def test_namespace_is_that_of_the_fleet() -> None:
    fleet = a_fleet(a_worker(1, A))
    assert rows_of(a_prefix_view(fleet, {}))[1].namespace == NAMESPACE


class SlotView(PrefixView):
    """The same prefixes, told by slots: in groups of one, of several and of very many."""

    __slots__ = ()

    def device_depths(self, question: Question) -> DeviceDepths:
        names = [RankKey(*key, rank) for key, one in self.fleet.workers.items() for rank in one.ranks()][::-1]
        groups: dict[int, int] = {}
        for slot, name in enumerate(names):
            depth = self.held.get((name.instance_id, name.dp_rank), NOTHING)[0]
            if depth:
                groups[depth] = groups.get(depth, 0) | 1 << slot
        return DeviceDepths([*groups.items()], names, 1)


@pytest.mark.req("DYN-01", "PICK-14")
def test_prefixes_by_slots_give_the_outcome_of_prefixes_by_rank() -> None:
    fleet = a_fleet(*(a_worker(place, A, dp_size=3) for place in range(1, 40)))
    held = {
        (place, rank): (5 if place < 20 else 7 if place < 22 else place % 9, 0, 0, 0)
        for place in range(1, 40)
        for rank in range(3)
    }
    by_rank = a_prefix_view(fleet, held)
    by_slot = SlotView(0, fleet, by_rank.load, by_rank.ledger, by_rank.overlay)
    by_slot.held = held
    settings = some_settings(kv=kv_settings(credit_decay=0.5))
    assert pick(by_slot, a_kv_question(), settings) == pick(by_rank, a_kv_question(), settings)


CROWDED = st.lists(st.sampled_from([0, 0, 0, 6, 6, 6, 6, 10, 3]), min_size=8, max_size=24)


@pytest.mark.req("DYN-01", "PICK-14")
@given(
    CROWDED,
    st.sampled_from([0, 6, 10]),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 90_000)), min_size=24, max_size=24),
    st.sampled_from([1, 96, 160, 171, 8_000]),
    st.sampled_from([0.0, 0.3, 1.0, 1.7, 1e100]),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 23),
)
def test_what_is_told_for_a_crowd_at_once_is_told_rank_by_rank_to_the_bit(
    others: list[int],
    common: int,
    said: list[tuple[int, int]],
    isl: int,
    credit: float,
    decay: float,
    silent: int,
) -> None:
    count = 24
    fleet = a_fleet(*(a_worker(place, A) for place in range(count)))
    depths = [others[place] if place < len(others) // 2 else common for place in range(count)]
    held = {(place, 0): (depth, 0, 0, 0) for place, depth in enumerate(depths) if depth}
    load = sampled(fleet, *((n, *one) for n, one in enumerate(said) if n != silent))
    by_rank = a_prefix_view(fleet, held, load)
    by_slot = SlotView(0, fleet, load, by_rank.ledger, by_rank.overlay)
    by_slot.held = held
    settings = some_settings(kv=kv_settings(overlap_credit=credit, credit_decay=decay))
    question = a_kv_question(isl)
    assert candidate_table(by_slot, question, settings) == candidate_table(by_rank, question, settings)
    assert pick(by_slot, question, settings) == pick(by_rank, question, settings)
