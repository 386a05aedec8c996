"""Walk a log pick by pick: each with the state and the overlay that it was made on.

A scout reads ahead and a fold follows it from as-of to as-of, so a log of any length is
read once and in constant memory. Late picks, whose as-of lies further back than the scout
looks, are asked at the end on folds of their own; so is a single pick at a known offset.

A long log can be walked in parts by several processes, cut at checkpoints: each part asks
the picks that were made on its own stretch of states, of which the newest stand a little
behind its end. Every pick is asked by exactly one part, and the totals are those of one
walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from projections.events.held import SettingsHeld
from projections.events.picks import PickMade
from projections.events.ports import CheckpointStore, LogReader
from projections.view import View
from replay.condemned import condemned_of
from replay.distrusted import Distrusted, look_behind
from replay.fold_cursor import FoldCursor, cursor_at, usable_checkpoints
from replay.log_walk import Progress, kind_byte, record_at, records_of
from replay.own_facts import OWN_KINDS, OwnFacts
from replay.scout import Ask, Scout
from router.picker.pick_flags import PICK_FLAGS

__all__ = ["Asked", "Part", "Replay", "Unverifiable", "records_of"]

OVERLAP_RECORDS = 50_000  # a part looks this far behind its end for picks on its own states
LATE_PICKS_MAX = 10_000
NEARER_RECORDS = 20_000  # a checkpoint this much nearer is worth its loading


class Unverifiable(Enum):
    """Why a recorded pick cannot be asked again. Never a difference."""

    TOO_OLD = "its as-of is older than the oldest state that is kept"
    SUSPECT = "it was made on a fold that had stopped or disagreed"
    OVERLAY = "records of the same replica before it are missing"
    SETTINGS = "the settings version that it names is unknown"
    FOLD_STOPPED = "the fold stops before its as-of"
    FLAGS = "its replica picked by numbered behaviours that this release does not know"
    LAG = "it was recorded too long after its as-of, as very many others were"


class Asked(NamedTuple):
    """A recorded pick with all that is needed to ask it again, or the reason why not.

    The view is valid until the next pick is taken. version: release of the process that made
    it, "" where the log does not say.
    """

    offset: int
    fact: PickMade
    view: View | None
    settings: SettingsHeld | None
    flags: tuple[int, ...]
    unverifiable: Unverifiable | None
    version: str = ""


class Part(NamedTuple):
    """A stretch of a log: records in [start, stop).

    floor: offset of the checkpoint that it begins behind, below: of the one that the part
    before begins behind; None in the first. has_next: whether another part follows.
    """

    start: int
    stop: int
    floor: int | None = None
    below: int | None = None
    has_next: bool = False

    def ask(self, offset: int, as_of: int) -> Ask:
        """Who asks a pick that stands at `offset`. The parts of a log agree on it."""
        if offset >= self.stop:
            mine = as_of < self.stop - 1 and as_of >= (-1 if self.floor is None else self.floor)
            return Ask.HERE if mine else Ask.ELSEWHERE
        if self.floor is None or as_of >= self.floor:
            return Ask.HERE
        near = offset < self.start + OVERLAP_RECORDS
        return Ask.ELSEWHERE if near and (self.below is None or as_of >= self.below) else Ask.APART


class Replay:
    """Walks one part of a log pick by pick.

    start, stop: offsets; picks whose record stands in [start, stop) are asked. condemned:
    offsets that the whole log condemns; looked up where they are not given.
    Raises what the reader raises (OffsetGone, LogCorrupt).
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore | None,
        start: int | None = None,
        stop: int | None = None,
        *,
        condemned: frozenset[int] | None = None,
        part: Part | None = None,
    ) -> None:
        first, end = reader.first_offset(), reader.end_offset()
        if part is None:
            part = Part(first if start is None else max(start, first), end if stop is None else stop)
        self._reader = reader
        self._checkpoints = checkpoints
        self._part = part._replace(start=max(part.start, first), stop=min(part.stop, end))
        self._end = min(end, part.stop + OVERLAP_RECORDS) if part.has_next else self._part.stop
        if condemned is None:
            condemned = condemned_of(reader, checkpoints, self._part.start)
        self.condemned = condemned
        part = self._part
        self.scout = Scout(reader, part.start, part.stop, max(part.start, self._end), part.ask)
        self.cursor: FoldCursor | None = None

    @property
    def records(self) -> int:
        """Records of the range that were read."""
        return self.scout.records

    def asked(self, on_progress: Progress | None = None) -> Iterator[Asked]:
        """Each pick of the range in order of its as-of, ready to be asked again; late ones last."""
        scout = self.scout
        look_behind(self._reader, max(self._part.start, self._end), scout.distrusted)
        first = scout.begin()
        if first is not None:
            cursor = self.cursor = cursor_at(self._reader, self._checkpoints, first, self.condemned)
            scout.take_back(cursor)
            while (found := scout.next_pick(cursor)) is not None:
                yield ready(cursor, scout.own, *found, scout.distrusted)
                if on_progress is not None:
                    on_progress(cursor.fold.mark.offset)
        yield from self._late(sorted(scout.late))

    def at(self, offset: int, pick: PickMade) -> Asked:
        """The pick that stands at `offset`, alone."""
        look_behind(self._reader, offset, self.scout.distrusted)
        return next(self._late([(pick.as_of, offset)]))

    def _late(self, late: list[tuple[int, int]]) -> Iterator[Asked]:
        cursor: FoldCursor | None = None
        for place, (as_of, offset) in enumerate(late):
            own = OwnFacts()
            fact = _pick_at(self._reader, offset)
            if place >= LATE_PICKS_MAX:
                yield Asked(offset, fact, None, None, (), Unverifiable.LAG)
                continue
            if cursor is None or self._has_nearer(cursor, as_of):
                cursor = cursor_at(self._reader, self._checkpoints, as_of, self.condemned)
            self.cursor = self.cursor or cursor
            cursor.walk(self._reader, as_of)
            for at, data in records_of(self._reader, max(as_of + 1, self._reader.first_offset()), offset):
                if kind_byte(data) in OWN_KINDS:
                    record = record_at(at, data)
                    if record is not None and getattr(record.fact, "replica", None) == fact.replica:
                        own.hold(at, record.fact)
            yield ready(cursor, own, offset, fact, self.scout.distrusted)

    def _has_nearer(self, cursor: FoldCursor, as_of: int) -> bool:
        nearest = usable_checkpoints(self._reader, self._checkpoints, as_of)
        return bool(nearest) and nearest[-1].offset > cursor.fold.mark.offset + NEARER_RECORDS


def parts_of(
    reader: LogReader, checkpoints: CheckpointStore, start: int, stop: int, count: int
) -> list[Part]:
    """The range in at most `count` parts of about one length, cut at checkpoints."""
    start, stop = max(start, reader.first_offset()), min(stop, reader.end_offset())
    places = [info.offset for info in usable_checkpoints(reader, checkpoints, stop - 2)]
    places = [offset for offset in places if start + OVERLAP_RECORDS <= offset < stop - OVERLAP_RECORDS]
    cuts: list[int] = []
    for number in range(1, count):
        wanted = start + (stop - start) * number // count
        nearest = min(places, key=lambda offset: abs(offset - wanted), default=None)
        if nearest is not None and (not cuts or nearest > cuts[-1] + OVERLAP_RECORDS):
            cuts.append(nearest)
    parts: list[Part] = []
    for place, begin in enumerate((None, *cuts)):
        below = None if place < 2 else cuts[place - 2]
        first = start if begin is None else begin + 1
        last = cuts[place] + 1 if place < len(cuts) else stop
        parts.append(Part(first, last, begin, below, place < len(cuts)))
    return parts


def ready(cursor: FoldCursor, own: OwnFacts, offset: int, fact: PickMade, distrusted: Distrusted) -> Asked:
    """A pick whose as-of the cursor stands at."""
    fold = cursor.fold
    replica = fold.state.status.replica(fact.replica)
    flags, version = (replica.flags, replica.version) if replica is not None else ((), "")
    reason: Unverifiable | None = None
    if fact.suspect or distrusted.names(fact):
        reason = Unverifiable.SUSPECT
    elif fact.as_of < cursor.base:
        reason = Unverifiable.TOO_OLD
    elif cursor.stopped is not None:
        reason = Unverifiable.FOLD_STOPPED
    elif not set(flags) <= set(PICK_FLAGS):
        reason = Unverifiable.FLAGS
    if reason is not None:
        return Asked(offset, fact, None, None, flags, reason, version)
    settings = fold.settings(fact.config_version)
    if settings is None:
        return Asked(offset, fact, None, None, flags, Unverifiable.SETTINGS, version)
    folded_seq = replica.own_seq if replica is not None else 0
    overlay = own.overlay(fact, folded_seq)
    if overlay is None or (_reads_predictions(fact, settings) and own.has_lost(fact, folded_seq)):
        return Asked(offset, fact, None, settings, flags, Unverifiable.OVERLAY, version)
    return Asked(offset, fact, fold.view(overlay), settings, flags, None, version)


def _reads_predictions(fact: PickMade, settings: SettingsHeld) -> bool:
    """Whether own picks stood for blocks: of lost ones, the line that was recorded names none."""
    kv = settings.pick.kv
    return (
        kv is not None and bool(fact.question.hashes) and bool(kv.predicted_ttl_us or kv.approximate_ttl_us)
    )


def _pick_at(reader: LogReader, offset: int) -> PickMade:
    for at, data in records_of(reader, offset, offset + 1):
        record = record_at(at, data)
        if record is not None and isinstance(record.fact, PickMade):
            return record.fact
    raise LookupError(f"no pick at offset {offset}")
