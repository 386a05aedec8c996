"""Ticks tell records that are missing, were put in or were changed, and another code, apart."""

import pytest

from projections.events.control import ClockTicked
from replay.agreement import Agreement, Break

DIGESTS = (("load", 1), ("registry", 2))


def tick(noted: int = -1, records: int = 0, check_sum: int = 0, digests: object = DIGESTS) -> ClockTicked:
    return ClockTicked(0, noted, digests, records, check_sum)  # type: ignore[arg-type]


def compared(theirs: ClockTicked) -> Agreement:
    agreement = Agreement()
    agreement.tick(10, tick(), 7, 70, DIGESTS)
    agreement.tick(20, tick(10, 7, 70), 10, 99, DIGESTS)
    agreement.tick(30, theirs, 5, 5, DIGESTS)
    return agreement


def test_ticks_that_agree_are_counted() -> None:
    agreement = compared(tick(20, 10, 99))
    assert (agreement.agreed, agreement.breaks) == (2, [])


@pytest.mark.parametrize(
    ("theirs", "kind", "differing"),
    [
        (tick(20, 12, 99), Break.MISSING, ()),
        (tick(20, 9, 99), Break.ADDED, ()),
        (tick(20, 10, 98), Break.CHANGED, ()),
        (tick(20, 10, 99, (("load", 1), ("registry", 3))), Break.STATE, ("registry",)),
    ],
)
def test_what_a_tick_says_against_the_log_is_named(
    theirs: ClockTicked, kind: Break, differing: tuple[str, ...]
) -> None:
    [found] = compared(theirs).breaks
    assert (found.kind, found.after, found.offset, found.differing) == (kind, 10, 20, differing)
    assert (found.counted, found.read) == (theirs.records, 10)


def test_of_each_kind_the_first_is_kept() -> None:
    agreement = compared(tick(20, 12, 99))
    agreement.tick(40, tick(30, 6, 5), 1, 1, DIGESTS)
    assert [found.offset for found in agreement.breaks] == [20]


def test_a_tick_that_names_one_from_before_the_fold_says_nothing() -> None:
    agreement = Agreement()
    agreement.tick(10, tick(3, 9, 9), 7, 70, DIGESTS)
    assert (agreement.agreed, agreement.breaks) == (0, [])
