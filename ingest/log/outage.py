"""Picks whose full records had to be dropped: their ledger lines, which never are.

While the log is away a process keeps 10,000 picks or 30 seconds of them; what is older
becomes a line of `PicksLost`, so that every fold still learns what was sent where, and
only those picks cannot be verified (decision 33).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from ingest.log.appends import Entry
from projections.bounds import PICKS_BUFFERED_MAX, PICKS_BUFFERED_US_MAX
from projections.events.picks import DispatchEnded, LostPick, PickMade, PicksLost

LINES_PER_RECORD = 4_096  # far below the record ceiling at the longest names
LINES_MAX = 1 << 20  # about an hour at 300 picks a second


class LostPicks:
    """Lines in the order in which their picks were made."""

    def __init__(self) -> None:
        self._lines: dict[bytes, LostPick] = {}
        self._replica = b""
        self.forgotten = 0  # lines beyond LINES_MAX: named nowhere

    def __len__(self) -> int:
        return len(self._lines)

    def add_pick(self, fact: PickMade) -> None:
        """The record of this pick is dropped."""
        if len(self._lines) >= LINES_MAX:
            self.forgotten += 1
            return
        outcome, question = fact.outcome, fact.question
        self._replica = fact.replica
        self._lines[fact.pick_id] = LostPick(
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

    def add_end(self, fact: DispatchEnded) -> bool:
        """Fold an end into the line of its lost pick; False where that pick is not lost."""
        line = self._lines.get(fact.pick_id)
        if line is None:
            return False
        self._lines[fact.pick_id] = line._replace(ended_seq=fact.own_seq, ended_at=fact.ended_at)
        return True

    def take(self) -> Iterator[PicksLost]:
        """All lines as records to append; afterwards there are none."""
        lines = iter(self._lines.values())
        self._lines = {}
        while part := tuple(islice(lines, LINES_PER_RECORD)):
            yield PicksLost(self._replica, part)


class PickBuffer:
    """Picks and ends that wait for the log, bounded by count and age; the rest becomes lines."""

    def __init__(self) -> None:
        self.lost = LostPicks()
        self._picks: OrderedDict[bytes, Entry] = OrderedDict()
        self._ends: dict[bytes, Entry] = {}

    def add(self, entry: Entry) -> None:
        """An entry waits; only picks and ends are looked at."""
        if type(entry.fact) is PickMade:
            self._picks[entry.fact.pick_id] = entry
        elif type(entry.fact) is DispatchEnded:
            self._ends[entry.fact.pick_id] = entry

    def add_back(self, entry: Entry) -> None:
        """An entry whose batch failed waits again, before all others."""
        self.add(entry)
        if type(entry.fact) is PickMade:
            self._picks.move_to_end(entry.fact.pick_id, last=False)

    def remove(self, entry: Entry) -> None:
        """An entry waits no more."""
        if type(entry.fact) is PickMade:
            self._picks.pop(entry.fact.pick_id, None)
        elif type(entry.fact) is DispatchEnded:
            self._ends.pop(entry.fact.pick_id, None)

    def shrink(self, now_us: int) -> list[Entry]:
        """Entries to drop: the oldest picks beyond the bounds, with their ends, as lines from now on.

        An end whose pick is in the log already is never dropped.
        """
        dropped: list[Entry] = []
        while self._picks:
            pick_id, entry = next(iter(self._picks.items()))
            is_old = now_us - entry.submitted_at > PICKS_BUFFERED_US_MAX
            if len(self._picks) <= PICKS_BUFFERED_MAX and not is_old:
                break
            del self._picks[pick_id]
            assert isinstance(entry.fact, PickMade)
            self.lost.add_pick(entry.fact)
            dropped.append(entry)
            end = self._ends.pop(pick_id, None)
            if end is not None:
                assert isinstance(end.fact, DispatchEnded)
                self.lost.add_end(end.fact)
                dropped.append(end)
        return dropped
