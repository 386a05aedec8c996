"""Names: several of one block, of one slot only, taken, moved; and the quick ways beside the slow one."""

from __future__ import annotations

from projections.kv.index import Stored, StoreResult
from tests.projections.kv.index_words import column, depths, index_of, remove, store


def test_names_of_its_own_cost_a_slot_nothing_but_a_column() -> None:
    index = index_of()
    store(index, 0, list(range(20)), list(range(20)))
    store(index, 1, list(range(20)), list(range(100, 120)))
    assert len(index.canonical) == 20
    assert len(index.slots[1].elsewhere) == 20
    assert remove(index, 1, *range(119, 109, -1)) == 0
    assert (index.blocks(1), len(index.slots[1].elsewhere)) == (10, 10)
    remove(index, 1, *range(100, 110))
    (run,) = index.root.kids.values()
    assert run.own_names is None
    index.check()


def test_a_second_name_becomes_the_first_when_that_goes() -> None:
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    store(index, 0, [1, 2], [21, 22])
    remove(index, 0, 11)
    assert store(index, 0, [3], [13], under=21).result is StoreResult.APPLIED
    assert store(index, 0, [4], [14], under=11).result is StoreResult.ORPHAN
    store(index, 0, [1], [11])
    remove(index, 0, 21)
    assert index.slots[0].elsewhere == {column(22): index.canonical[column(12)]}
    index.check()


def test_second_names_count_against_the_ceilings() -> None:
    index = index_of(blocks=5, ownerships=6)
    store(index, 0, [1, 2], [11, 12])
    assert store(index, 0, [1, 2], [21, 22]) == Stored(StoreResult.APPLIED, 0)
    assert store(index, 0, [1, 2], [31, 32]) == Stored(StoreResult.OVER_CAPACITY, 1)
    assert (index.blocks(0), index.ownerships) == (2, 2)
    assert store(index, 1, [1, 2], [11, 12]) == Stored(StoreResult.OVER_CAPACITY, 1)


def test_a_name_moves_to_a_block_that_is_there_only_for_it() -> None:
    """The new block hangs from the old one, which nobody holds any more."""
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    remove(index, 0, 11)
    store(index, 0, [1], [12])
    assert (depths(index, 1, 2), index.nodes) == ({0: 1}, 1)


def test_holes_are_filled_in_one_step_by_canonical_names() -> None:
    index = index_of()
    for slot in (0, 1):
        store(index, slot, list(range(10)), list(range(10)))
    remove(index, 1, 2, 4, 6)
    assert index.root.kids[column(0)].ragged == {1: 0b1110101011}
    store(index, 1, list(range(10)), list(range(10)))
    assert index.root.kids[column(0)].ragged is None
    assert depths(index, *range(10)) == {0: 10, 1: 10}
    index.check()


def test_removal_from_root_to_tail_and_from_tail_to_root_leave_the_same() -> None:
    for names in (range(4, 9), range(8, 3, -1), [5, 8, 4, 7, 6]):
        index = index_of(run_blocks=3)
        store(index, 0, list(range(10)), list(range(10)))
        assert remove(index, 0, *names) == 0
        assert depths(index, *range(10)) == {0: 4}
        assert (index.blocks(0), index.nodes) == (5, 10)
        index.check()


def test_a_removed_streak_stops_at_a_hole() -> None:
    index = index_of()
    for slot in (0, 1):
        store(index, slot, list(range(6)), list(range(6)))
    remove(index, 0, 3)
    store(index, 0, [77], [3])
    assert remove(index, 0, 5, 4, 3, 2) == 0
    assert depths(index, *range(6)) == {0: 2, 1: 6}
    assert depths(index, 77) == {}
    index.check()
