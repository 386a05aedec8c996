"""What ties the picks of a replica to each other: their own numbers, and their rotations.

Own numbers of picks and ends grow by one over a replica's life: a number that is not there
is a record that is missing. The rotations that a pick leaves are those that the replica's
next pick of the same model begins with; where they are not, one of both was changed or one
between them is missing. Both are read in record order, and parts of a log that were read
apart are joined at their seams.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.events.picks import DispatchEnded, PickMade, PicksLost, own_number

_Rotations = tuple[int, int]


class Gap(NamedTuple):
    """Own numbers of a replica that no record has, before the one at `offset`."""

    replica: bytes
    first: int
    last: int
    offset: int


class RotationBreak(NamedTuple):
    """A pick that does not begin with the rotations (prefill, decode) that the one before it left."""

    replica: bytes
    model: str
    before: int
    offset: int
    left: _Rotations
    begun: _Rotations


class _Chain:
    """One replica. models: served model -> (offset, rotations left, whether nothing is missing since)."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.ahead: set[int] = set()
        self.begun: dict[str, tuple[int, _Rotations]] = {}
        self.models: dict[str, tuple[int, _Rotations]] = {}
        self.cut = False  # numbers were missing: models seen first after that do not continue others


class Chains:
    """Own numbers and rotations of all replicas over one stretch of a log.

    gaps, breaks: counted; the first of each kept.
    """

    def __init__(self) -> None:
        self.gaps = self.breaks = 0
        self.first_gap: Gap | None = None
        self.first_break: RotationBreak | None = None
        self._chains: dict[bytes, _Chain] = {}

    def note(self, offset: int, fact: object) -> None:
        """Take a record of a replica, in the order of the log; any other fact passes."""
        if isinstance(fact, PickMade):
            if self._number(fact.replica, own_number(fact), offset):
                self._rotate(fact, offset)
        elif isinstance(fact, DispatchEnded):
            self._number(fact.replica, own_number(fact), offset)
        elif isinstance(fact, PicksLost):
            numbers = [own_number(line) for line in fact.lines]
            numbers += [line.ended_seq for line in fact.lines if line.ended_seq is not None]
            for number in sorted(numbers):
                self._number(fact.replica, number, offset, ahead=True)
            self._chains[fact.replica].models.clear()  # which of them they moved was not recorded
            self._chains[fact.replica].cut = True

    def join(self, later: Chains) -> None:
        """Add the stretch that follows this one."""
        self.gaps += later.gaps
        self.breaks += later.breaks
        for replica, theirs in later._chains.items():
            ours = self._chains.get(replica)
            if ours is None:
                self._chains[replica] = theirs
                continue
            missing = [n for n in range(ours.last + 1, theirs.first) if n not in ours.ahead]
            if missing:
                self._gap(Gap(replica, missing[0], missing[-1], -1))
            else:
                for model, (offset, begun) in theirs.begun.items():
                    left = ours.models.get(model)
                    if left is not None and left[1] != begun:
                        self._break(RotationBreak(replica, model, left[0], offset, left[1], begun))
            kept = {} if missing or theirs.cut else ours.models
            theirs.models = {**kept, **theirs.models}
            theirs.first, theirs.begun = ours.first, ours.begun
            self._chains[replica] = theirs
        self.first_gap = self.first_gap or later.first_gap
        self.first_break = self.first_break or later.first_break

    def _number(self, replica: bytes, number: int, offset: int, ahead: bool = False) -> bool:
        """Count an own number; False where it was there before."""
        chain = self._chains.get(replica)
        if chain is None:
            self._chains[replica] = _Chain(number)
            return True
        if number <= chain.last or number in chain.ahead:
            return False
        if number == chain.last + 1:
            chain.last = number
        elif ahead:
            chain.ahead.add(number)  # an end whose own number lies beyond picks that follow
        else:
            missing = [n for n in range(chain.last + 1, number) if n not in chain.ahead]
            if missing:
                self._gap(Gap(replica, missing[0], missing[-1], offset))
                chain.models.clear()
                chain.cut = True
            chain.last = number
            chain.ahead = {n for n in chain.ahead if n > number}
        while chain.last + 1 in chain.ahead:
            chain.last += 1
            chain.ahead.remove(chain.last)
        return True

    def _rotate(self, fact: PickMade, offset: int) -> None:
        question, outcome = fact.question, fact.outcome
        chain = self._chains[fact.replica]
        begun = (question.rotation_prefill, question.rotation_decode)
        held = chain.models.get(question.served_model)
        if held is None:
            if not chain.cut:
                chain.begun.setdefault(question.served_model, (offset, begun))
        elif held[1] != begun:
            self._break(RotationBreak(fact.replica, question.served_model, held[0], offset, held[1], begun))
        left = (outcome.rotation_prefill, outcome.rotation_decode)
        chain.models[question.served_model] = (offset, left)

    def _gap(self, gap: Gap) -> None:
        self.gaps += 1
        self.first_gap = self.first_gap or gap

    def _break(self, found: RotationBreak) -> None:
        self.breaks += 1
        self.first_break = self.first_break or found
