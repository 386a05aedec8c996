"""Reads ahead of a fold: finds the picks to ask, and holds what the fold has not reached.

A pick is written after the state that it was made on: its record stands at some offset and
names an earlier one as its as-of. So the scout reads the log once, about half a minute of
log time ahead, keeps the batches for the fold that follows, the own facts of replicas for
overlays, the picks in order of their as-of (decision 43), and which of them were named as
suspect later.

Memory is AHEAD_BYTES of records and the picks among them, whatever the length of the log.
A pick whose as-of the fold has passed before the pick was found is *late*: it is handed
out apart, to be asked on a fold of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heappop, heappush

from projections.bounds import MIB, SECOND_US
from projections.events.codec import owner_stamp
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted, PicksLost
from projections.events.ports import LogReader, RecordBatch
from replay.chains import Chains
from replay.distrusted import DISTRUSTED, Distrusted
from replay.fold_cursor import FoldCursor
from replay.log_walk import READ_BYTES, kind_byte, record_at
from replay.own_facts import OWN_KINDS, OwnFacts

AHEAD_US = 35 * SECOND_US  # a replica routes on for 30 s without the log (decision 33)
AHEAD_BYTES = 32 * MIB
BEHIND_RECORDS_MAX = 500_000  # a first as-of further back than this is late
_TICK = int(Kind.CLOCK_TICKED)
_TAKEN = OWN_KINDS | {DISTRUSTED}
_RECORD_COST = 41  # bytes that Python takes beside a record's own


class Ask(Enum):
    """What is to become of a pick: asked on the fold that follows, on one of its own, or elsewhere."""

    HERE = 1
    APART = 2
    ELSEWHERE = 3


class Scout:
    """See the module's text. For one fold.

    start, stop: offsets of the records that are spoken of. read_to: where reading ends, at
    stop or a little behind it. ask(offset, as_of): what is to become of a pick; others count
    for overlays all the same. late: (as-of, offset) of late picks. records: read before stop.
    """

    def __init__(
        self, reader: LogReader, start: int, stop: int, read_to: int, ask: Callable[[int, int], Ask]
    ) -> None:
        self._reader = reader
        self._position = start
        self._end = read_to
        self._stop = stop
        self._fold_to = stop - 1
        self._ask = ask
        self.records = 0
        self._buffer: deque[RecordBatch] = deque()
        self._buffered = 0
        self._used = 0  # records of the first batch that the fold has taken
        self._stamp = 0
        self._pending: list[tuple[int, int, PickMade]] = []
        self.late: list[tuple[int, int]] = []
        self.own = OwnFacts()
        self.distrusted = Distrusted()
        self.chains = Chains()

    @property
    def first_offset(self) -> int | None:
        """Offset of the oldest record that is held for the fold."""
        return self._buffer[0].first_offset if self._buffer else None

    def begin(self) -> int | None:
        """Read the first stretch; the smallest as-of of its picks, None where there is none to ask.

        Reads on while no pick is found; what was read then is not kept.
        """
        start = self._position
        while self._position < self._end:
            self._read()
            if self._buffered >= AHEAD_BYTES:
                if self._pending:
                    break
                self._drop()
                start = self._position
        while self._pending and self._pending[0][0] < start - BEHIND_RECORDS_MAX:
            as_of, offset, _ = heappop(self._pending)
            self.late.append((as_of, offset))
        if not self._pending:
            return None
        return self._pending[0][0]

    def take_back(self, cursor: FoldCursor) -> None:
        """Bring the fold to the first stretch: up to its first as-of, then keep what lies between."""
        as_of = self._pending[0][0]
        begins = self.first_offset
        assert begins is not None
        cursor.walk(self._reader, min(as_of, begins - 1))
        start = max(cursor.fold.mark.offset + 1, self._reader.first_offset())
        between: list[RecordBatch] = []
        while start < begins and cursor.stopped is None:
            found = self._reader.read(start, READ_BYTES)
            for batch in found:
                records = batch.records[: max(0, begins - batch.first_offset)]
                if records:
                    between.append(RecordBatch(batch.first_offset, records))
                    for place, data in enumerate(records):
                        if kind_byte(data) in OWN_KINDS:
                            self._hold_early(batch.first_offset + place, data)
            if not found:
                break
            start = found[-1].first_offset + len(found[-1].records)
        self._buffer.extendleft(reversed(between))
        self._skip_to(cursor.fold.mark.offset)

    def next_pick(self, cursor: FoldCursor) -> tuple[int, PickMade] | None:
        """Fold up to the next as-of; (offset, pick) that was made on it, None at the end."""
        while True:
            self._read_ahead(cursor)
            mark = cursor.fold.mark.offset
            while self._pending and self._pending[0][0] < mark:
                as_of, offset, _ = heappop(self._pending)
                self.late.append((as_of, offset))
            if self._pending and self._is_at(cursor, self._pending[0][0]):
                return heappop(self._pending)[1:]
            upto = self._pending[0][0] if self._pending else self._fold_to
            if self._fold_on(cursor, upto):
                continue
            if self._position < self._end:  # only picks on what was folded can follow
                self._drop()
                self._read()
            elif self._pending:
                return heappop(self._pending)[1:]
            else:
                return None

    def _is_at(self, cursor: FoldCursor, as_of: int) -> bool:
        """Whether the fold is the state of `as_of`: at it, with nothing before it left to fold."""
        if cursor.fold.mark.offset >= as_of:
            return cursor.fold.mark.offset == as_of
        if cursor.stopped is not None:
            return True
        return bool(self._buffer) and self._buffer[0].first_offset + self._used > as_of

    def _fold_on(self, cursor: FoldCursor, upto: int) -> bool:
        """Fold the rest of one batch up to offset `upto`; False where there is none."""
        if not self._buffer:
            return False
        batch, used = self._buffer[0], self._used
        first = batch.first_offset + used
        count = min(len(batch.records) - used, upto - first + 1)
        if count <= 0:
            return False
        whole = used == 0 and count == len(batch.records)
        cursor.apply(first, batch.records if whole else batch.records[used : used + count])
        if used + count == len(batch.records):
            self._buffer.popleft()
            self._buffered -= _cost(batch.records)
            self._used = 0
            self.own.forget(cursor.fold.mark.offset)
        else:
            self._used += count
        return True

    def _skip_to(self, mark: int) -> None:
        """A checkpoint inside the first stretch: the fold holds what the stretch begins with."""
        while self._buffer and self._buffer[0].first_offset + len(self._buffer[0].records) - 1 <= mark:
            self._buffered -= _cost(self._buffer.popleft().records)
        if self._buffer:
            self._used = max(0, mark + 1 - self._buffer[0].first_offset)
        self.own.forget(mark)

    def _drop(self) -> None:
        self._buffer.clear()
        self._buffered = self._used = 0

    def _read_ahead(self, cursor: FoldCursor) -> None:
        stamp = cursor.fold.state.intake.stamp
        while self._position < self._end and self._buffered < AHEAD_BYTES and self._stamp < stamp + AHEAD_US:
            self._read()

    def _read(self) -> None:
        """One more read of about a megabyte."""
        found = self._reader.read(self._position, READ_BYTES)
        if not found:
            self._end = self._position
        for batch in found:
            if batch.first_offset >= self._end:
                self._position = self._end
                return
            records = batch.records
            if batch.first_offset + len(records) > self._end:
                records = records[: self._end - batch.first_offset]
            self._buffer.append(RecordBatch(batch.first_offset, records))
            self._buffered += _cost(records)
            self._look(batch.first_offset, records)
            if batch.first_offset < self._stop:
                self.records += min(len(records), self._stop - batch.first_offset)
            self._position = batch.first_offset + len(records)

    def _look(self, first_offset: int, records: Sequence[bytes]) -> None:
        for place, data in enumerate(records):
            kind = data[3] or data[5]  # as kind_byte, without its call
            if kind in _TAKEN:
                self._take(first_offset + place, data)
            elif kind == _TICK:
                self._stamp = owner_stamp(data) or self._stamp

    def _take(self, offset: int, data: bytes) -> None:
        record = record_at(offset, data)
        fact = record.fact if record is not None else None
        if isinstance(fact, PicksDistrusted):
            self.distrusted.add(fact)
        if not isinstance(fact, PickMade | DispatchEnded | PicksLost):
            return
        self.own.hold(offset, fact)
        if offset < self._stop:
            self.chains.note(offset, fact)
        if isinstance(fact, PickMade):
            ask = self._ask(offset, fact.as_of)
            if ask is Ask.HERE:
                heappush(self._pending, (fact.as_of, offset, fact))
            elif ask is Ask.APART:
                self.late.append((fact.as_of, offset))

    def _hold_early(self, offset: int, data: bytes) -> None:
        record = record_at(offset, data)
        if record is not None:
            self.own.hold(offset, record.fact)


def _cost(records: Sequence[bytes]) -> int:
    return sum(map(len, records)) + _RECORD_COST * len(records)
