"""Runs verifier and shadow on the log of a data directory: the shell of `app.reasking`.

It reads with a cursor of its own and folds by itself, so that checkpoints and the audit, which
follow the same log, are not held up by it, nor it by them. Whatever goes wrong is told and
tried again from the newest checkpoint; nothing but being cancelled ends it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import structlog

from app.reasking import AHEAD_BYTES, AHEAD_RECORDS, Reasking
from app.shadow import ROWS_MAX, Figures, Rows, RowSink, Shadow, ShadowSettings, SinkAway, Verifier
from app.shadow_settings import ShadowFile
from projections.events.ports import CheckpointStore, LogError, LogReader
from replay.condemned import condemned_of
from replay.engine import Asked
from replay.fold_cursor import cursor_at

log = structlog.get_logger("picklog.shadow")

READ_BYTES = 1 << 20
SLICE_S = 0.002
WAIT_S = 0.25
LOOK_S = 1.0  # how often the shadow's configuration is looked at
FLUSH_S = 0.5  # how long rows wait for more
BREATH_S = 0.02  # many records are cheaper than many looks
PAUSE_S = 5.0


class Asking:
    """See the module's text. shadow: settings that are always asked, instead of those that the log names."""

    def __init__(
        self,
        reader: LogReader,
        checkpoints: CheckpointStore,
        sink: RowSink,
        figures: Figures,
        folder: Path,
        shadow: ShadowSettings | None = None,
        source: LogReader | None = None,
    ) -> None:
        self._reader = reader
        self._source = reader if source is None else source
        self._checkpoints = checkpoints
        self._sink = sink
        self._figures = figures
        self._file = ShadowFile(folder)
        self._fixed = shadow
        self._rows = Rows()
        self._verifier = Verifier(self._rows, figures)
        self._shadow: Shadow | None = None
        self._said_away = False
        self._done = -1
        self.machine: Reasking | None = None

    @property
    def is_shadowed(self) -> bool:
        """Whether a shadow is asked."""
        return self._shadow is not None

    @property
    def lag_records(self) -> int:
        """Records that are committed and not folded here."""
        machine = self.machine
        return self._reader.end_offset() - 1 - machine.cursor.fold.mark.offset if machine is not None else 0

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                await self.follow()
            except (LogError, OSError) as problem:
                log.error("picks are not asked again for now", cause=str(problem), again_s=PAUSE_S)
            except Exception as problem:  # a fault here must cost neither checkpoints nor the audit
                log.error("asking picks again failed", exc_info=problem, again_s=PAUSE_S)
            await asyncio.sleep(PAUSE_S)

    async def follow(self, until: int | None = None) -> None:
        """Ask from the newest checkpoint on, for ever or up to offset `until` - 1; ends where the fold stops.

        Raises what the reader raises.
        """
        machine = self.machine = await self._start(until)
        try:
            await self._follow(machine, until)
        finally:
            self._verifier.look_again(machine, everything=True)

    async def _follow(self, machine: Reasking, until: int | None) -> None:
        looked_at = flushed_at = float("-inf")
        while True:
            now = time.monotonic()
            if now - looked_at >= LOOK_S:
                looked_at = now
                await self._look(machine)
            has_read = self._read(machine, until)
            machine.is_whole = until is not None and machine.position >= until
            is_busy = self._work(machine)
            self._verifier.look_again(machine, everything=machine.is_whole and not is_busy)
            if machine.cursor.stopped is not None:
                log.warning("picks are asked on a new fold", cause=str(machine.cursor.stopped))
                return
            done = machine.is_whole and not is_busy
            if self._rows and (done or now - flushed_at >= FLUSH_S or len(self._rows) >= ROWS_MAX):
                flushed_at = now
                await self._flush()
            if done and not self._rows:
                return
            if not has_read and not is_busy:
                await self._reader.wait(machine.position, WAIT_S)
                await asyncio.sleep(BREATH_S)
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Write what waits, if the sink is there, and let go of it."""
        if self._rows:
            await self._flush(patient=False)
        await self._sink.close()

    # -- inside ------------------------------------------------------------------------

    async def _start(self, until: int | None) -> Reasking:
        """A fold at the newest checkpoint; where the shadow has rows, at one before the last of them.

        With an end, and no rows yet, all of the log is asked.
        """
        first, end = self._reader.first_offset(), self._reader.end_offset()
        condemned = condemned_of(self._source, self._checkpoints, first)
        wanted = (end if until is None else first) - 1
        cursor = cursor_at(self._reader, self._checkpoints, wanted, condemned)
        if self._fixed is not None:
            await self._shadow_of(self._fixed)
        else:
            await self._look(Reasking(cursor))
        if self._shadow is not None and first <= self._done < cursor.fold.mark.offset:
            cursor = cursor_at(self._reader, self._checkpoints, self._done, condemned)
        log.info("picks are asked again", from_offset=cursor.fold.mark.offset + 1)
        return Reasking(cursor)

    async def _shadow_of(self, settings: ShadowSettings) -> None:
        try:
            self._done = await self._sink.mark(settings.digest)
        except SinkAway as problem:
            self._done = -1
            log.warning("rows that a shadow wrote before are not known", cause=str(problem))
        self._shadow = Shadow(settings, self._rows, self._figures, self._done)

    async def _look(self, machine: Reasking) -> None:
        """Add, change or remove the shadow as the settings in force say."""
        if self._fixed is not None:
            return
        wanted = self._file.look(machine.cursor.fold.settings_now)
        held = self._shadow.settings if self._shadow is not None else None
        if wanted == held:
            return
        if wanted is None:
            self._shadow = None
            log.info("no shadow is asked any more")
        else:
            await self._shadow_of(wanted)

    def _read(self, machine: Reasking, until: int | None) -> bool:
        if machine.ahead_bytes > AHEAD_BYTES or len(self._rows) >= ROWS_MAX:
            return False
        if until is not None and machine.position >= until:
            return False
        batches = self._reader.read(machine.position, READ_BYTES)
        for batch in batches:
            records = batch.records
            if until is not None:
                records = records[: max(0, until - batch.first_offset)]
            if records:
                machine.read(batch.first_offset, records)
        return bool(batches)

    def _work(self, machine: Reasking) -> bool:
        """Fold and ask for a moment; whether there is more to do. Full rows have to go first."""
        if self._reader.end_offset() - machine.position > AHEAD_RECORDS:
            for skipped in machine.skip_picks():
                self._ask(machine, skipped)
        began = time.monotonic()
        while time.monotonic() - began < SLICE_S and len(self._rows) < ROWS_MAX:
            is_busy, asked = machine.work()
            if asked is not None:
                self._ask(machine, asked)
            if not is_busy:
                return False
        return True

    def _ask(self, machine: Reasking, asked: Asked) -> None:
        self._verifier.ask(asked, machine)
        if self._shadow is not None:
            self._shadow.ask(asked)

    async def _flush(self, patient: bool = True) -> None:
        """Write what waits; where the sink is away it goes on waiting."""
        waiting = Rows()
        waiting.shadow, waiting.verifications = self._rows.shadow[:], self._rows.verifications[:]
        try:
            await self._sink.write(waiting)
        except SinkAway as problem:
            if not self._said_away:
                self._said_away = True
                log.error("rows of the shadow wait", cause=str(problem))
            if patient:
                await asyncio.sleep(WAIT_S)
            return
        self._said_away = False
        del self._rows.shadow[: len(waiting.shadow)]
        del self._rows.verifications[: len(waiting.verifications)]
