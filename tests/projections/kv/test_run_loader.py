"""An index from the pieces of a checkpoint: it answers and behaves as the one that went on."""

from __future__ import annotations

import pytest

from projections.events.held import RunHeld
from projections.kv.index import Index
from tests.projections.kv.index_words import column, depths, index_of, remove, store


def restored(index: Index, slots: list[int], **limits: int) -> Index:
    """A new index with what the slots 0.. of `index` hold in `slots`."""
    fresh = index_of(0, **limits)
    for number, slot in enumerate(slots):
        fresh.open_slot(slot, index.slots[number].key_word)
    fresh.restore(index.held(sorted(index.slots)), slots)
    return fresh


def a_rich_index() -> Index:
    index = index_of()
    numbers = list(range(300))
    store(index, 0, numbers, numbers)
    store(index, 1, numbers, [number + 1_000 for number in numbers])
    store(index, 2, [*numbers[:40], 7, 8], [*numbers[:40], 2_007, 2_008])
    store(index, 3, [500, 501], [1, 2])
    store(index, 3, [500], [77])
    remove(index, 1, 1_005, 1_299)
    return index


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [7, 3, 0, 12]])
def test_a_restored_index_is_the_same(slots: list[int]) -> None:
    index = a_rich_index()
    fresh = restored(index, slots, run_blocks=32)
    fresh.check()
    assert (fresh.digest, fresh.nodes, fresh.ownerships) == (index.digest, index.nodes, index.ownerships)
    assert list(fresh.held(slots)) == list(index.held(range(4)))
    wanted = {slots[slot]: depth for slot, depth in depths(index, *range(300)).items()}
    assert depths(fresh, *range(300)) == wanted


def test_a_restored_index_goes_on_alike() -> None:
    index = a_rich_index()
    fresh = restored(index, [0, 1, 2, 3], run_blocks=5)
    for each in (index, fresh):
        store(each, 1, [5], [1_005], under=1_004)
        store(each, 3, [9], [3], under=77)
        store(each, 0, [6, 6], [300, 1], under=299)
        assert remove(each, 2, 2_008, 39, 999) == 1
        each.check()
    assert fresh.digest == index.digest
    assert list(fresh.held(range(4))) == list(index.held(range(4)))


def test_one_name_of_two_blocks_is_told_apart_again() -> None:
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    store(index, 1, [5, 6], [12, 11])
    fresh = restored(index, [0, 1, 2, 3])
    fresh.check()
    remove(fresh, 1, 11)
    assert (depths(fresh, 1, 2), depths(fresh, 5, 6)) == ({0: 2}, {1: 1})


@pytest.mark.parametrize(
    "fact",
    [
        RunHeld(3, column(1), column(2), b"\x01", (), (), ()),
        RunHeld(0, b"", b"", b"\x01", (), (), ()),
        RunHeld(0, column(1, 2), column(2), b"\x01", (), (), ()),
        RunHeld(0, column(1), column(2), b"\xff", (), (), ()),
        RunHeld(0, column(1), column(2), b"", ((b"\x02", b"\x01"),), (), ()),
    ],
)
def test_facts_that_no_index_says_are_refused(fact: RunHeld) -> None:
    with pytest.raises(ValueError, match=r"piece|nothing|table"):
        index_of(2).restore([fact], [0, 1])
