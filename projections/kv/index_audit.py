"""Every invariant of the index, checked by a walk over all of it (for tests).

Written against what the words of `runs.py` promise, not against how the index keeps the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from projections.kv.columns import word_sum
from projections.kv.runs import Run, Slot


class Counts(NamedTuple):
    """What the index says of itself."""

    nodes: int
    names: int
    further: int
    run_blocks: int


def check(root: Run, canonical: Mapping[bytes, Run], slots: Mapping[int, Slot], counts: Counts) -> None:
    """Raise AssertionError, which names what is broken, unless all is as promised."""
    runs = _runs(root)
    assert sum(run.size for run in runs) == counts.nodes, "nodes are counted"  # integers
    for run in runs:
        _check_shape(run, counts.run_blocks)
        _check_holders(run, slots)
    named = 0
    for run in runs:
        for name in run.canonical_names():
            assert canonical.get(name) is run, "a canonical name finds its run"
            named += 1
    live = sum(1 for run in canonical.values() if run.size)
    assert live == named, "no other name finds a run"
    for slot in slots.values():
        _check_slot(slot, canonical)
    assert sum(slot.names for slot in slots.values()) == counts.names, "names are counted"  # integers
    assert sum(slot.further for slot in slots.values()) == counts.further, "further names are"  # integers


def _runs(root: Run) -> list[Run]:
    assert not root.size and not root.full and not root.partial
    found: list[Run] = []
    waiting = [root]
    while waiting:
        run = waiting.pop()
        for first, kid in run.kids.items():
            assert kid.parent is run and kid.tokens.startswith(first), "a kid hangs where it is found"
            found.append(kid)
            waiting.append(kid)
    return found


def _check_shape(run: Run, run_blocks: int) -> None:
    assert 0 < run.size <= run_blocks
    assert len(run.tokens) == len(run.names) == 8 * run.size, "columns have the run's length"
    assert run.void < 1 << run.size
    if not run.kids:
        assert run.held_to() == run.size, "an end that nobody holds is gone"
    if run.sole is not None:
        assert run in run.sole.opened
        assert run.full == run.sole.bit and not run.kids and run.own_names is None
        assert not run.void >> run.size - 1, "the sole slot finds the end by its canonical name"


def _check_holders(run: Run, slots: Mapping[int, Slot]) -> None:
    ones = (1 << run.size) - 1
    partial = 0
    for depth, mask in (run.cuts or {}).items():
        assert 0 < depth < run.size and mask and not mask & partial
        partial |= mask
    for number, bits in (run.ragged or {}).items():
        assert 0 < bits < ones and bits & (bits + 1) and not partial >> number & 1
        partial |= 1 << number
    assert partial == run.partial and not partial & run.full, "a slot holds a run in one way"
    assert run.cuts != {} and run.ragged != {} and run.own_names != {}
    for number, bits in run.holders():
        slot = slots[number]
        assert run in slot.runs, "a slot knows its runs"
        assert bits == run.bits_of(slot)
    for number, own in (run.own_names or {}).items():
        assert (run.full | run.partial) >> number & 1, "only a holder has names of its own"
        assert len(own.names) == 8 * run.size
        others = [(name, at) for at, names in own.others.items() for name in names]
        assert dict(others) == own.further and len(others) == len(own.further) and all(own.others.values())
        for name, at in others:
            assert run.holds(slots[number], at)
            assert slots[number].elsewhere.get(name) is run


def _check_slot(slot: Slot, canonical: Mapping[bytes, Run]) -> None:
    elsewhere: dict[bytes, Run] = {}
    names: list[bytes] = []
    tokens: list[bytes] = []
    for run in slot.runs:
        assert run.size, "a run that is gone is held by nobody"
        column, bits = run.names_of(slot), run.bits_of(slot)
        assert bits, "a slot holds something of its runs"
        own = None if run.own_names is None else run.own_names.get(slot.number)
        for at in range(run.size):
            if not bits >> at & 1:
                continue
            name = bytes(column[at << 3 : (at + 1) << 3])
            names.append(name)
            tokens.append(bytes(run.tokens[at << 3 : (at + 1) << 3]))
            if own is None:
                assert run.is_canonical(at, name)
            elif not run.is_canonical(at, name):
                elsewhere[name] = run
            assert run.place_of(slot, name) == at
        if own is not None:
            names += own.further
            elsewhere.update(dict.fromkeys(own.further, run))
    assert slot.elsewhere == elsewhere, "names that are not canonical are found"
    assert len(frozenset(names)) == len(names) == slot.names, "a name has one place"
    assert slot.names - len(tokens) == slot.further
    assert all(run.sole is slot and run in slot.runs for run in slot.opened), "open runs are its own"
    if not slot.is_settled():
        slot.settle()
    assert slot.names_sum == word_sum(b"".join(names)), "names are added up"
    assert slot.tokens_sum == word_sum(b"".join(tokens)), "tokens hashes are added up"
