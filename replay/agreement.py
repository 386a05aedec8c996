"""Whether the log that is read is the log that its owner wrote, told by its ticks.

A tick carries what its owner noted at an earlier tick that it names: the digests of all
projections, and how many records with which sum of check words came since the tick before
(decision 10). Reading the log anew gives the same figures, or shows what is wrong with it:

    fewer records than the owner counted    records are missing
    more of them                            records were put in
    as many, another sum of check words     records were changed
    the same records, another digest        another code folds them
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from projections.events.control import ClockTicked

NOTES_KEPT = 64  # ticks that a later one may still name


class Break(Enum):
    """What a tick says against the log or the code that reads it."""

    MISSING = "records are missing"
    ADDED = "records were put in"
    CHANGED = "records were changed"
    STATE = "the same records are folded to another state"


class TickBreak(NamedTuple):
    """A tick that does not agree. Records between `after` and `offset` are spoken of.

    after: offset of the tick before it, -1 where it is not known. counted, read: records by
    its owner and here. differing: names of projections, for STATE.
    """

    kind: Break
    after: int
    offset: int
    counted: int
    read: int
    differing: tuple[str, ...] = ()


class _Note(NamedTuple):
    after: int
    offset: int
    records: int
    check_sum: int
    digests: tuple[tuple[str, int], ...]


class Agreement:
    """Compares ticks with a fold of the same log.

    agreed: ticks that agree. breaks: the first of each kind, in order of offset.
    """

    def __init__(self) -> None:
        self.agreed = 0
        self.breaks: list[TickBreak] = []
        self._notes: deque[_Note] = deque(maxlen=NOTES_KEPT)
        self._before = -1

    def tick(
        self,
        offset: int,
        fact: ClockTicked,
        records: int,
        check_sum: int,
        digests: tuple[tuple[str, int], ...],
    ) -> None:
        """One tick was folded.

        records, check_sum: since the tick before, this one included. digests: after it.
        """
        earlier = [note for note in self._notes if note.offset <= fact.noted_offset]
        if earlier:  # the tick that is named; where offsets were shifted, the one before that place
            self._compare(earlier[-1], fact)
        self._notes.append(_Note(self._before, offset, records, check_sum, digests))
        self._before = offset

    def _compare(self, note: _Note, fact: ClockTicked) -> None:
        differing: tuple[str, ...] = ()
        if note.offset != fact.noted_offset and note.records == fact.records:
            return  # the owner noted a tick that this part does not hold
        if note.records != fact.records:
            kind = Break.MISSING if note.records < fact.records else Break.ADDED
        elif note.check_sum != fact.check_sum:
            kind = Break.CHANGED
        elif note.digests != fact.digests:
            kind = Break.STATE
            theirs = dict(fact.digests)
            differing = tuple(name for name, digest in note.digests if theirs.get(name) != digest)
        else:
            self.agreed += 1
            return
        if all(known.kind is not kind for known in self.breaks):
            found = TickBreak(kind, note.after, note.offset, fact.records, note.records, differing)
            self.breaks.append(found)
