"""Packed columns of hashes: big-endian u64 words, one after another, as the wire and the log carry them.

A word stays its 8 bytes: nothing here turns columns into lists of numbers, so that comparing, cutting and
adding up a thousand hashes are a few calls into C. Every column has a multiple of 8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, compress
from struct import Struct

Column = bytes | bytearray

SUM_MODULUS = (1 << 64) - 1
"""Sums of columns are taken modulo this, under which a column folds in half without caring for carries."""

_SPLIT_MAX = 256
"""The longest column for which there is a splitter of its own: it takes 32 bytes a word."""
_split_long = Struct("8s" * _SPLIT_MAX).iter_unpack
_TICKED = bytes.maketrans(b"01", b"\x00\x01")
_SMALL_BITS = 512
_NARROW_BYTES = 256
_PIECE_BYTES = 256
_SHORT_BYTES = 512  # a number of so few bytes is divided faster than it is folded


def words(column: Column) -> tuple[bytes, ...]:
    """The words of a column, 8 bytes each."""
    count = len(column) >> 3
    if count <= _SPLIT_MAX:
        return _splitter(count)(column)
    end = (count - count % _SPLIT_MAX) << 3
    return (*chain.from_iterable(_split_long(column[:end])), *_splitter(count % _SPLIT_MAX)(column[end:]))


@lru_cache(maxsize=256)
def _splitter(count: int) -> Callable[[Column], tuple[bytes, ...]]:
    return Struct("8s" * count).unpack


def find_word(column: Column, word: bytes, start: int = 0) -> int:
    """Position of the first `word` at or behind position `start`, -1 without one."""
    at = column.find(word, start << 3)
    while at > 0 and at & 7:
        at = column.find(word, at + 1)
    return at >> 3


def equal_words(left: Column, right: Column) -> int:
    """How many words two columns of one length have in common at their front.

    Halves are compared until what differs is short: turning bytes into numbers is what takes time.
    """
    low, high = 0, len(left)
    while high - low > _NARROW_BYTES:
        middle = low + high >> 1 & -8
        if left.startswith(right[low:middle], low):
            low = middle
        else:
            high = middle
    differing = int.from_bytes(left[low:high], "big") ^ int.from_bytes(right[low:high], "big")
    return (low >> 3) + ((high - low << 3) - differing.bit_length() >> 6)


def equal_last_words(left: Column, right: Column) -> int:
    """How many words two columns of one length have in common at their end."""
    low, high = 0, len(left)
    while high - low > _NARROW_BYTES:
        middle = low + high >> 1 & -8
        if left.startswith(right[middle:high], middle):
            high = middle
        else:
            low = middle
    differing = int.from_bytes(left[low:high], "big") ^ int.from_bytes(right[low:high], "big")
    if not differing:
        return len(left) - low >> 3
    return (len(left) - high >> 3) + ((differing & -differing).bit_length() - 1 >> 6)


def reversed_words(column: bytes) -> bytes:
    """The column with its last word first."""
    if len(column) == 8:
        return column
    turned = array("Q", column)
    turned.reverse()
    return turned.tobytes()


def word_sum(column: Column) -> int:
    """The sum of the words modulo SUM_MODULUS, which is 0 for it: it lies in 0..SUM_MODULUS-1.

    2**64 is 1 under this modulus, so pieces of a column may be added up as large numbers, and a
    large number's upper half laid over its lower half, until little is left.
    All ones and zero count the same; the number of words is counted apart.
    """
    if len(column) <= _SHORT_BYTES:
        return int.from_bytes(column, "big") % SUM_MODULUS
    pieces = len(column) // _PIECE_BYTES
    total = sum(map(int.from_bytes, _piece_splitter(pieces)(column)))  # integers
    total += int.from_bytes(column[pieces * _PIECE_BYTES :], "big")
    bits = (_PIECE_BYTES << 3) + 64
    while bits > _SMALL_BITS:
        bits = (bits >> 1) + 63 & -64
        total = (total >> bits) + (total & (1 << bits) - 1)
    return total % SUM_MODULUS


@lru_cache(maxsize=64)
def _piece_splitter(count: int) -> Callable[[Column], tuple[bytes, ...]]:
    return Struct(f"{_PIECE_BYTES}s" * count).unpack_from


def word_xor(column: Column) -> int:
    """All words of the column, exclusive or."""
    total = int.from_bytes(column, "big")
    bits = len(column) << 3
    while bits > 64:
        bits = (bits >> 1) + 63 & -64
        total = (total >> bits) ^ (total & (1 << bits) - 1)
    return total


def members(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set, ascending."""
    if mask & (mask - 1) == 0:
        return iter((mask.bit_length() - 1,)) if mask else iter(())
    ticked = f"{mask:b}"[::-1].encode().translate(_TICKED)
    return iter(compress(range(len(ticked)), ticked))


def leading_ones(bits: int) -> int:
    """How many of the lowest bits are set without a break: the prefix that a set of positions covers."""
    return (bits ^ (bits + 1)).bit_length() - 1
