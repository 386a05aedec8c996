"""Whose turn it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.picker.rotation import after, whose_turn


@pytest.mark.parametrize(
    ("rotation", "count", "among", "turn"),
    [
        (0, 3, [0, 1, 2], 0),
        (1, 3, [0, 1, 2], 1),
        (3, 3, [0, 1, 2], 0),
        (1, 3, [0, 2], 2),
        (2, 3, [0, 1], 0),
        (7, 3, [2], 2),
    ],
)
def test_first_of_the_equals_at_or_after_the_rotation(
    rotation: int, count: int, among: list[int], turn: int
) -> None:
    assert whose_turn(rotation, count, among) == turn


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-078")
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 100))
def test_everybody_has_the_same_number_of_turns(count: int, rounds: int, rotation: int) -> None:
    turns = [0] * count
    for _ in range(count * rounds):
        turn = whose_turn(rotation, count, range(count))
        turns[turn] += 1
        rotation = after(turn)
    assert turns == [rounds] * count


def turn_of(members: list[str], rotation: int, turns: dict[str, int]) -> int:
    turn = whose_turn(rotation, len(members), range(len(members)))
    turns[members[turn]] += 1
    return after(turn)


@pytest.mark.field("B-078")
@given(st.integers(1, 8), st.integers(0, 20), st.integers(0, 20), st.data())
def test_join_in_mid_round_shifts_turns_by_one_at_most(
    count: int, before: int, later: int, data: st.DataObject
) -> None:
    members = [f"{place:02}" for place in range(1, 2 * count, 2)]
    turns = dict.fromkeys(members, 0)
    rotation = 0
    for _ in range(before):
        rotation = turn_of(members, rotation, turns)
    joined = f"{2 * data.draw(st.integers(0, count)):02}"
    members = sorted([*members, joined])
    turns[joined] = 0
    for _ in range(later):
        rotation = turn_of(members, rotation, turns)
    old = [turns[member] for member in members if member != joined]
    assert max(old) - min(old) <= 2
    assert later // len(members) <= turns[joined] <= later // len(members) + 1


def test_workers_that_join_behind_do_not_bring_the_first_back() -> None:
    members = ["00", "01"]
    turns = dict.fromkeys(members, 0)
    rotation = 0
    for place in range(2, 12):
        rotation = turn_of(members, rotation, turns)
        members.append(f"{place:02}")
        turns[members[-1]] = 0
    assert [turns[member] for member in members[:10]] == [1] * 10
