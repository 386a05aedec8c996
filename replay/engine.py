"""Fold a log to the as-of of each recorded pick, with the overlay that the replica saw.

A pick is written after the state that it was made on: its record stands at some offset
and names an earlier one as its as-of. So two cursors walk the log. A skim finds, by kind
alone, where picks stand and which offsets are condemned. Then the fold goes from as-of
to as-of in order while a scout, a little ahead, holds the facts of picks and ends that
the fold has not reached: the overlay of a pick is built from them (decision 28).

Memory is 16 bytes a pick for the order of asking, plus the scout's distance, which is
about a second of picks on a healthy log.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from projections.checkpoint import fold_from_checkpoint
from projections.events.codec import RecordRefused, decode_record, peek_kind
from projections.events.control import RecordCondemned
from projections.events.envelope import NOTHING, Record
from projections.events.held import SettingsHeld
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, LostPick, PickMade, PicksLost, own_number
from projections.events.ports import CheckpointInfo, CheckpointStore, LogCorrupt, LogReader
from projections.fold import Fold, FoldStopped
from projections.notices import Notice
from projections.view import Overlay, View

READ_BYTES = 1 << 20
_OWN_KINDS = frozenset((Kind.PICK_MADE, Kind.DISPATCH_ENDED, Kind.PICKS_LOST))

OwnFact = PickMade | DispatchEnded | LostPick


class Unverifiable(Enum):
    """Why a recorded pick cannot be asked again. Never a difference."""

    TOO_OLD = "its as-of is older than the oldest state that is kept"
    SUSPECT = "it was made on a fold that had stopped or disagreed"
    OVERLAY = "records of the same replica before it are missing"
    SETTINGS = "the settings version that it names is unknown"
    FOLD_STOPPED = "the fold stops before its as-of"


class Asked(NamedTuple):
    """A recorded pick with all that is needed to ask it again, or the reason why not."""

    offset: int
    fact: PickMade
    view: View | None
    settings: SettingsHeld | None
    flags: tuple[int, ...]
    unverifiable: Unverifiable | None


class Skim(NamedTuple):
    """Where picks stand in a range of a log."""

    as_ofs: array[int]
    offsets: array[int]
    condemned: frozenset[int]
    records: int


def records_of(reader: LogReader, start: int, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, record bytes) from `start` up to `stop` or the committed end at call time."""
    end = reader.end_offset() if stop is None else min(stop, reader.end_offset())
    position = start
    while position < end:
        batches = reader.read(position, READ_BYTES)
        if not batches:
            return
        for batch in batches:
            offset = batch.first_offset
            for data in batch.records:
                if offset >= end:
                    return
                if offset >= position:
                    yield offset, data
                offset += 1
            position = offset


def skim(
    reader: LogReader, start: int, stop: int | None, on_progress: Callable[[int], None] | None = None
) -> Skim:
    """Find picks in [start, stop) by kind; condemned offsets also beyond it, since they point back."""
    end = reader.end_offset()
    last = end if stop is None else min(stop, end)
    pairs: list[tuple[int, int]] = []
    condemned: set[int] = set()
    count = 0
    for offset, data in records_of(reader, start, end):
        count += 1
        kind = peek_kind(data)
        if kind == Kind.PICK_MADE and offset < last:
            fact = _fact_at(offset, data)
            if isinstance(fact, PickMade):
                pairs.append((fact.as_of, offset))
        elif kind == Kind.RECORD_CONDEMNED:
            fact = _fact_at(offset, data)
            if isinstance(fact, RecordCondemned):
                condemned.add(fact.offset)
        if on_progress is not None and count % 8192 == 0:
            on_progress(offset)
    pairs.sort()
    return Skim(
        array("q", (a for a, _ in pairs)), array("q", (o for _, o in pairs)), frozenset(condemned), count
    )


def _fact_at(offset: int, data: bytes) -> object:
    try:
        return decode_record(offset, data).fact
    except RecordRefused:
        return None


class _Scout:
    """Reads ahead of the fold and keeps the picks and ends that it has not reached."""

    def __init__(self, reader: LogReader, start: int) -> None:
        self._records = records_of(reader, start)
        self._picks: dict[int, PickMade] = {}
        self._own: dict[bytes, deque[tuple[int, int, OwnFact]]] = {}

    def pick_at(self, offset: int) -> PickMade:
        """The pick at `offset`; reads on until it is found."""
        while offset not in self._picks:
            at, data = next(self._records)
            if peek_kind(data) in _OWN_KINDS:
                self._hold(decode_record(at, data))
        return self._picks.pop(offset)

    def _hold(self, record: Record) -> None:
        fact = record.fact
        if isinstance(fact, PickMade):
            self._picks[record.offset] = fact
            self._line(fact.replica).append((own_number(fact), record.offset, fact))
        elif isinstance(fact, DispatchEnded):
            self._line(fact.replica).append((own_number(fact), record.offset, fact))
        elif isinstance(fact, PicksLost):
            for lost in fact.lines:
                self._line(fact.replica).append((own_number(lost), record.offset, lost))

    def _line(self, replica: bytes) -> deque[tuple[int, int, OwnFact]]:
        return self._own.setdefault(replica, deque())

    def overlay(self, pick: PickMade, folded_seq: int) -> Overlay | None:
        """Own facts up to the pick's own_seq beyond its as-of; None when one is missing."""
        line = self._line(pick.replica)
        while line and line[0][1] <= pick.as_of:
            line.popleft()
        overlay = Overlay()
        numbers = set(range(folded_seq + 1, pick.own_seq + 1))
        seen: set[int] = set()
        for number, offset, fact in sorted(line, key=lambda entry: entry[:2]):
            if not folded_seq < number <= pick.own_seq or offset <= pick.as_of or number in seen:
                continue  # later, or held by the fold, which a copy that arrived twice does not undo
            seen.add(number)
            numbers.discard(number)
            if isinstance(fact, LostPick):
                overlay.add_lost(pick.replica, fact, pick.own_seq)
                if fact.ended_seq is not None and fact.ended_seq <= pick.own_seq:
                    numbers.discard(fact.ended_seq)
            elif isinstance(fact, PickMade):
                overlay.add_pick(fact)
            else:
                overlay.add_end(fact)
        return None if numbers else overlay


class Replay:
    """Walks one range of a log pick by pick.

    start, stop: offsets; picks whose record stands in [start, stop) are asked.
    Raises what the reader raises (OffsetGone, LogCorrupt).
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore | None,
        start: int | None = None,
        stop: int | None = None,
    ) -> None:
        self._reader = reader
        self._checkpoints = checkpoints
        self._start = reader.first_offset() if start is None else max(start, reader.first_offset())
        self._stop = stop
        self.skimmed: Skim | None = None
        self.notices: list[Notice] = []

    def asked(self, on_progress: Callable[[int], None] | None = None) -> Iterator[Asked]:
        """Each pick of the range in order of its as-of, ready to be asked again."""
        found = self.skimmed = skim(self._reader, self._start, self._stop, on_progress)
        if not found.offsets:
            return
        fold, base = self._base(found.as_ofs[0], found.condemned)
        scout = _Scout(
            self._reader, max(min(found.as_ofs[0] + 1, found.offsets[0]), self._reader.first_offset())
        )
        cursor = records_of(self._reader, max(base + 1, self._reader.first_offset()))
        waiting: tuple[int, bytes] | None = None
        stopped = False
        for as_of, offset in zip(found.as_ofs, found.offsets, strict=True):
            while not stopped and fold.mark.offset < as_of:
                waiting = waiting or next(cursor, None)
                if waiting is None or waiting[0] > as_of:
                    break
                try:
                    fold.apply(waiting[0], waiting[1], self.notices)
                except FoldStopped:
                    stopped = True
                self.notices.clear()
                waiting = None
            yield self._ask(fold, scout, offset, base, stopped)
            if on_progress is not None:
                on_progress(offset)

    def _ask(self, fold: Fold, scout: _Scout, offset: int, base: int, stopped: bool) -> Asked:
        fact = scout.pick_at(offset)
        replica = fold.state.status.replica(fact.replica)
        flags = replica.flags if replica is not None else ()
        reason: Unverifiable | None = None
        if fact.suspect:
            reason = Unverifiable.SUSPECT
        elif fact.as_of < base:
            reason = Unverifiable.TOO_OLD
        elif stopped:
            reason = Unverifiable.FOLD_STOPPED
        if reason is not None:
            return Asked(offset, fact, None, None, flags, reason)
        settings = fold.settings(fact.config_version)
        if settings is None:
            return Asked(offset, fact, None, None, flags, Unverifiable.SETTINGS)
        overlay = scout.overlay(fact, replica.own_seq if replica is not None else 0)
        if overlay is None:
            return Asked(offset, fact, None, settings, flags, Unverifiable.OVERLAY)
        return Asked(offset, fact, fold.view(overlay), settings, flags, None)

    def _base(self, as_of: int, condemned: frozenset[int]) -> tuple[Fold, int]:
        """A fold at or before `as_of`: from the newest usable checkpoint, else from the log's beginning."""
        for info in reversed(self._usable(as_of)):
            assert self._checkpoints is not None
            try:
                return fold_from_checkpoint(self._checkpoints.read(info), condemned=condemned), info.offset
            except LogCorrupt:
                continue  # an older one will do; what is wrong is `picklog log verify`'s to say
        first = self._reader.first_offset()
        return Fold(condemned=condemned), NOTHING.offset if first == 0 else first - 1

    def _usable(self, as_of: int) -> list[CheckpointInfo]:
        if self._checkpoints is None:
            return []
        first = self._reader.first_offset()
        return [info for info in self._checkpoints.list() if first - 1 <= info.offset <= as_of]
