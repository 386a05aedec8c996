"""What the index answers: each rule on its own, and long stories against the oracle."""

from __future__ import annotations

import random
import sys
from struct import pack

import pytest
from xxhash import xxh3_64_intdigest

from projections.kv.columns import SUM_MODULUS
from projections.kv.index import Index, Stored, StoreResult
from projections.kv.runs import Run
from tests.projections.kv.index_fuzz import MODES, tell
from tests.projections.kv.index_words import column, depths, index_of, remove, store

ALL_ONES = (1 << 64) - 1
APPLIED = Stored(StoreResult.APPLIED, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.req("KVX-06", "KVX-08", "KVX-09", "KVX-10", "KVX-11", "KVX-12")
def test_the_index_answers_as_the_oracle_does(mode: str) -> None:
    assert tell(first=0, stories=110, modes=(mode,)) == 110 * 250


def test_slots_are_told_apart_by_the_depth_they_hold() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    store(index, 1, [1, 2], [11, 12])
    assert depths(index, 1, 2, 3, 4) == {0: 3, 1: 2}
    assert depths(index, 1) == {0: 1, 1: 1}
    assert depths(index, 2) == {}
    assert index.find(b"", -1) == []


def test_only_the_slots_asked_for_are_answered() -> None:
    index = index_of()
    for slot in range(3):
        store(index, slot, [1, 2], [11, 12])
    assert depths(index, 1, 2, among=0b101) == {0: 2, 2: 2}
    assert depths(index, 1, 2, among=0) == {}


@pytest.mark.req("KVX-09")
def test_a_hole_ends_the_match() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    assert remove(index, 0, 12) == 0
    assert depths(index, 1, 2, 3) == {0: 1}
    assert (index.blocks(0), index.nodes) == (2, 3)


@pytest.mark.field("B-042")
def test_a_filled_hole_lets_the_match_go_on() -> None:
    """Dynamo's tree drops what is behind the hole and answers 2 for ever."""
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    remove(index, 0, 12)
    assert store(index, 0, [2], [12], under=11) == APPLIED
    assert depths(index, 1, 2, 3) == {0: 3}


@pytest.mark.req("KVX-08")
@pytest.mark.field("B-041")
def test_a_node_with_two_names_is_held_until_both_are_gone() -> None:
    """Dynamo's tree drops the node with the first name."""
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    store(index, 0, [1, 2, 3], [21, 22, 23])
    assert index.blocks(0) == 3
    assert remove(index, 0, 13, 12, 11) == 0
    assert depths(index, 1, 2, 3) == {0: 3}
    remove(index, 0, 22)
    assert depths(index, 1, 2, 3) == {0: 1}


@pytest.mark.field("B-053")
@pytest.mark.parametrize("first", [0, 1])
def test_engines_may_name_the_same_blocks_differently(first: int) -> None:
    """Dynamo's tree keeps the first rank's names and loses the second rank's next event."""
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    store(index, 1, [1, 2], [21, 22])
    assert store(index, 1, [3], [23], under=22) == APPLIED
    assert store(index, 1, [3], [13], under=12).result is StoreResult.ORPHAN
    assert depths(index, 1, 2, 3) == {0: 2, 1: 3}
    remove(index, first, 12 + 10 * first)
    assert depths(index, 1, 2, 3) == {first: 1, 1 - first: 3 - first}
    index.check()


@pytest.mark.req("KVX-08")
@pytest.mark.field("B-041")
def test_removal_is_idempotent_per_slot_and_name() -> None:
    index = index_of()
    for slot in (0, 1):
        store(index, slot, [1, 2], [11, 12])
    assert remove(index, 0, 12) == 0
    assert remove(index, 0, 12) == 1
    assert remove(index, 0, 11, 11, 99) == 2
    assert depths(index, 1, 2) == {1: 2}


@pytest.mark.req("KVX-08")
@pytest.mark.field("B-041")
def test_storing_twice_needs_one_removal() -> None:
    index = index_of()
    for _ in range(2):
        store(index, 0, [1, 2], [11, 12])
    assert remove(index, 0, 11, 12) == 0
    assert (index.blocks(0), index.nodes, index.ownerships) == (0, 0, 0)


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-039")
def test_a_chain_under_a_parent_that_the_slot_does_not_hold_is_not_indexed() -> None:
    index = index_of()
    store(index, 0, [1], [11])
    assert store(index, 1, [2, 3], [12, 13], under=11) == Stored(StoreResult.ORPHAN, 2)
    assert depths(index, 1, 2, 3) == {0: 1}
    assert index.nodes == 1


@pytest.mark.req("KVX-10")
def test_only_a_chain_from_the_root_refills_what_an_orphan_was_to_be() -> None:
    index = index_of()
    store(index, 0, [2], [12], under=11)
    store(index, 0, [1], [11])
    assert depths(index, 1, 2) == {0: 1}
    store(index, 0, [1, 2], [11, 12])
    assert depths(index, 1, 2) == {0: 2}


@pytest.mark.req("KVX-10")
def test_a_block_that_is_its_own_parent_is_refused_alone() -> None:
    index = index_of()
    store(index, 0, [1], [11])
    assert store(index, 0, [7, 2], [11, 12], under=11) == Stored(StoreResult.SELF_PARENT, 1)
    assert depths(index, 1, 2) == {0: 2}
    assert depths(index, 1, 7) == {0: 1}


@pytest.mark.field("B-060")
@pytest.mark.parametrize("name", [0, 5, ALL_ONES])
def test_one_repeated_token_builds_no_loop(name: int) -> None:
    index = index_of()
    assert store(index, 0, [9] * 50, [name] * 50) == Stored(StoreResult.SELF_PARENT, 49)
    assert (index.nodes, index.blocks(0)) == (1, 1)
    assert depths(index, *[9] * 50) == {0: 1}


@pytest.mark.field("B-060")
def test_equal_tokens_under_different_names_are_a_path() -> None:
    index = index_of()
    store(index, 0, [9] * 600, list(range(600)))
    assert depths(index, *[9] * 700) == {0: 600}
    remove(index, 0, *range(599, 299, -1))
    assert depths(index, *[9] * 700) == {0: 300}
    index.check()


@pytest.mark.parametrize("odd", [0, ALL_ONES])
def test_zero_and_all_ones_are_hashes_like_others(odd: int) -> None:
    index = index_of()
    store(index, 0, [odd, 2, odd], [3, odd, 4])
    assert depths(index, odd, 2, odd) == {0: 3}
    assert store(index, 0, [5], [6], under=odd) == APPLIED
    assert depths(index, odd, 2, 5) == {0: 3}
    assert remove(index, 0, odd) == 0
    assert depths(index, odd, 2, odd) == {0: 1}
    index.check()


@pytest.mark.req("KVX-06")
@pytest.mark.field("B-036")
def test_a_name_repeated_inside_an_event_moves_to_its_last_block() -> None:
    index = index_of()
    assert store(index, 0, [1, 2, 3, 4], [11, 12, 11, 14]) == APPLIED
    assert depths(index, 1, 2, 3, 4) == {}
    assert (index.blocks(0), index.nodes) == (3, 4)
    store(index, 0, [1], [19])
    assert depths(index, 1, 2, 3, 4) == {0: 4}


def test_a_name_that_comes_again_elsewhere_has_moved() -> None:
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    store(index, 0, [5, 6], [15, 12])
    assert depths(index, 1, 2) == {0: 1}
    assert depths(index, 5, 6) == {0: 2}
    assert index.nodes == 3


def test_an_event_with_foreign_names_leaves_the_others_alone() -> None:
    """One name for two blocks, of two slots: neither takes it from the other."""
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    store(index, 1, [5, 6], [11, 12])
    assert (depths(index, 1, 2), depths(index, 5, 6)) == ({0: 2}, {1: 2})
    store(index, 1, [7], [13], under=12)
    store(index, 0, [7], [13], under=12)
    assert (depths(index, 1, 2, 7), depths(index, 5, 6, 7)) == ({0: 3}, {1: 3})


@pytest.mark.req("KVX-11")
def test_removal_and_clearing_touch_one_slot_only() -> None:
    index = index_of()
    for slot in range(3):
        store(index, slot, [1, 2, 3], [11, 12, 13])
    remove(index, 0, 13)
    index.clear(1)
    assert depths(index, 1, 2, 3) == {0: 2, 2: 3}
    index.clear(1)
    assert index.blocks(1) == 0


def test_a_cleared_slot_can_be_filled_again_at_once() -> None:
    index = index_of()
    for start in range(0, 3_000, 1_000):
        numbers = list(range(start, start + 1_000))
        store(index, 0, numbers, numbers)
    index.clear(0)
    assert (index.nodes, index.ownerships) == (0, 0)
    numbers = list(range(1_000, 2_000))
    assert store(index, 0, numbers, numbers) == APPLIED
    assert depths(index, *numbers) == {0: 1_000}
    index.check()


@pytest.mark.field("B-054")
def test_the_last_owner_takes_the_node_and_its_empty_ancestors_along() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    store(index, 1, [1, 2, 4], [11, 12, 14])
    remove(index, 0, 11, 12)
    remove(index, 1, 11, 12, 14)
    assert index.nodes == 3
    remove(index, 0, 13)
    assert index.nodes == 0
    assert not index.root.kids


@pytest.mark.field("B-054")
def test_churn_leaves_nothing_behind() -> None:
    index = index_of()
    empty = [_allocated(index)]
    for turn in range(300):
        base = turn << 20
        numbers = [base + number for number in range(140)]
        store(index, turn & 1, numbers, numbers)
        store(index, 2, numbers, [number + (1 << 40) for number in numbers])
        if turn % 3:
            remove(index, turn & 1, *reversed(numbers))
            remove(index, 2, *(number + (1 << 40) for number in numbers))
    for slot in range(3):
        index.clear(slot)
    for _ in range(1_000):
        remove(index, 0, 1)
    assert [_allocated(index)] == empty
    assert (index.nodes, index.ownerships) == (0, 0)
    index.check()


def _allocated(index: Index) -> tuple[int, int, int, int]:
    live = sum(type(thing) is Run for thing in _reachable(index))
    return (
        len(index.canonical),
        live,
        len(index.root.kids),
        sum(len(s.elsewhere) for s in index.slots.values()),
    )


def _reachable(index: Index) -> list[Run]:
    found = [index.root]
    for run in found:
        found += run.kids.values()
    return found


@pytest.mark.req("KVX-12")
@pytest.mark.field("B-055")
def test_blocks_beyond_the_ceiling_of_nodes_are_refused() -> None:
    index = index_of(nodes=5)
    assert store(index, 0, [1, 2, 3], [11, 12, 13]) == APPLIED
    assert store(index, 1, [1, 4, 5, 6], [11, 14, 15, 16]) == Stored(StoreResult.OVER_CAPACITY, 1)
    assert depths(index, 1, 4, 5, 6) == {0: 1, 1: 3}
    assert store(index, 2, [1, 2, 3], [11, 12, 13]) == APPLIED
    remove(index, 1, 15)
    assert store(index, 0, [9], [19]) == APPLIED


@pytest.mark.req("KVX-12")
@pytest.mark.field("B-055")
def test_blocks_beyond_the_ceiling_of_a_slot_are_refused() -> None:
    index = index_of(blocks=3)
    assert store(index, 0, [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]) == Stored(StoreResult.OVER_CAPACITY, 2)
    assert store(index, 0, [1, 2, 3], [11, 12, 13]) == APPLIED
    assert store(index, 0, [1], [19]) == Stored(StoreResult.OVER_CAPACITY, 1)
    assert store(index, 1, [1, 2, 3, 4], [11, 12, 13, 14]) == Stored(StoreResult.OVER_CAPACITY, 1)


@pytest.mark.req("KVX-12")
def test_ownerships_beyond_the_ceiling_are_refused() -> None:
    index = index_of(ownerships=5)
    store(index, 0, [1, 2, 3], [11, 12, 13])
    assert store(index, 1, [1, 2, 3], [11, 12, 13]) == Stored(StoreResult.OVER_CAPACITY, 1)
    assert (index.ownerships, depths(index, 1, 2, 3)) == (5, {0: 3, 1: 2})


@pytest.mark.req("KVX-12")
def test_owners_beyond_the_ceiling_of_a_node_are_refused() -> None:
    index = index_of(owners=2)
    for slot in (0, 1):
        store(index, slot, [1, 2], [11, 12])
    assert store(index, 2, [1, 2], [11, 12]) == Stored(StoreResult.OVER_CAPACITY, 2)
    remove(index, 0, 12)
    assert store(index, 2, [1], [11]) == Stored(StoreResult.OVER_CAPACITY, 1)
    remove(index, 0, 11)
    assert store(index, 2, [1, 2], [11, 12]) == APPLIED


def test_the_digest_does_not_know_history_or_slot_numbers() -> None:
    plain, winding = index_of(), Index()
    store(plain, 0, list(range(300)), list(range(1_000, 1_300)))
    store(plain, 1, [0, 1], [2_000, 2_001])
    for slot, key_word in ((9, 100), (3, 101), (5, 102)):
        winding.open_slot(slot, key_word)
    store(winding, 5, [0, 1], [1, 2])
    store(winding, 3, [0, 1, 8], [2_000, 2_001, 2_008])
    for start in range(0, 300, 30):
        numbers = list(range(start, start + 30))
        under = None if not start else 999 + start
        store(winding, 9, numbers, [1_000 + number for number in numbers], under)
    before = winding.digest
    winding.close_slot(5)
    remove(winding, 3, 2_008)
    assert winding.digest == plain.digest != before
    assert plain.digest == plain.digest


def test_the_digest_is_what_its_words_say() -> None:
    index = index_of()
    assert index.digest == 0
    store(index, 0, [5, 6, ALL_ONES], [1, 2, 3])
    store(index, 2, [5, 6], [11, 12])
    store(index, 2, [5], [13])
    first = xxh3_64_intdigest(pack(">QQQQ", 100, 3, 6, 11))
    second = xxh3_64_intdigest(pack(">QQQQ", 102, 2, 36, 11))
    assert index.digest == (first + second) % (SUM_MODULUS + 1)
    index.clear(2)
    assert index.digest == first


def test_names_of_a_slot_are_xored_by_walking() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3], [0b1, 0b10, 0b100])
    store(index, 1, [1, 2, 3], [0b1_0001, 0b10, 0b1000])
    store(index, 1, [1], [0b10_0000])
    remove(index, 0, 0b10)
    assert (index.engine_hash_xor(0), index.engine_hash_xor(1)) == (0b101, 0b11_1011)


def test_a_slot_is_opened_once() -> None:
    index = index_of(1)
    with pytest.raises(ValueError, match="open"):
        index.open_slot(0, 1)
    index.close_slot(0)
    index.open_slot(0, 7)
    assert index.blocks(0) == 0


def test_answers_do_not_depend_on_where_runs_are_cut() -> None:
    dice = random.Random(5)
    indexes = [index_of(3, run_blocks=size) for size in (1, 2, 7, 256)]
    for _ in range(300):
        slot, start, length = dice.randrange(3), dice.randrange(20), dice.randrange(1, 15)
        numbers = list(range(start, start + length))
        under = None if not start else start - 1
        chance = dice.random()
        for index in indexes:
            if chance < 0.6:
                store(index, slot, numbers, numbers, under)
            else:
                remove(index, slot, *numbers)
        assert len({(index.nodes, index.ownerships, index.digest) for index in indexes}) == 1
        assert len({tuple(sorted(depths(index, *range(40)).items())) for index in indexes}) == 1


def test_an_event_of_8192_blocks_of_one_name_is_over_soon() -> None:
    """Odd events go on block by block; none costs more than a few calls for each block."""
    index = index_of()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    names = [number & 1 for number in range(8_192)]
    tokens, engines = column(*range(8_192)), column(*names)
    sys.setprofile(count)
    try:
        index.stored(0, None, tokens, engines)
    finally:
        sys.setprofile(None)
    assert calls < 250 * 8_192
    index.check()


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-035")
def test_a_parent_that_comes_again_below_itself_builds_no_loop() -> None:
    index = index_of()
    store(index, 0, [1], [11])
    store(index, 0, [2, 1, 2, 1], [12, 11, 13, 14], under=11)
    assert depths(index, 1, 2, 1, 2, 1, 2, 1) == {}, "its name has moved to the deeper block"
    store(index, 0, [1], [19])
    assert depths(index, 1, 2, 1, 2, 1, 2, 1) == {0: 5}
    assert remove(index, 0, 11, 12, 13, 14, 19) == 0
    assert index.nodes == 0
    index.check()


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-049")
def test_a_wrong_parent_gives_no_credit_that_is_not_due() -> None:
    index = index_of()
    store(index, 0, [1], [11])
    assert store(index, 0, [2, 3], [12, 13], under=12) == Stored(StoreResult.ORPHAN, 2)
    assert depths(index, 1, 2, 3) == {0: 1}
    store(index, 0, [2], [12], under=11)
    assert store(index, 0, [2, 3], [12, 13], under=12) == Stored(StoreResult.SELF_PARENT, 1)
    assert depths(index, 1, 2, 3) == {0: 3}
    store(index, 0, [7], [17])
    assert store(index, 0, [8, 9], [18, 19], under=12) == APPLIED
    assert (depths(index, 7, 8, 9), depths(index, 8, 9)) == ({0: 1}, {})


@pytest.mark.req("KVX-12")
@pytest.mark.field("B-057")
def test_children_whose_removal_never_comes_do_not_match_and_are_bounded() -> None:
    index = index_of(blocks=20, nodes=30)
    refused = 0
    for turn in range(40):
        chain = [10 * turn, 10 * turn + 1, 10 * turn + 2]
        refused += store(index, 0, chain, chain).blocks_refused
        remove(index, 0, chain[0])
        assert depths(index, *chain) == {}
    assert refused and index.blocks(0) <= 20 and index.nodes <= 30
    index.clear(0)
    assert store(index, 0, [1, 2, 3], [1, 2, 3]) == APPLIED and index.nodes <= 5


@pytest.mark.req("KVX-12")
@pytest.mark.field("B-055")
@pytest.mark.parametrize("ceiling", [{"nodes": 20}, {"blocks": 20}, {"ownerships": 20}])
@pytest.mark.parametrize("step", [1, 3])
def test_a_chain_that_grows_while_it_is_decoded_ends_at_the_ceiling(
    ceiling: dict[str, int], step: int
) -> None:
    index = index_of(**ceiling)
    numbers = list(range(1, 31))
    for at in range(0, 30, step):
        store(index, 0, numbers[at : at + step], numbers[at : at + step], under=at or None)
    assert (index.blocks(0), index.nodes, depths(index, *numbers)) == (20, 20, {0: 20})
    index.check()
