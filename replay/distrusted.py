"""Which picks a log names as suspect after they were made.

A replica whose fold disagrees learns it a tick or two later, and then names the picks that it has
made since it last agreed (`PicksDistrusted`, decision 10). Whoever asks picks again reads ahead of
them anyway; where that reading ends, `look_behind` reads on. It goes no further than LOOK_TICKS
ticks of an owner: a replica remembers no more notes that it could compare. Where very much is
written in that time it ends at LOOK_RECORDS, so that one pick is explained in a moment.
"""

from __future__ import annotations

from bisect import bisect_left

from projections.events.kinds import Kind
from projections.events.picks import PickMade, PicksDistrusted
from projections.events.ports import LogReader
from replay.log_walk import batches_of, record_at

LOOK_TICKS = 64  # as `app.tail.NOTES_KEPT_MAX`
LOOK_RECORDS = 500_000
NAMED_MAX = 4_096  # records of one replica that are remembered, the oldest goes
DISTRUSTED, _TICK = int(Kind.PICKS_DISTRUSTED), int(Kind.CLOCK_TICKED)


class Distrusted:
    """Picks that were named: of a replica those with an as-of in one of its ranges.

    Ranges of one replica do not overlap: a fold that begins anew stands behind the one that disagreed
    before anybody picks on it. So a pick that was recorded twice is named wherever its records stand.
    """

    def __init__(self) -> None:
        self._uptos: dict[bytes, list[int]] = {}
        self._named: dict[bytes, list[PicksDistrusted]] = {}

    def add(self, fact: PicksDistrusted) -> None:
        """Take a record; of two that name the same the first counts."""
        uptos = self._uptos.setdefault(fact.replica, [])
        place = bisect_left(uptos, fact.upto)
        if place < len(uptos) and uptos[place] == fact.upto:
            return
        named = self._named.setdefault(fact.replica, [])
        uptos.insert(place, fact.upto)
        named.insert(place, fact)
        if len(uptos) > NAMED_MAX:
            del uptos[0], named[0]

    def names(self, pick: PickMade) -> bool:
        """Whether its replica named this pick."""
        uptos = self._uptos.get(pick.replica, ())
        place = bisect_left(uptos, pick.as_of)
        return place < len(uptos) and self._named[pick.replica][place].after < pick.as_of


def look_behind(reader: LogReader, start: int, into: Distrusted) -> None:
    """Find what names picks before `start`, in the records from `start` on. Raises what the reader raises."""
    ticks = 0
    for batch in batches_of(reader, start, start + LOOK_RECORDS):
        for place, data in enumerate(batch.records):
            kind = data[3] or data[5]  # as kind_byte, without its call
            if kind == DISTRUSTED:
                record = record_at(batch.first_offset + place, data)
                if record is not None and isinstance(record.fact, PicksDistrusted):
                    into.add(record.fact)
            elif kind == _TICK:
                ticks += 1
        if ticks >= LOOK_TICKS:
            return
