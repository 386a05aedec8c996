"""In what two states of one offset differ: part by part, and the first difference of each.

Both are given as the facts that a checkpoint of them holds. Each kind of fact is a part: it has fields
that name it and fields that say something of it. So a state that is no state at all, as of broken memory,
is compared too: nothing is restored.

Runs of blocks are compared as the pieces that a checkpoint cuts them into, so one block more shows as one
or a few pieces.

Source: decision 10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from projections.events.held import (
    FleetHeld,
    KeyHeld,
    KvPublisherHeld,
    KvRankHeld,
    KvTierHeld,
    LedgerLine,
    OwnerHeld,
    PassHeld,
    PredictionHeld,
    PublisherHeld,
    ReplicaHeld,
    RunHeld,
    SampleHeld,
    SettingsHeld,
    WorkerHeld,
    WriterSeen,
)

Fact = tuple[Any, ...]
_Name = tuple[Any, ...]


class Part(NamedTuple):
    """A kind of fact. word: for one of them. names: how many of its first fields name it."""

    word: str
    names: int


PARTS: dict[type[Any], Part] = {
    FleetHeld: Part("fleet", 0),
    PassHeld: Part("pass", 1),
    KeyHeld: Part("key", 3),
    WorkerHeld: Part("worker", 2),
    SampleHeld: Part("sample", 3),
    PublisherHeld: Part("publisher", 3),
    KvRankHeld: Part("rank of the index", 3),
    KvPublisherHeld: Part("publisher of kv-events", 2),
    RunHeld: Part("run of blocks", 2),
    PredictionHeld: Part("prediction", 5),
    LedgerLine: Part("ledger line", 6),
    WriterSeen: Part("writer", 1),
    SettingsHeld: Part("settings version", 1),
    ReplicaHeld: Part("replica", 1),
    OwnerHeld: Part("owner", 0),
}
"""In the order of a checkpoint."""


class PartDifference(NamedTuple):
    """One part in which they differ.

    changed: named by both, otherwise told. only_first, only_second: named by one alone. pair: the first
    of any of these, in the order of the first state; None where one state does not name it.
    """

    kind: type[Any]
    changed: int
    only_first: int
    only_second: int
    pair: tuple[Fact | None, Fact | None]


def differing_parts(first: Iterable[Fact], second: Iterable[Fact]) -> list[PartDifference]:
    """Every part in which two states differ, in the order of a checkpoint; [] for equal ones.

    The facts of `second` are held in memory while `first` is read.
    """
    held = dict(_named(second))
    changed: Counter[type[Any]] = Counter()
    only_first: Counter[type[Any]] = Counter()
    pairs: dict[type[Any], tuple[Fact | None, Fact | None]] = {}
    for name, fact in _named(first):
        other = held.pop(name, None)
        if other == fact:
            continue
        (only_first if other is None else changed)[type(fact)] += 1
        pairs.setdefault(type(fact), (fact, other))
    only_second = Counter(map(type, held.values()))
    for fact in held.values():
        pairs.setdefault(type(fact), (None, fact))
    return [
        PartDifference(kind, changed[kind], only_first[kind], only_second[kind], pairs[kind])
        for kind in PARTS
        if kind in pairs
    ]


def _named(facts: Iterable[Fact]) -> Iterator[tuple[_Name, Fact]]:
    """Each fact by its kind and the fields that name it; of several with one name the first, second, ..."""
    tier, times = 0, Counter[_Name]()
    for fact in facts:
        kind = type(fact)
        if kind is KvTierHeld:
            tier = fact[0]
            continue
        name = (kind, tier if kind is RunHeld else 0, *fact[: PARTS[kind].names])
        times[name] += 1
        yield (*name, times[name]), fact
