"""The audit sees what it is there to see: each kind of damage on its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from projections.kv.index import Index
from tests.projections.kv.index_words import column, index_of, store


def an_index() -> Index:
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    store(index, 1, [1, 2], [21, 22])
    store(index, 0, [4], [14])
    return index


def first_run(index: Index) -> None:
    index.root.kids[column(1)].full |= 0b100


def lost_name(index: Index) -> None:
    del index.canonical[column(12)]


def stray_name(index: Index) -> None:
    index.canonical[column(99)] = index.root.kids[column(1)]


def miscounted_nodes(index: Index) -> None:
    index.nodes += 1


def wrong_sum(index: Index) -> None:
    index.slots[0].names_in += column(1)


def lost_run(index: Index) -> None:
    del index.slots[0].runs[index.root.kids[column(4)]]


def lost_own_name(index: Index) -> None:
    del index.slots[1].elsewhere[column(21)]


def unowned_end(index: Index) -> None:
    run = index.root.kids[column(1)]
    run.leave(0, 1)
    del index.slots[0].runs[run]


@pytest.mark.parametrize(
    "damage",
    [first_run, lost_name, stray_name, miscounted_nodes, wrong_sum, lost_run, lost_own_name, unowned_end],
)
def test_damage_is_seen(damage: Callable[[Index], None]) -> None:
    index = an_index()
    index.check()
    damage(index)
    with pytest.raises((AssertionError, KeyError)):
        index.check()
