"""Candidates as columns: the same rows and bytes as one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from projections.events.picks import ExcludedReason, Phase, Verdict
from projections.identity import U64_MAX, RankKey
from projections.load.store import LoadStore
from projections.registry.fleet import Role
from projections.view import DeviceDepths
from router.picker.pick import candidate_table, pick
from router.picker.rank_table import RankTable, costs_of, packed, roster_of, slot_places
from router.picker.rows import pack_rows, unpack_rows
from tests.router.picker.builders import (
    NOW,
    S,
    a_fleet,
    a_kv_question,
    a_prefix_view,
    a_record,
    a_sample,
    a_worker,
    kv_settings,
    some_settings,
)

MAYBE = st.none() | st.integers(-3, U64_MAX + 2)
COLUMNS = st.lists(
    st.tuples(
        st.none() | st.floats(allow_nan=False), MAYBE, MAYBE, MAYBE, *[st.integers(-1, U64_MAX + 1)] * 6
    ),
    min_size=1,
    max_size=6,
)


def table_of(columns: list[Any], names: str = "abcabc") -> RankTable:
    """A table of one rank a worker, filled as a rule would."""
    workers = sorted(a_worker(place, namespace=names[place]) for place in range(len(columns)))
    table = RankTable(roster_of(a_fleet(*workers), tuple(workers), ("test",)))
    table.costs, table.active_prefill, table.active_decode, table.ages = zip(
        *(row[:4] for row in columns), strict=True
    )
    names_of = ("unanswered_tokens", "unanswered_blocks", "overlaps", "host", "disk", "predicted")
    for place, name in enumerate(names_of, 4):
        setattr(table, name, [row[place] for row in columns])
    table.verdicts[0], table.excluded[0] = Verdict.EXCLUDED, ExcludedReason.SUSPECT
    return table


@given(COLUMNS)
def test_columns_pack_as_their_rows_do(columns: list[Any]) -> None:
    table = table_of(columns)
    assert packed(table) == pack_rows([*table])
    assert len(unpack_rows(packed(table))) == len(table) == len(columns)


@given(COLUMNS)
def test_costs_are_those_of_the_rows(columns: list[Any]) -> None:
    table = table_of(columns)
    assert [*costs_of(table)] == [*costs_of([*table])] == [row.cost for row in table]


def test_row_of_a_place_says_who_it_is() -> None:
    table = table_of([(1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10), (None, None, None, None, 0, 0, 0, 0, 0, 0)], "ba")
    first, second = table[:2]
    assert (first.namespace, first.instance_id) == ("a", 1)
    assert (first.verdict, first.excluded) == (Verdict.EXCLUDED, ExcludedReason.SUSPECT)
    assert (second.namespace, second.verdict, second.cost) == ("b", Verdict.FRESH, None)
    assert type(second.verdict) is Verdict and table[-1] == second


def test_roster_is_worked_out_once_for_a_fleet() -> None:
    fleet = a_fleet(a_worker(1, dp_size=2, dp_start_rank=3), a_worker(2, block_size=None))
    workers = tuple(fleet.workers.values())
    roster = roster_of(fleet, workers, ("x",))
    assert roster_of(fleet, workers, ("x",)) is roster
    assert [key[1:] for key in roster.keys] == [(1, 3), (1, 4), (2, 0)]
    assert (roster.starts, roster.usable_sizes, roster.has_one_size) == ((0, 2), (16, 16, 1), False)


def test_recorded_rows_are_the_best_of_the_whole_table() -> None:
    fleet, load = a_fleet(*(a_worker(place, Role.AGGREGATED) for place in range(1, 20))), LoadStore()
    for place in range(1, 18):
        sample = a_sample(place, 1, blocks=place * 7919 % 97, tokens=None if place % 3 else place)
        load.apply_sample(a_record(sample, NOW - (place % 5) * S), fleet)
    view = a_prefix_view(fleet, {(3, 0): (5, 0, 0, 0), (9, 0): (7, 0, 0, 0)}, load)
    settings = some_settings(kv=kv_settings())
    outcome = pick(view, a_kv_question(), settings)
    table = candidate_table(view, a_kv_question(), settings)[Phase.DECODE]
    assert unpack_rows(outcome.decode.rows) == table[:8]
    assert len(table) == 19
    defined = [row.cost for row in table if row.cost is not None]
    assert defined == sorted(defined)


def test_slots_of_the_index_are_told_by_their_places() -> None:
    fleet = a_fleet(a_worker(1, namespace="a"), a_worker(1, namespace="b"), a_worker(2, namespace="b"))
    everybody = tuple(fleet.workers.values())
    names = [RankKey("b", 2, 0), RankKey("a", 1, 0), RankKey("gone", 9, 0)]
    depths = DeviceDepths([], names, 5)
    assert slot_places(fleet, roster_of(fleet, everybody, ("all",)), depths) == ([2, 0, -1], 0b011, (1,))
    # rosters of one id in two namespaces are not taken for each other
    assert slot_places(fleet, roster_of(fleet, everybody[:1], ("a",)), depths) == ([-1, 0, -1], 0b010, ())
    assert slot_places(fleet, roster_of(fleet, everybody[1:2], ("b",)), depths) == ([-1, -1, -1], 0, (0,))
