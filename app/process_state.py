"""What the metrics read of a main process at each scrape: implements `observe_state.StateSource`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import time_ns
from typing import Protocol

from app.folding import Folding
from app.log_access import LogAccess, StoreFigures
from app.log_tail import monotonic_us
from app.observe_state import BackendState, LogFigures, backend_states
from app.pick_log import ReplicaLog
from app.readiness import ready_document
from app.tail import Tail
from ingest.log.appends import Importance
from ingest.log.log_writer import LogWriter
from projections.bounds import SECOND_US
from projections.events.ports import CheckpointStore
from router.prompt.self_check import MatchState
from router.service import RouterService

FIGURES_AGE_S = 5.0  # looking at every segment is not worth a scrape's while


class Parts(Protocol):
    """The parts of a process that figures are read from."""

    folding: Folding
    service: RouterService | None
    access: LogAccess
    pick_log: ReplicaLog

    @property
    def writer(self) -> LogWriter | None:
        """The log's writer, None before the claim stands."""

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where checkpoints are kept."""

    @property
    def raw_dropped(self) -> int:
        """Raw frames that were not kept, since start."""

    def store_figures(self) -> StoreFigures | None:
        """Looks at every segment; None where others keep them."""


class ProcessState:
    """Reads figures of one process. Calls are made on the event loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._read_at = float("-inf")
        self._stored: StoreFigures | None = None
        self._checkpoint_time: int | None = None

    @property
    def tail(self) -> Tail:
        """See StateSource."""
        return self._parts.folding.tail

    def now_us(self) -> int:
        """See StateSource."""
        return monotonic_us()

    def wall_us(self) -> int:
        """See StateSource."""
        return time_ns() // 1000

    def is_ready(self) -> bool:
        """See StateSource."""
        ready: bool = ready_document(self._parts.folding.newest, self._parts.service, monotonic_us())["ready"]
        return ready

    def backends(self) -> Sequence[BackendState]:
        """See StateSource."""
        now_us = int(asyncio.get_running_loop().time() * SECOND_US)
        service = self._parts.service
        return () if service is None else backend_states(service.frontage.table.replicas.values(), now_us)

    def log_figures(self) -> LogFigures:
        """See StateSource."""
        self._refresh()
        access, writer = self._parts.access, self._parts.writer
        stored = self._stored
        spool = writer.spool if writer is not None else None
        return LogFigures(
            access.reader.first_offset(),
            access.reader.end_offset(),
            stored.stored_bytes if stored is not None else None,
            stored.ceiling_bytes if stored is not None else None,
            stored.horizon_us if stored is not None else None,
            access.room.name.lower() if access.room is not None else None,
            writer.pending_bytes if writer is not None else None,
            writer.lost_picks if writer is not None else None,
            _shed(writer, self._parts.raw_dropped),
            self._parts.pick_log.overlay_size,
            stored.routers if stored is not None else None,
            stored.turned_away if stored is not None else None,
            spool.disk_bytes if spool is not None else None,
            spool.records if spool is not None else None,
            writer.is_owner if writer is not None else None,
        )

    def checkpoint_time(self) -> int | None:
        """See StateSource."""
        self._refresh()
        return self._checkpoint_time

    def match_states(self) -> Sequence[MatchState]:
        """See StateSource."""
        service = self._parts.service
        prompts = service.prompts if service is not None else None
        return prompts.match_states() if prompts is not None else ()

    def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._read_at < FIGURES_AGE_S:
            return
        self._read_at = now
        self._stored = self._parts.store_figures()
        newest = self._parts.checkpoints.list()[-1:]
        self._checkpoint_time = newest[0].time if newest else None


def _shed(writer: LogWriter | None, raw_dropped: int) -> tuple[tuple[str, int], ...]:
    if writer is None:
        return ()
    shed = {**writer.shed, Importance.RAW: raw_dropped}
    return tuple((importance.name.lower(), count) for importance, count in shed.items())
