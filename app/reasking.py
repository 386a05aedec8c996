"""Asks the picks of a living log again, each on the state that it was made on.

The same two cursors as in `replay.engine`, on a log that grows: a scout reads to the end,
a fold follows it. A pick's record comes after its as-of, so the fold goes no further than the
oldest as-of that a live replica may still name. Replicas tell theirs with every pick and
every ping, about once a second, so the fold is about a second behind. A replica that says
nothing is waited for no longer than AHEAD_US of log time, AHEAD_RECORDS or AHEAD_BYTES: then
the fold goes on, and picks on what it has passed are unverifiable (decision 43).

A step machine: records in, picks out. It opens nothing and waits for nothing; the shell
is `app.follower_asking`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from projections.bounds import MIB, SECOND_US
from projections.events.codec import owner_stamp
from projections.events.control import Pinged, ReplicaGone, ReplicaStarted
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted, PicksLost
from replay.distrusted import Distrusted
from replay.engine import Asked, Unverifiable, ready
from replay.fold_cursor import FoldCursor
from replay.log_walk import kind_byte, record_at
from replay.own_facts import OwnFacts

AHEAD_US = 30 * SECOND_US
AHEAD_RECORDS = 2_000_000
AHEAD_BYTES = 128 * MIB
TICKS_KEPT = 16
SLICE_RECORDS = 512  # about a millisecond of folding
_RECORD_COST = 41  # bytes that Python takes beside a record's own
_LOOKED_AT = frozenset(
    map(
        int,
        (
            Kind.PICK_MADE,
            Kind.DISPATCH_ENDED,
            Kind.PICKS_LOST,
            Kind.PICKS_DISTRUSTED,
            Kind.PINGED,
            Kind.REPLICA_STARTED,
            Kind.REPLICA_GONE,
        ),
    )
)
_TICK = int(Kind.CLOCK_TICKED)


class Reasking:
    """See the module's text.

    cursor: a fold to begin with. position: the offset that the scout reads next. answered:
    picks that were handed out, askable or not. is_whole: nothing follows what was read, so no
    as-of has to be waited for. on_own: told each pick, end and loss as it is read. distrusted:
    picks that were named as suspect, as far as was read.
    """

    def __init__(self, cursor: FoldCursor, on_own: Callable[[int, object], None] | None = None) -> None:
        self.cursor = cursor
        self._on_own = on_own
        self.position = cursor.fold.mark.offset + 1
        self._ahead: deque[tuple[int, Sequence[bytes]]] = deque()
        self._ahead_bytes = 0
        self._used = 0  # records of the first batch that the fold has taken
        self._stamp = cursor.fold.state.intake.stamp
        self._own = OwnFacts()
        self.distrusted = Distrusted()
        self._tick_offsets: deque[int] = deque(maxlen=TICKS_KEPT)
        self._pending: list[tuple[int, int, PickMade]] = []
        self._as_ofs: dict[bytes, int] = {}
        for held in cursor.fold.state.status.replicas():
            if held.gone_at is None:
                self._as_ofs[held.replica] = cursor.fold.mark.offset
        self.answered = 0
        self.is_whole = False

    @property
    def ahead_bytes(self) -> int:
        """Bytes that are held for the fold; read no more while they exceed AHEAD_BYTES."""
        return self._ahead_bytes

    @property
    def ahead_us(self) -> int:
        """Log time between the fold and the scout."""
        return max(0, self._stamp - self.cursor.fold.state.intake.stamp)

    def ticks_behind(self, offset: int) -> int:
        """Ticks that were read behind a record, at most TICKS_KEPT."""
        return sum(tick > offset for tick in self._tick_offsets)

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """The scout reads on: committed records at or beyond `position`."""
        self._ahead.append((first_offset, records))
        self._ahead_bytes += _cost(records)
        for place, data in enumerate(records):
            kind = kind_byte(data)
            if kind in _LOOKED_AT:
                self._look(first_offset + place, data)
            elif kind == _TICK:
                self._stamp = max(self._stamp, owner_stamp(data) or 0)
                self._tick_offsets.append(first_offset + place)
        self.position = first_offset + len(records)

    def work(self) -> tuple[bool, Asked | None]:
        """One step: fold a slice, or hand out a pick.

        The first value is False when nothing can be done before more is read. A pick must be
        asked before the next step. Raises nothing: see `cursor.stopped`.
        """
        mark = self.cursor.fold.mark.offset
        if self._pending:
            as_of, offset, fact = self._pending[0]
            if as_of < mark:
                heappop(self._pending)
                reason = Unverifiable.TOO_OLD if as_of < self.cursor.base else Unverifiable.LAG
                return True, self._answer(Asked(offset, fact, None, None, (), reason))
            if self._is_at(as_of):
                heappop(self._pending)
                return True, self._answer(ready(self.cursor, self._own, offset, fact, self.distrusted))
        return self._fold_on(self._gate()), None

    def skip_picks(self) -> list[Asked]:
        """Hand out all that is pending as lagging behind: the log has run away."""
        skipped = [Asked(o, fact, None, None, (), Unverifiable.LAG) for _, o, fact in sorted(self._pending)]
        self._pending.clear()
        self.answered += len(skipped)
        return skipped

    # -- inside ------------------------------------------------------------------------

    def _answer(self, asked: Asked) -> Asked:
        self.answered += 1
        return asked

    def _look(self, offset: int, data: bytes) -> None:
        record = record_at(offset, data)
        fact = record.fact if record is not None else None
        if isinstance(fact, PickMade | DispatchEnded | PicksLost):
            self._own.hold(offset, fact)
            if self._on_own is not None:
                self._on_own(offset, fact)
            if isinstance(fact, PickMade):
                heappush(self._pending, (fact.as_of, offset, fact))
                self._heard(fact.replica, fact.as_of)
        elif isinstance(fact, PicksDistrusted):
            self.distrusted.add(fact)
        elif isinstance(fact, Pinged):
            self._heard(fact.replica, fact.as_of)
        elif isinstance(fact, ReplicaStarted):
            self._heard(fact.replica, self.cursor.fold.mark.offset)
        elif isinstance(fact, ReplicaGone):
            self._as_ofs.pop(fact.replica, None)

    def _heard(self, replica: bytes, as_of: int) -> None:
        self._as_ofs[replica] = max(as_of, self._as_ofs.get(replica, as_of))

    def _gate(self) -> int:
        """The offset that the fold may go up to."""
        newest = self.position - 1
        allowed = min(self._as_ofs.values(), default=newest)
        if self.is_whole or self._is_too_far():
            allowed = newest
        return min(allowed, self._pending[0][0]) if self._pending else allowed

    def _is_too_far(self) -> bool:
        distance = self.position - 1 - self.cursor.fold.mark.offset
        return self.ahead_us > AHEAD_US or distance > AHEAD_RECORDS or self._ahead_bytes > AHEAD_BYTES

    def _is_at(self, as_of: int) -> bool:
        """Whether the fold is the state of `as_of`: nothing at or before it is left to fold."""
        if self.cursor.fold.mark.offset >= as_of or self.cursor.stopped is not None:
            return True
        return bool(self._ahead) and self._ahead[0][0] + self._used > as_of

    def _fold_on(self, upto: int) -> bool:
        """Fold a slice of the first batch up to offset `upto`; False where there is none."""
        if not self._ahead or self.cursor.stopped is not None:
            return False
        begin, records = self._ahead[0]
        first = begin + self._used
        count = min(len(records) - self._used, upto - first + 1, SLICE_RECORDS)
        if count <= 0:
            return False
        self.cursor.apply(first, records[self._used : self._used + count])
        self._used += count
        if self._used == len(records):
            self._ahead.popleft()
            self._ahead_bytes -= _cost(records)
            self._used = 0
        self._own.forget(self.cursor.fold.mark.offset)
        return True


def _cost(records: Sequence[bytes]) -> int:
    return sum(map(len, records)) + _RECORD_COST * len(records)
