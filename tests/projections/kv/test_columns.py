"""Packed columns, against lists of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.kv import columns
from tests.projections.kv.index_words import column

U64 = (1 << 64) - 1
NUMBERS = st.lists(st.sampled_from([0, 1, 1 << 8, U64]) | st.integers(0, U64), max_size=90)


@given(NUMBERS)
def test_a_column_falls_into_its_words(numbers: list[int]) -> None:
    assert [int.from_bytes(word, "big") for word in columns.words(column(*numbers))] == numbers


def test_a_long_column_falls_into_its_words() -> None:
    for count in (255, 256, 257, 512, 8_192):
        assert columns.words(column(*range(count))) == tuple(column(number) for number in range(count))


@given(NUMBERS)
def test_sums_and_xors_are_those_of_the_numbers(numbers: list[int]) -> None:
    xor = 0
    for number in numbers:
        xor ^= number
    assert columns.word_xor(column(*numbers)) == xor
    assert columns.word_sum(column(*numbers)) == sum(numbers) % columns.SUM_MODULUS
    assert columns.word_sum(bytearray(column(*numbers))) == sum(numbers) % columns.SUM_MODULUS


@given(NUMBERS.filter(bool))
def test_a_column_is_turned_by_words(numbers: list[int]) -> None:
    assert columns.reversed_words(column(*numbers)) == column(*reversed(numbers))


@given(st.lists(st.sampled_from([0, 1, 256, U64]), max_size=40), st.integers(0, 40))
def test_a_word_is_found_at_word_borders_only(numbers: list[int], start: int) -> None:
    for wanted in (0, 1, 256, U64, 5):
        later = [at for at, number in enumerate(numbers) if number == wanted and at >= start]
        assert columns.find_word(column(*numbers), column(wanted), start) == (later[0] if later else -1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_equal_words_are_counted_from_both_ends(pairs: list[tuple[int, int]]) -> None:
    same = [left == right for left, right in pairs]
    left, right = (column(*side) for side in zip(*pairs, strict=True))
    front = same.index(False) if False in same else len(same)
    back = same[::-1].index(False) if False in same else len(same)
    assert columns.equal_words(left, right) == front
    assert columns.equal_last_words(left, right) == back


@given(st.sets(st.integers(0, 300)))
def test_members_of_a_mask_come_in_order(chosen: set[int]) -> None:
    assert list(columns.members(sum(1 << number for number in chosen))) == sorted(chosen)


def test_leading_ones_end_at_the_first_hole() -> None:
    assert [columns.leading_ones(bits) for bits in (0b0, 0b1, 0b1011, 0b110)] == [0, 1, 2, 0]
