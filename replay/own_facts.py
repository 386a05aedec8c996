"""What replicas said of their own picks and ends beyond the fold: the overlays of picks.

A pick saw, beside its as-of, the replica's own picks and ends up to its own_seq that the
as-of did not hold (decision 28). Own numbers grow by one, so what is missing is seen as a
number without a fact: such a pick cannot be asked again.

Picks of a replica are asked in the order in which it made them; its overlay goes along with
them, as it did in the replica. A pick that goes back gets an overlay of its own.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, Fault, LostPick, PickMade, PicksLost, own_number
from projections.view import Overlay

OWN_KINDS = frozenset((int(Kind.PICK_MADE), int(Kind.DISPATCH_ENDED), int(Kind.PICKS_LOST)))


class _LostEnd(NamedTuple):
    """The end of a pick of which only the ledger line was recorded."""

    pick_id: bytes
    ended_at: int


_OwnFact = PickMade | DispatchEnded | LostPick | _LostEnd


class _Line:
    """Own facts of one replica that the fold has not reached, and the overlay made of them."""

    def __init__(self, replica: bytes) -> None:
        self._replica = replica
        self._facts: dict[int, tuple[int, _OwnFact]] = {}  # own number -> (offset, fact)
        self._order: deque[tuple[int, int]] = deque()  # (offset, own number)
        self._overlay = Overlay()
        self._upto = 0  # own facts up to this number are in the overlay or in the fold

    def __len__(self) -> int:
        return len(self._facts)

    def hold(self, number: int, offset: int, fact: _OwnFact) -> None:
        """One own fact; of one that was sent twice the first counts."""
        if number not in self._facts:
            self._facts[number] = (offset, fact)
            self._order.append((offset, number))

    def forget(self, offset: int) -> None:
        """The fold holds everything up to `offset`."""
        order = self._order
        while order and order[0][0] <= offset:
            self._facts.pop(order.popleft()[1], None)

    def overlay(self, own_seq: int, folded_seq: int) -> Overlay | None:
        """Own facts with numbers in (folded_seq, own_seq]; None where one of them is missing."""
        if own_seq < self._upto:
            self._overlay, self._upto = Overlay(), folded_seq
        else:
            self._overlay.folded(folded_seq)
            self._upto = max(self._upto, folded_seq)
        while self._upto < own_seq:
            held = self._facts.get(self._upto + 1)
            if held is None:
                return None
            self._upto += 1
            self._add(held[1])
        return self._overlay

    def has_lost(self, own_seq: int, folded_seq: int) -> bool:
        """Whether a lost pick has a number in (folded_seq, own_seq]."""
        return any(
            isinstance(held[1], LostPick)
            for number, held in self._facts.items()
            if folded_seq < number <= own_seq
        )

    def _add(self, fact: _OwnFact) -> None:
        if isinstance(fact, PickMade):
            self._overlay.add_pick(fact)
        elif isinstance(fact, DispatchEnded):
            self._overlay.add_end(fact)
        elif isinstance(fact, LostPick):
            self._overlay.add_lost(self._replica, fact, own_number(fact))
        else:
            self._overlay.ledger.end(fact.pick_id, fact.ended_at, Fault.NONE)


class OwnFacts:
    """Own facts of all replicas ahead of a fold."""

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}

    def __len__(self) -> int:
        """Facts held."""
        return sum(map(len, self._lines.values()))

    def hold(self, offset: int, fact: object) -> None:
        """Take over a pick, an end or lost picks; anything else is no own fact."""
        if isinstance(fact, PickMade | DispatchEnded):
            self._line(fact.replica).hold(own_number(fact), offset, fact)
        elif isinstance(fact, PicksLost):
            line = self._line(fact.replica)
            for lost in fact.lines:
                line.hold(own_number(lost), offset, lost)
                if lost.ended_seq is not None and lost.ended_at is not None:
                    line.hold(lost.ended_seq, offset, _LostEnd(lost.pick_id, lost.ended_at))

    def forget(self, offset: int) -> None:
        """The fold holds everything up to `offset`, and no earlier as-of will be asked."""
        for line in self._lines.values():
            line.forget(offset)

    def overlay(self, pick: PickMade, folded_seq: int) -> Overlay | None:
        """What the pick saw beyond its as-of; valid until the next call for its replica.

        folded_seq: newest own number of the replica inside the as-of. None where an own fact
        is missing.
        """
        return self._line(pick.replica).overlay(pick.own_seq, folded_seq)

    def has_lost(self, pick: PickMade, folded_seq: int) -> bool:
        """Whether the overlay of a pick held picks of which only the ledger line was recorded."""
        return self._line(pick.replica).has_lost(pick.own_seq, folded_seq)

    def _line(self, replica: bytes) -> _Line:
        line = self._lines.get(replica)
        if line is None:
            line = self._lines[replica] = _Line(replica)
        return line
