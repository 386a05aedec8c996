"""Picks whose full records had to be dropped: their ledger lines, which never are.

While the log is away a process keeps 10,000 picks or 30 seconds of them; what is older
becomes a line of `PicksLost`, so that every fold still learns what was sent where, and
only those picks cannot be verified (decision 33).

Lines take the place of their picks in the queue. A replica's own picks and ends must reach
the log in the order of their numbers: what a fold holds of them is always a beginning, and
the overlay of live picks and of replay is what comes after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from ingest.log.appends import Entry
from projections.bounds import PICKS_BUFFERED_MAX, PICKS_BUFFERED_US_MAX
from projections.events.picks import DispatchEnded, Fault, LostPick, PickMade, PicksLost

LINES_PER_RECORD = 4_096  # far below the record ceiling at the longest names
LINES_MAX = 1 << 20  # about an hour at 300 picks a second


class Placed(NamedTuple):
    """What waits once lines stand as records. folded: entries of ends that their lines tell."""

    waiting: list[Entry | PicksLost]
    folded: list[Entry]


class PickBuffer:
    """Picks that wait for the log, bounded by count and age; the rest becomes lines.

    lines: how many wait to be written. forgotten: those beyond LINES_MAX, named nowhere.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.forgotten = 0
        self._picks: OrderedDict[bytes, Entry] = OrderedDict()
        self._replica = b""

    def add(self, entry: Entry) -> None:
        """An entry waits; only picks are looked at."""
        if type(entry.fact) is PickMade:
            self._picks[entry.fact.pick_id] = entry

    def add_back(self, entry: Entry) -> None:
        """An entry whose batch failed waits again, before all others."""
        if type(entry.fact) is PickMade:
            self._picks[entry.fact.pick_id] = entry
            self._picks.move_to_end(entry.fact.pick_id, last=False)

    def remove(self, entry: Entry) -> None:
        """An entry waits no more."""
        if type(entry.fact) is PickMade:
            self._picks.pop(entry.fact.pick_id, None)

    def shrink(self, now_us: int) -> list[Entry]:
        """Entries of the oldest picks beyond the bounds; each holds the line alone from now on."""
        dropped: list[Entry] = []
        while self._picks:
            pick_id, entry = next(iter(self._picks.items()))
            is_old = now_us - entry.submitted_at > PICKS_BUFFERED_US_MAX
            if len(self._picks) <= PICKS_BUFFERED_MAX and not is_old:
                break
            del self._picks[pick_id]
            assert isinstance(entry.fact, PickMade)
            self._replica = entry.fact.replica
            if self.lines < LINES_MAX:
                entry.fact = line_of(entry.fact)
                self.lines += 1
            else:
                entry.fact = ()
                self.forgotten += 1
            dropped.append(entry)
        return dropped

    def place(self, entries: Iterable[Entry]) -> Placed:
        """All lines as records, where their picks stood.

        An end right behind its line, no other own fact between them, goes into the line; not
        one that accuses its workers, since a line cannot say that.
        """
        placed = Placed([], [])
        lines: dict[bytes, LostPick] = {}
        for entry in entries:
            fact = entry.fact
            if type(fact) is LostPick:
                lines[fact.pick_id] = fact
            elif type(fact) is DispatchEnded and fact.pick_id in lines and fact.fault != Fault.FAULT:
                line = lines[fact.pick_id]
                lines[fact.pick_id] = line._replace(ended_seq=fact.own_seq, ended_at=fact.ended_at)
                placed.folded.append(entry)
            else:
                if type(fact) is PickMade or type(fact) is DispatchEnded:
                    self._tell(lines, placed)
                placed.waiting.append(entry)
            if len(lines) >= LINES_PER_RECORD:
                self._tell(lines, placed)
        self._tell(lines, placed)
        self.lines = 0
        return placed

    def _tell(self, lines: dict[bytes, LostPick], placed: Placed) -> None:
        if lines:
            placed.waiting.append(PicksLost(self._replica, tuple(lines.values())))
            lines.clear()


def line_of(fact: PickMade) -> LostPick:
    """What the ledger needs of a pick."""
    outcome, question = fact.outcome, fact.question
    return LostPick(
        fact.pick_id,
        fact.own_seq,
        question.asked_at,
        question.dispatched_at,
        outcome.namespace or "",
        outcome.decode.chosen,
        outcome.prefill.chosen,
        None,
        None,
    )
