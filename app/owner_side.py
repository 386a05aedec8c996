"""What a process does for the log that it owns: ingest, ticks, settings, raw frames, its follower.

Built in every process that may own a log. Nothing of it speaks before the fold holds this process's
own claim; from then on the process says what only the owner of a log says. On the embedded log that
is so from the start; on Kafka a standby waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import time_ns
from typing import Protocol

from app.config_model import Config
from app.fold_start import FoldStart
from app.ingest_side import IngestSide
from app.log_access import LogAccess
from app.log_tail import monotonic_us
from app.observe import Observer
from app.own_records import OwnRecords
from app.owner import Owner
from app.part_settings import discovery_settings, subscription_settings
from app.processes import Child
from app.reloading import Reloading
from app.tail import Seen, Tail
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import FrameKeeper
from ingest.subscriptions.engine_bindings import EngineRow
from projections.events.control import ConfigProposed, RecordCondemned
from projections.events.discovery import KeysDropped, PassSettled
from projections.events.ports import LogError
from projections.fold import Fold

CHECKPOINT_WAIT_S = 3.0
CHECKPOINT_LOOK_S = 0.05


class Parts(Protocol):
    """The process that may own its log."""

    access: LogAccess
    observer: Observer
    own: OwnRecords
    reloading: Reloading
    follower: Child | None

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def newest_fold(self) -> Fold:
        """The fold that has read most."""


class OwnerSide:
    """Use `claimed` once there is a writer, then `folded` after each slice. Call from the event loop.

    raw: where raw frames go, None where none are kept.
    """

    def __init__(self, process: Parts, tail: Tail, raw: FrameKeeper | None) -> None:
        self.owner = Owner(
            tail,
            process.own.of_owner,
            checkpoint_every_us=process.config.checkpoints.every.us,
            now_us=monotonic_us(),
        )
        self.ingest: IngestSide | None = None
        self.is_owner = False
        self._claim: tuple[bytes, int] | None = None  # the newest own one that the fold has read
        self._process = process
        self._raw = raw

    def claimed(self, writer: LogWriter) -> None:
        """There is a writer that owns the log, or will."""
        process = self._process
        self.ingest = IngestSide(
            writer,
            process.observer,
            discovery_settings(process.config, process.reloading.inactive),
            subscription_settings(process.config),
            self._raw,
        )

    def folded(self, fold: Fold, writer: LogWriter, start: FoldStart, on_owner: Callable[[], None]) -> None:
        """A slice was folded. on_owner: called once, when the own claim is folded, before ingest begins."""
        if self.ingest is None:
            return
        if self.is_owner or self.ingest.held is not None:
            self.ingest.follow(fold)
        claim = writer.writer, writer.epoch
        if claim == self._claim or claim != fold.state.intake.owner:
            return
        self._claim = claim
        if self.is_owner:  # an append was unclear, and the writer another one since
            self.ingest.say_again()
        else:
            self.is_owner = True
            self.ingest.take_over(fold)
            on_owner()
            if start.incomplete:
                self._process.own.of_owner(KeysDropped((), "all"))
            self._process.reloading.begin_owning()
            self.ingest.start(fold)

    def stand_by(self, fold: Fold) -> None:
        """The fold has caught up with a log that another process owns, or nobody yet."""
        if self.ingest is not None and not self.is_owner:
            self.ingest.stand_by(fold)

    def seen(self, seen: Seen) -> None:
        """A watched fact was folded."""
        fact = seen.fact
        if not self.is_owner or self.ingest is None:
            return
        if isinstance(fact, ConfigProposed):
            self._process.reloading.on_proposed(fact)
        elif isinstance(fact, PassSettled):
            fold = self._process.newest_fold
            held = fold.state.registry.passes.get(fact.namespaces[0]) if fact.namespaces else None
            if held is not None and not held.settled:
                self.ingest.repeat_pass(fold)

    def condemn(self, offset: int, detail: str) -> None:
        """The own fold stopped there: let everybody skip it. Not the word of a standby."""
        writer = self._process.own.writer
        if not self.is_owner and (writer is None or not writer.is_owner):
            return
        self._process.own.of_owner(RecordCondemned(offset, detail[:1000]))

    def tick(self) -> None:
        """Call several times a second."""
        if self.is_owner:
            self.owner.on_tick(monotonic_us(), time_ns() // 1000)
        if self.ingest is not None:
            self.ingest.tick(self._process.newest_fold)

    def engine_rows(self) -> list[EngineRow]:
        """Which worker each configured engine belongs to, as this process has it."""
        return self.ingest.engine_rows() if self.ingest is not None else []

    async def stop(self) -> None:
        """End discovery and subscriptions."""
        if self.ingest is not None:
            await self.ingest.stop()

    async def last_checkpoint(self, writer: LogWriter, is_impatient: Callable[[], bool]) -> None:
        """Let the follower write the state of this end, so that the next start is quick."""
        access, follower = self._process.access, self._process.follower
        if not self.is_owner or follower is None or is_impatient():
            return
        wanted = access.reader.end_offset()
        self.owner.checkpoint_now("shutdown")
        try:
            async with asyncio.timeout(CHECKPOINT_WAIT_S):
                await writer.flush()
        except (LogError, TimeoutError):
            return
        deadline = asyncio.get_running_loop().time() + CHECKPOINT_WAIT_S
        while asyncio.get_running_loop().time() < deadline and follower.pid is not None:
            newest = access.checkpoints.list()[-1:]
            if (newest and newest[0].offset >= wanted) or is_impatient():
                return
            await asyncio.sleep(CHECKPOINT_LOOK_S)

    @property
    def raw_dropped(self) -> int:
        """Raw frames that were not kept, since start."""
        return self._raw.dropped if self._raw is not None else 0

    def close(self) -> None:
        """Behind the last append. In a thread."""
        if self._raw is not None:
            self._raw.close()
