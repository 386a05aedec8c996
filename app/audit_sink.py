"""The audit's sink: follows the log, writes rows, catches up from its own mark.

It reads with a cursor of its own and reads on only when there is room, so that the log
itself is the buffer: at most two batches of rows are in memory, one being written while
the next is projected. A database that is away, locked or full is tried again with a growing pause, the
same batch each time; nothing is dropped, and no request waits, because this runs in the follower.

On resume the mark must lie in this very log: the log's id and the check word of the record
at the mark are compared. Where retention removed records before they were written, the
gap is a row of `sink_gaps`, and what goes on behind it begins anew.

Sources: issue text of the audit; decisions 43, 63; field reports B-133, B-135.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from app.audit_candidates import Candidates, RecordedCandidates, candidates_of
from app.audit_database import AuditAway, AuditError, AuditRefused
from app.audit_figures import AuditFigures, Failure
from app.audit_projector import AuditProjector
from app.audit_rows import AuditRows, GapNoticed, RowStore, SinkMark
from app.audit_writer import SINK
from app.fold_start import FoldStart, start_fold
from app.sql_rows import SinkSettings, SqlRows
from projections.events.codec import check_word, peek_kind
from projections.events.control import RecordCondemned
from projections.events.kinds import Kind
from projections.events.ports import (
    CheckpointStore,
    LogError,
    LogReader,
    OffsetGone,
    RecordBatch,
)
from projections.fold import FoldStopped
from replay.log_walk import record_at

log = structlog.get_logger("picklog.audit")

READ_BYTES = 1 << 19
ROWS_MAX = 20_000  # of one transaction, exceeded by the rows of one record at most
FLUSH_S = 0.25  # how long rows wait for more before they are written
MARK_S = 5.0  # how long a mark may wait that moved without rows
WAIT_S = 0.5
SLICE_S = 0.002
BREATH_S = 0.02
AHEAD_RECORDS_MAX = 2_000_000  # read and not projected, where rows wait for their state
PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 30.0


class MarkMismatch(AuditRefused):
    """The mark in the database is not a place of this log."""


def check_mark(reader: LogReader, mark: SinkMark, name: str = SqlRows.name) -> None:
    """Raises MarkMismatch unless the log holds, or held, the record of the mark. name: of what holds it."""
    if mark.log_id != reader.log_id:
        raise MarkMismatch(
            f"{name} follows log {mark.log_id.hex()}, this is log {reader.log_id.hex()}:"
            " move it aside or name another one in the configuration"
        )
    if mark.offset >= reader.end_offset():
        raise MarkMismatch(
            f"{name} is at offset {mark.offset}, the log ends at {reader.end_offset() - 1}:"
            " records that it had are gone; restore the log, or move it aside"
        )
    if mark.offset < reader.first_offset():
        return
    batches = reader.read(mark.offset, 1)
    same = batches and batches[0].first_offset == mark.offset
    if not same or check_word(batches[0].records[0]) != mark.check:
        raise MarkMismatch(
            f"the log's record at offset {mark.offset} is not the one that {name} has seen:"
            " the log was cut and written anew; move it aside"
        )


class AuditSink:
    """Follows one log into one database. on_written(offset): told after each transaction.

    store: where rows go, the database of the settings unless it is given.
    patient: waits for a database that is away; otherwise that is raised. figures: kept up, of its own
    unless they are given. rows: so far.
    """

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore | None,
        settings: SinkSettings,
        *,
        sink: str = SINK,
        on_written: Callable[[int], None] | None = None,
        patient: bool = True,
        pause_s_min: float = PAUSE_S_MIN,
        store: RowStore | None = None,
        figures: AuditFigures | None = None,
    ) -> None:
        self._reader = reader
        self._checkpoints = checkpoints
        self._settings = settings
        self._on_written = on_written
        self._patient = patient
        self._pause_s_min = pause_s_min
        self._rows_go_to: RowStore = store or SqlRows(settings, reader.log_id, sink)
        self._condemned: frozenset[int] = frozenset()
        self._candidates: Candidates = RecordedCandidates()
        self._ahead: deque[RecordBatch] = deque()  # read, and not projected yet
        self._position = 0  # where reading goes on
        self.figures = AuditFigures() if figures is None else figures
        self.rows = 0

    async def run(self) -> None:
        """Follow until cancelled. Nothing but a bug ends it: what is wrong is logged and tried again."""
        pause = self._pause_s_min
        while True:
            began = time.monotonic()
            try:
                await self.follow()
            except FoldStopped as stop:
                await self._condemnation(stop.offset)
                log.warning("the audit folds anew", cause=str(stop))
            except OffsetGone:
                log.warning("the audit was overtaken by the log's retention")
            except (AuditError, LogError, OSError) as problem:
                self.figures.failed(_failure(problem))
                log.error("the audit does not go on", cause=str(problem), again_s=pause)
            if time.monotonic() - began > PAUSE_S_MAX:
                pause = self._pause_s_min
            await asyncio.sleep(pause)
            pause = min(PAUSE_S_MAX, pause * 2)

    async def follow(self, until: int | None = None) -> None:
        """Prepare the database and follow from its mark, for ever or up to offset `until` - 1.

        Raises what is wrong: AuditRefused, AuditAway before the first read, FoldStopped,
        OffsetGone, LogCorrupt.
        """
        await self._rows_go_to.prepare()
        mark = await self._rows_go_to.mark()
        projector, rows = self._start(mark)
        storing: asyncio.Task[None] | None = None
        try:
            while True:
                more = await self._collect(projector, rows, until)
                if storing is not None:
                    await storing
                storing = asyncio.create_task(self._store(rows))
                rows = AuditRows()
                if not more:
                    await storing
                    return
        finally:
            if storing is not None and not storing.done():
                storing.cancel()
                await asyncio.gather(storing, return_exceptions=True)

    async def finish(self, seconds_max: float) -> None:
        """Write what the log holds by now, if there is time. Raises nothing: the rest stays in the log."""
        self._patient = False
        try:
            async with asyncio.timeout(seconds_max):
                await self.follow(self._reader.end_offset())
        except (AuditError, FoldStopped, LogError, OSError) as problem:  # a timeout is an OSError
            log.info("the newest records are left to the next start", cause=str(problem) or "no time")

    async def rebuild(self, end: int) -> None:
        """Write every record before `end` from the log's oldest on, whatever is there already.

        For a sink with a name of its own, which it forgets when all is done; the follower's mark
        moves ahead then. Interrupted, it goes on where it was. Raises as `follow`.
        """
        store = self._rows_go_to
        assert isinstance(store, SqlRows)
        await store.prepare()
        follower = store.of_follower()
        known = await follower.mark()
        if known is not None and (known.offset < end or known.log_id != self._reader.log_id):
            check_mark(self._reader, known)  # a copy of the log may be older than the database
        await self.follow(end)
        await store.roll_up_all()
        mark = await store.mark()
        if mark is not None:
            await follower.advance(mark.offset, mark.check)
        await store.writer.forget()

    async def close(self) -> None:
        """Let go of the database."""
        await self._rows_go_to.close()

    # -- where to begin ----------------------------------------------------------------

    def _start(self, mark: SinkMark | None) -> tuple[AuditProjector, AuditRows]:
        reader, rows = self._reader, AuditRows()
        first = reader.first_offset()
        if mark is not None:
            check_mark(reader, mark, self._rows_go_to.name)
        written = first - 1 if mark is None else mark.offset
        lost = max(written, -1) + 1 < first
        start = self._fold_before(max(written, first - 1))
        mark_of_fold = start.fold.mark
        if mark_of_fold.offset > written:  # rows can be said from here on only
            lost = True
        self._candidates = candidates_of(
            self._settings.candidates, reader, self._checkpoints, start.next_offset - 1, self._condemned
        )
        self._ahead.clear()
        projector = AuditProjector(
            start.fold,
            max(written, start.next_offset - 1),
            self._settings.candidates,
            self._candidates,
        )
        if mark is not None and lost:
            at = mark_of_fold.time or time.time_ns() // 1000
            gap = GapNoticed(written + 1, start.next_offset - 1, at, "retention")
            log.error("records were gone before the audit had them", first=gap.first, last=gap.last)
            rows.changes.append((gap.last, gap))
        if mark is None or lost:
            projector.begin(rows)
        if rows.changes and mark_of_fold.offset >= 0:
            rows.last = (mark_of_fold.offset, mark_of_fold.check)
        self._position = start.next_offset
        self.figures.wrote(written, 0)
        return projector, rows

    def _fold_before(self, offset: int) -> FoldStart:
        """A fold at or before an offset; where none can be had, the oldest one behind it."""
        start = start_fold(self._reader, self._checkpoints, before=offset, condemned=self._condemned)
        if not start.incomplete or self._checkpoints is None:
            return start
        for info in self._checkpoints.list():
            later = start_fold(self._reader, self._checkpoints, before=info.offset, condemned=self._condemned)
            if later.checkpoint is not None:
                return later
        return start

    async def _condemnation(self, offset: int) -> None:
        """Skip the record at `offset` next time, if the log says by now that everybody does."""
        position = max(offset, self._reader.first_offset())
        while batches := self._reader.read(position, READ_BYTES):
            for batch in batches:
                for at, data in enumerate(batch.records, batch.first_offset):
                    if peek_kind(data) == Kind.RECORD_CONDEMNED and _condemns(at, data, offset):
                        self._condemned |= {offset}
                        return
                position = batch.first_offset + len(batch.records)
            await asyncio.sleep(0)

    # -- following ---------------------------------------------------------------------

    async def _collect(self, projector: AuditProjector, rows: AuditRows, until: int | None) -> bool:
        """Project until there are enough rows or they have waited long enough; False at `until`."""
        due: float | None = None
        mark_due = time.monotonic() + MARK_S
        while rows.count < ROWS_MAX:
            has_read = self._read(until)
            is_busy = self._candidates.work()
            has_projected = await self._project(projector, rows)
            now = time.monotonic()
            if due is None and rows.count:
                due = now + FLUSH_S
            if has_read or is_busy or has_projected:
                if due is not None and now >= due:
                    break
                await asyncio.sleep(0)
                continue
            if until is not None and self._position >= until:
                return False
            if (due is not None and now >= due) or (rows.last is not None and now >= mark_due):
                break
            wait_s = WAIT_S if due is None else max(0.001, min(WAIT_S, due - now))
            await self._reader.wait(self._position, wait_s)
            await asyncio.sleep(min(wait_s, BREATH_S))  # many records are cheaper than many looks
        return True

    def _read(self, until: int | None) -> bool:
        """Read on, while not much waits to be projected; whether anything was read."""
        if sum(len(batch.records) for batch in self._ahead) > AHEAD_RECORDS_MAX:
            return False
        if until is not None and self._position >= until:
            return False
        batches = self._reader.read(self._position, READ_BYTES)
        for batch in batches:
            if until is not None and batch.first_offset + len(batch.records) > until:
                batch = RecordBatch(batch.first_offset, batch.records[: max(0, until - batch.first_offset)])
            end = batch.first_offset + len(batch.records)
            self._position = max(self._position, end)
            if batch.records:
                self._candidates.read(batch.first_offset, batch.records, until is not None and end >= until)
                self._ahead.append(batch)
        if not batches and until is not None:
            self._position = until
        return bool(batches)

    async def _project(self, projector: AuditProjector, rows: AuditRows) -> bool:
        """Project what can be, giving the loop back now and then; whether there was anything."""
        has_projected = False
        began = time.monotonic()
        while self._ahead and rows.count < ROWS_MAX:
            batch = self._ahead.popleft()
            for place, data in enumerate(batch.records):
                offset = batch.first_offset + place
                if rows.count >= ROWS_MAX or not self._candidates.is_ready(offset):
                    self._ahead.appendleft(RecordBatch(offset, batch.records[place:]))
                    return has_projected
                projector.apply(offset, data, rows)
                has_projected = True
                if not offset % 64 and time.monotonic() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = time.monotonic()
        return has_projected

    async def _store(self, rows: AuditRows) -> None:
        """Write one batch, however often it takes. Raises AuditRefused, AuditAway if not patient."""
        pause = self._pause_s_min
        said = False
        while rows.last is not None:
            try:
                self.rows += await self._rows_go_to.write(rows)
                break
            except AuditAway as problem:
                self.figures.failed(Failure.AWAY)
                if not self._patient:
                    raise
                if not said:
                    where = self._rows_go_to.name
                    log.error(f"{where} is away, rows wait in the log", cause=str(problem))
                    said = True
                await asyncio.sleep(pause)
                pause = min(PAUSE_S_MAX, pause * 2)
        if rows.last is None:
            return
        if said:
            log.info(f"{self._rows_go_to.name} is back", offset=rows.last[0])
        self.figures.wrote(rows.last[0], rows.at)
        if self._on_written is not None:
            self._on_written(rows.last[0])
        await self._rows_go_to.keep_up(rows)


def _failure(problem: Exception) -> Failure:
    if isinstance(problem, AuditRefused):
        return Failure.REFUSED
    return Failure.AWAY if isinstance(problem, AuditAway) else Failure.LOG


def _condemns(at: int, data: bytes, offset: int) -> bool:
    record = record_at(at, data)
    return record is not None and isinstance(record.fact, RecordCondemned) and record.fact.offset == offset
