"""Who holds which positions of a run, in whichever of the three ways it is written down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.kv.runs import OwnNames, Run, Slot
from tests.projections.kv.index_words import column

SIZE = 6
BITS = st.integers(0, (1 << SIZE) - 1)


def a_run() -> Run:
    return Run(None, column(*range(SIZE)), column(*range(10, 10 + SIZE)), 0)


@given(st.lists(st.tuples(st.integers(0, 3), BITS), max_size=20))
def test_a_slot_holds_what_was_written_last(writes: list[tuple[int, int]]) -> None:
    run, slots = a_run(), [Slot(number, 0) for number in range(4)]
    wanted = dict.fromkeys(range(4), 0)
    for number, bits in writes:
        run.leave(number, 1 << number)
        if bits:
            run.enter(number, 1 << number, bits)
        wanted[number] = bits
    assert {slot.number: run.bits_of(slot) for slot in slots} == wanted
    assert dict(run.holders()) == {number: bits for number, bits in wanted.items() if bits}
    assert run.held_to() == max(bits.bit_length() for bits in wanted.values())
    for at in range(SIZE):
        owners = [number for number, bits in wanted.items() if bits >> at & 1]
        assert run.owners_at(at) == len(owners)
        assert [slot.number for slot in slots if run.holds(slot, at)] == owners


def test_prefixes_are_kept_by_their_length() -> None:
    run = a_run()
    for number, bits in enumerate((0b11, 0b11, 0b111111, 0b101)):
        run.enter(number, 1 << number, bits)
    assert (run.full, run.cuts, run.ragged) == (0b100, {2: 0b11}, {3: 0b101})
    assert run.prefix_groups(0b1011, 4) == {2: 0b11, 1: 0b1000}
    assert run.prefix_groups(0b1001, 1) == {1: 0b1001}


def test_a_name_counts_where_its_position_is_held() -> None:
    run, slot = a_run(), Slot(0, 0)
    run.enter(0, 1, 0b1011)
    assert [run.place_of(slot, column(10 + at)) for at in range(SIZE)] == [0, 1, -1, 3, -1, -1]
    own = OwnNames(bytes(run.names))
    run.own_names = {0: own}
    own.rename(3, column(77))
    own.add_further(1, column(78))
    assert [run.place_of(slot, column(name)) for name in (13, 77, 78, 11)] == [-1, 3, 1, 1]
    own.add_further(1, column(79))
    own.drop_further(1, column(78))
    assert own.promote(1) == column(79)
    assert (own.names[8:16], own.further, own.others) == (column(79), {}, {})


def test_a_position_may_have_no_canonical_name() -> None:
    run = a_run()
    run.void = 0b10
    assert run.canonical_names() == [column(10 + at) for at in (0, 2, 3, 4, 5)]
    assert run.is_canonical(0, column(10))
    assert not run.is_canonical(1, column(11))


def test_an_open_run_has_columns_that_can_grow() -> None:
    run, slot = a_run(), Slot(0, 0)
    run.open(slot)
    run.tokens += column(6)
    assert (run.sole, type(run.tokens)) == (slot, bytearray)
    run.size += 1
    run.close()
    run.seal()
    assert (run.sole, slot.opened, run.tokens) == (None, {}, column(*range(7)))
    assert slot.tokens_in == column(6)


def test_a_slot_settles_to_sums() -> None:
    slot = Slot(1, 5)
    slot.names_in += column(5, 6)
    slot.tokens_in += column(1)
    slot.settle()
    slot.names_out += column(5)
    slot.settle()
    assert (slot.names_sum, slot.tokens_sum, slot.entry) == (6, 1, None)
    slot.empty()
    assert (slot.names_sum, slot.entry) == (0, 0)
