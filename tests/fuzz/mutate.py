"""A small mutation fuzzer: seeded byte-level changes of good inputs, any case repeatable alone.

A target is a name, a corpus of good inputs and a check that raises when the code under test
breaks a promise. Case number n of a seed depends on nothing but the target's name, the seed
and n, so a failure names the case and nothing has to be replayed before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

INPUT_BYTES_MAX = 1 << 17

MAGIC_INTS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
MAGIC_LONGS = (1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Target(NamedTuple):
    """One decoder under test."""

    name: str
    corpus: list[bytes]
    check: Callable[[bytes], Any]


class Failure(NamedTuple):
    """A case on which the check raised."""

    target: str
    seed: int
    number: int
    data: bytes
    error: BaseException

    def report(self, command: str) -> str:
        """What to print: the error, the input's head and the command that repeats the case."""
        return (
            f"{self.target}: {type(self.error).__name__}: {self.error}\n"
            f"input ({len(self.data)} bytes): {self.data[:200].hex()}\n"
            f"repeat: {command} --target {self.target} --seed {self.seed} --case {self.number}"
        )


def case_of(target: Target, seed: int, number: int) -> bytes:
    """Input `number` of a seed: a corpus entry with one to eight mutations."""
    source = random.Random(f"{target.name}/{seed}/{number}")
    data = bytearray(source.choice(target.corpus))
    for _ in range(source.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        source.choice(MUTATIONS)(source, data, target.corpus)
    return bytes(data[:INPUT_BYTES_MAX])


def failure_of(target: Target, seed: int, number: int) -> Failure | None:
    """Run one case."""
    data = case_of(target, seed, number)
    try:
        target.check(data)
    except Exception as error:
        return Failure(target.name, seed, number, data, error)
    return None


def first_failure(target: Target, seed: int, cases: int) -> Failure | None:
    """Run cases 0 to `cases` - 1 until one fails."""
    found = (failure_of(target, seed, number) for number in range(cases))
    return next((failure for failure in found if failure), None)


def failures_until(
    targets: list[Target], seed: int, deadline_s: float
) -> Iterator[tuple[int, Failure | None]]:
    """Run targets in turn, case after case, until `time.monotonic()` reaches the deadline.

    Yields the count of cases so far after each round of 100 and at each failure.
    """
    count = number = 0
    while time.monotonic() < deadline_s:
        for target in targets:
            failure = failure_of(target, seed, number)
            count += 1
            if failure:
                yield count, failure
        number += 1
        if number % 100 == 0:
            yield count, None


def _place(source: random.Random, data: bytearray) -> int:
    """A position, with a leaning to the beginning, where headers are."""
    if not data:
        return 0
    return source.randrange(min(len(data), source.choice((16, 128, len(data)))))


def _flip_bit(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    if data:
        data[_place(source, data)] ^= 1 << source.randrange(8)


def _set_byte(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    if data:
        data[_place(source, data)] = source.randrange(256)


def _insert(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at = _place(source, data)
    data[at:at] = source.randbytes(source.choice((1, 1, 2, 4, 9, 64)))


def _delete(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at = _place(source, data)
    del data[at : at + source.choice((1, 1, 2, 4, 9, 64))]


def _cut(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    del data[_place(source, data) :]


def _duplicate(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at, length = _place(source, data), source.choice((1, 2, 9, 32, 200))
    data[at:at] = bytes(data[at : at + length]) * source.choice((1, 1, 2, 50))


def _splice(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    other = source.choice(corpus)
    begin = source.randrange(len(other) + 1)
    data[_place(source, data) :] = other[begin:]


def _magic_int(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    width = source.choice((1, 2, 4, 8))
    number = source.choice(MAGIC_INTS + MAGIC_LONGS) % (1 << 8 * width)
    at = _place(source, data)
    data[at : at + width] = number.to_bytes(width, source.choice(("big", "big", "little")))


def _repeat_byte(source: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at = _place(source, data)
    data[at:at] = bytes([source.randrange(256)]) * source.choice((16, 300, 5000))


MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip_bit,
    _set_byte,
    _insert,
    _delete,
    _cut,
    _duplicate,
    _splice,
    _magic_int,
    _repeat_byte,
)
