"""The shape of the tree: runs in place of nodes, split and cut where paths part and end."""

from __future__ import annotations

from projections.kv.index import Index
from projections.kv.run_tree import SHARED_TAILS_MAX
from tests.projections.kv.index_words import column, depths, index_of, remove, store


def shape(index: Index) -> list[int]:
    """Sizes of all runs, a path's front first."""
    found = [index.root]
    for run in found:
        found += run.kids.values()
    return [run.size for run in found[1:]]


def test_a_path_is_one_run_up_to_the_ceiling() -> None:
    index = index_of(run_blocks=8)
    store(index, 0, list(range(20)), list(range(20)))
    assert shape(index) == [8, 8, 4]
    store(index, 0, [20], [20], under=19)
    assert shape(index) == [8, 8, 5]


def test_a_run_is_parted_where_another_path_goes_on() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3, 4], [1, 2, 3, 4])
    store(index, 1, [1, 2, 9], [1, 2, 9])
    assert shape(index) == [2, 2, 1]
    store(index, 0, [5], [5], under=4)
    assert shape(index) == [2, 3, 1]
    index.check()


def test_a_few_others_do_not_keep_a_run_from_growing() -> None:
    few, many = index_of(9), index_of(9)
    for index, others in ((few, SHARED_TAILS_MAX), (many, SHARED_TAILS_MAX + 1)):
        for slot in range(others + 1):
            store(index, slot, [1, 2], [1, 2])
        store(index, 0, [3], [3], under=2)
        assert depths(index, 1, 2, 3) == {0: 3} | dict.fromkeys(range(1, others + 1), 2)
    assert (shape(few), shape(many)) == ([3], [2, 1])


def test_an_evicted_tail_is_cut_off() -> None:
    index = index_of()
    store(index, 0, list(range(10)), list(range(10)))
    store(index, 1, list(range(6)), list(range(6)))
    remove(index, 0, 9, 8, 7, 6, 5, 4, 3)
    assert shape(index) == [6]
    remove(index, 1, 5, 4)
    assert shape(index) == [4]
    assert len(index.canonical) == 4


def test_names_of_a_cleared_slot_are_forgotten_by_later_calls() -> None:
    index = index_of(run_blocks=10)
    store(index, 0, list(range(100)), list(range(100)))
    store(index, 1, list(range(100)), list(range(500, 600)))
    index.clear(0)
    index.clear(1)
    assert (index.nodes, len(index.canonical)) == (0, 100)
    for _ in range(10):
        remove(index, 0, 1)
    assert not index.canonical
    index.check()


def test_a_forgotten_name_can_be_taken_before_it_is_forgotten() -> None:
    index = index_of(run_blocks=4)
    store(index, 0, list(range(8)), list(range(8)))
    index.clear(0)
    store(index, 1, [50, 51], [1, 6])
    assert depths(index, 50, 51) == {1: 2}
    assert index.canonical[column(1)].size == 2
    index.check()
