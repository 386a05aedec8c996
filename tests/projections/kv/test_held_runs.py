"""The canonical pieces of a checkpoint."""

from __future__ import annotations

from projections.events.codec import encode_record
from projections.events.held import RunHeld
from projections.kv import held_runs
from projections.kv.index import Index
from tests.projections.kv.index_words import column, index_of, remove, store


def said(index: Index, *order: int) -> list[RunHeld]:
    return list(index.held(order or sorted(index.slots)))


def test_a_piece_says_who_holds_what_by_which_name() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3, 4], [11, 12, 13, 14])
    store(index, 1, [1, 2, 3], [21, 12, 13])
    store(index, 2, [1, 2], [11, 12])
    store(index, 2, [1], [31])
    remove(index, 1, 12)
    assert said(index) == [
        RunHeld(
            0,
            column(1, 2, 3, 4),
            column(11, 12, 13, 14),
            b"\x01",
            ((b"\x03", b"\x04"), (b"\x05", b"\x02")),
            ((1, b"\x01", column(21)),),
            ((2, 0, column(31)),),
        )
    ]


def test_pieces_come_depth_first_and_end_where_paths_part() -> None:
    index = index_of()
    store(index, 0, [5, 2], [15, 12])
    store(index, 0, [1, 2, 9], [21, 22, 29])
    store(index, 0, [1, 2, 7, 8], [21, 22, 27, 28])
    assert [(fact.depth, fact.tokens) for fact in said(index)] == [
        (0, column(1, 2)),
        (2, column(7, 8)),
        (2, column(9)),
        (0, column(5, 2)),
    ]


def test_equal_states_are_said_alike_whatever_their_history() -> None:
    straight, winding = index_of(run_blocks=256), index_of(run_blocks=3)
    numbers = list(range(40))
    store(straight, 0, numbers, numbers)
    store(straight, 1, numbers[:7], [100 + number for number in numbers[:7]])
    store(winding, 3, [0, 1, 99], [200, 201, 299])
    store(winding, 1, numbers[:7], [100 + number for number in numbers[:7]])
    for number in numbers:
        store(winding, 0, [number], [number], under=number - 1 if number else None)
    winding.clear(3)
    assert said(straight) == said(winding)


def test_blocks_that_nobody_holds_have_no_name() -> None:
    index = index_of()
    store(index, 0, [1, 2, 3], [11, 12, 13])
    remove(index, 0, 12)
    (fact,) = said(index)
    assert (fact.names, fact.full, fact.parts) == (column(11, 0, 13), b"", ((b"\x05", b"\x01"),))


def test_ranks_are_numbers_of_the_table_that_is_given() -> None:
    index = index_of()
    store(index, 3, [1], [11])
    store(index, 1, [1], [21])
    (fact,) = said(index, 0, 3, 1)
    assert (fact.names, fact.full, fact.others) == (column(11), b"\x06", ((2, b"\x01", column(21)),))


def test_a_long_path_is_said_in_pieces_of_one_length() -> None:
    index = index_of()
    store(index, 0, list(range(2_500)), list(range(2_500)))
    assert [(fact.depth, len(fact.tokens) >> 3) for fact in said(index)] == [
        (0, 1_024),
        (1_024, 1_024),
        (2_048, 452),
    ]


def test_no_record_grows_large_however_many_names_there_are() -> None:
    index = index_of(300)
    numbers = list(range(1_024))
    for slot in range(300):
        store(index, slot, numbers, [number + (slot << 20) for number in numbers])
    facts = said(index)
    assert len(facts) > 2 and not any(fact.tokens for fact in facts[1:])
    assert sum(len(fact.others) for fact in facts) == 299
    sizes = [len(fact.tokens) + sum(len(names) for _, _, names in fact.others) for fact in facts]
    assert max(sizes) < 2 * held_runs.RECORD_BYTES


def test_a_piece_is_a_record_of_the_log() -> None:
    index = index_of()
    store(index, 0, [1, 2], [11, 12])
    (fact,) = said(index)
    assert len(encode_record(1, b"w" * 16, 0, 1, fact)) < 300
