"""A fold that goes forward over a log, begun at the newest checkpoint at or before an offset.

It notes on the way what speaks against the log: records that the codec refuses, and ticks
that do not agree. A fold that stops stays where it is; what was to be asked behind that
offset cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from projections.checkpoint import CheckpointRefused, fold_from_checkpoint
from projections.events.control import ClockTicked
from projections.events.envelope import NOTHING
from projections.events.kinds import Kind
from projections.events.ports import CheckpointInfo, CheckpointStore, LogCorrupt, LogReader
from projections.fold import Fold, FoldStopped
from projections.notices import IntakeNotice, IntakeResult, Notice
from replay.agreement import Agreement
from replay.log_walk import Progress, batches_of

_TICK = int(Kind.CLOCK_TICKED)
NOTICES_KEPT = 4_096
Watcher = Callable[[int, Any], None]


class FoldCursor:
    """See the module's text.

    base: everything up to this offset is in the fold from the start. stopped: why it goes no
    further. records: folded here. refused: records that are no records of ours; first_refused
    is the offset of the first. watch: fact type -> told (offset, fact) once it was folded.
    """

    def __init__(self, fold: Fold, base: int, watch: dict[type, Watcher] | None = None) -> None:
        self.fold = fold
        self.base = base
        self.stopped: FoldStopped | None = None
        self.records = 0
        self.refused = 0
        self.first_refused: int | None = None
        self.agreement = Agreement()
        self.seen_notices: Callable[[int, Sequence[Notice]], None] | None = None
        self._watch = watch or {}
        self._notices: list[Notice] = []

    def apply(self, first_offset: int, records: Sequence[bytes]) -> None:
        """Fold records that follow the mark. Raises nothing: see `stopped`."""
        if self.stopped is not None:
            return
        apply, notices, watch = self.fold.apply, self._notices, self._watch
        offset = first_offset
        try:
            for data in records:
                if (data[3] or data[5]) == _TICK:  # as kind_byte, without its call
                    self._tick(offset, data)
                else:
                    fact = apply(offset, data, notices)
                    if fact is None:
                        self._without_effect(offset)
                    elif type(fact) in watch:
                        watch[type(fact)](offset, fact)
                offset += 1
        except FoldStopped as stop:
            self.stopped = stop
        self.records += offset - first_offset
        if len(notices) > NOTICES_KEPT or self.seen_notices is not None:
            if self.seen_notices is not None:
                self.seen_notices(offset - 1, notices)
            notices.clear()

    def walk(self, reader: LogReader, upto: int, on_progress: Progress | None = None) -> None:
        """Read the log up to offset `upto`, itself included, and fold it."""
        start = max(self.fold.mark.offset + 1, reader.first_offset())
        for batch in batches_of(reader, start, upto + 1):
            self.apply(batch.first_offset, batch.records)
            if self.stopped is not None:
                return
            if on_progress is not None:
                on_progress(batch.first_offset)

    def _tick(self, offset: int, data: bytes) -> None:
        """Fold what may be a tick, and compare notes."""
        fact = self.fold.apply(offset, data, self._notices)
        if fact is None:
            self._without_effect(offset)
        elif type(fact) is ClockTicked:
            self.agreement.tick(offset, fact, *self.fold.state.status.closed_tick, self.fold.digests())
        if type(fact) in self._watch:
            self._watch[type(fact)](offset, fact)

    def _without_effect(self, offset: int) -> None:
        notice = self._notices[-1] if self._notices else None
        if isinstance(notice, IntakeNotice) and notice == (IntakeResult.REFUSED_BYTES, offset, notice.detail):
            self.refused += 1
            self.first_refused = offset if self.first_refused is None else self.first_refused


def cursor_at(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    offset: int,
    condemned: frozenset[int],
    watch: dict[type, Watcher] | None = None,
) -> FoldCursor:
    """A cursor at or before `offset`: from the newest checkpoint that serves, else the log's beginning.

    A checkpoint serves when it checks and the records behind it are still there. What is
    wrong with one is `picklog log verify`'s to say.
    """
    for info in reversed(usable_checkpoints(reader, checkpoints, offset)):
        assert checkpoints is not None
        try:
            fold = fold_from_checkpoint(checkpoints.read(info), condemned=condemned)
        except (LogCorrupt, CheckpointRefused, FileNotFoundError):
            continue
        return FoldCursor(fold, info.offset, watch)
    first = reader.first_offset()
    return FoldCursor(Fold(condemned=condemned), NOTHING.offset if first == 0 else first - 1, watch)


def usable_checkpoints(
    reader: LogReader, checkpoints: CheckpointStore | None, offset: int
) -> list[CheckpointInfo]:
    """Checkpoints at or before `offset` whose tail is kept, oldest first."""
    if checkpoints is None:
        return []
    first = reader.first_offset()
    return [info for info in checkpoints.list() if first - 1 <= info.offset <= offset]
