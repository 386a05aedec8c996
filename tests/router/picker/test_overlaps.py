"""Overlaps by groups of slots, and the crowd that is told at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.identity import RankKey
from projections.registry.fleet import Fleet
from projections.view import DeviceDepths
from router.picker.overlaps import MANY, OTHERS_SHARE, Crowd, fill_device
from router.picker.rank_table import RankTable, roster_of
from tests.router.picker.builders import NAMESPACE, a_fleet, a_worker

WORKERS = 60
ELSEWHERE = 900  # an id of no worker


def filled(fleet: Fleet, groups: list[tuple[int, int]], slots: list[int]) -> tuple[RankTable, Crowd | None]:
    """slots: instance id of each slot."""
    workers = tuple(fleet.workers.values())
    table = RankTable(roster_of(fleet, workers, ("test", len(workers))))
    names = [RankKey(NAMESPACE, instance, 0) for instance in slots]
    return table, fill_device(fleet, DeviceDepths(groups, names, len(fleet.derived)), table)


@pytest.mark.req("KVX-09")
@given(
    st.permutations([*range(WORKERS), ELSEWHERE, ELSEWHERE + 1]),
    st.integers(0, 3),
    st.lists(st.integers(0, 4), min_size=70, max_size=70),
    st.integers(0, 66),
    st.integers(0, 4),
)
def test_each_rank_has_the_depth_of_its_slot(
    slots: list[int], unslotted: int, depths: list[int], common_from: int, common: int
) -> None:
    slots = slots[unslotted:]
    depths = [common if slot >= common_from else depth for slot, depth in enumerate(depths[: len(slots)])]
    masks: dict[int, int] = {}
    for slot, depth in enumerate(depths):
        masks[depth] = masks.get(depth, 0) | 1 << slot
    masks.pop(0, None)
    table, crowd = filled(a_fleet(*map(a_worker, range(WORKERS))), [*masks.items()], slots)
    held = dict(zip(slots, depths, strict=True))
    wanted = [held.get(place, 0) for place in range(WORKERS)]
    assert table.overlaps == wanted
    if crowd is None:
        assert all(OTHERS_SHARE * (WORKERS - wanted.count(depth)) > WORKERS for depth in range(5))
    else:
        inside = [depth for place, depth in enumerate(wanted) if place not in crowd.others]
        assert {*inside} == {crowd.depth} and OTHERS_SHARE * len(crowd.others) <= WORKERS


def test_a_depth_that_comes_more_than_once_is_told_each_time() -> None:
    fleet = a_fleet(*map(a_worker, range(2 * MANY + 8)))
    groups = [(3, (1 << MANY + 2) - 1), (5, 1 << MANY + 3), (3, 0b111 << MANY + 4)]
    table, crowd = filled(fleet, groups, [*range(MANY + 7)])
    assert crowd is None
    assert table.overlaps == [3] * (MANY + 2) + [0, 5, 3, 3, 3] + [0] * (MANY + 1)


def test_a_fleet_of_which_nothing_is_held_is_a_crowd() -> None:
    table, crowd = filled(a_fleet(*map(a_worker, range(8))), [], [])
    assert crowd == (0, [], 0) and table.overlaps == [0] * 8
