"""What the metrics read of a main process at each scrape: implements `observe_state.StateSource`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from time import time_ns
from typing import NamedTuple, Protocol

from app.folding import Folding
from app.log_tail import monotonic_us
from app.observe_state import BackendState, LogFigures, backend_states
from app.pick_log import ReplicaLog
from app.readiness import ready_document
from app.tail import Tail
from ingest.log.log_writer import LogWriter
from projections.bounds import SECOND_US
from projections.events.ports import CheckpointStore
from router.prompt.self_check import MatchState
from router.service import RouterService

FIGURES_AGE_S = 5.0  # looking at every segment is not worth a scrape's while


class StoreFigures(NamedTuple):
    """Bytes of sealed segments, their ceiling, and how long a record is kept."""

    stored_bytes: int
    ceiling_bytes: int
    horizon_us: int


class Store(Protocol):
    """A log with a measure of its room."""

    @property
    def room(self) -> Enum:
        """What there is room for; names as in `observe_state.ROOMS`."""

    def first_offset(self) -> int:
        """See LogReader."""

    def end_offset(self) -> int:
        """See LogReader."""


class Parts(Protocol):
    """The parts of a process that figures are read from."""

    folding: Folding
    service: RouterService
    pick_log: ReplicaLog

    @property
    def writer(self) -> LogWriter | None:
        """The log's writer, None before the claim stands."""

    @property
    def store(self) -> Store:
        """The log."""

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where checkpoints are kept."""

    def store_figures(self) -> StoreFigures:
        """Looks at every segment."""


class ProcessState:
    """Reads figures of one process. Calls are made on the event loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._read_at = float("-inf")
        self._stored = StoreFigures(0, 0, 0)
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
        return backend_states(self._parts.service.frontage.table.replicas.values(), now_us)

    def log_figures(self) -> LogFigures:
        """See StateSource."""
        self._refresh()
        store, writer = self._parts.store, self._parts.writer
        return LogFigures(
            store.first_offset(),
            store.end_offset(),
            *self._stored,
            store.room.name.lower(),
            writer.pending_bytes if writer is not None else None,
            writer.lost_picks if writer is not None else None,
            _shed(writer),
            self._parts.pick_log.overlay_size,
        )

    def checkpoint_time(self) -> int | None:
        """See StateSource."""
        self._refresh()
        return self._checkpoint_time

    def match_states(self) -> Sequence[MatchState]:
        """See StateSource."""
        prompts = self._parts.service.prompts
        return prompts.match_states() if prompts is not None else ()

    def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._read_at < FIGURES_AGE_S:
            return
        self._read_at = now
        self._stored = self._parts.store_figures()
        newest = self._parts.checkpoints.list()[-1:]
        self._checkpoint_time = newest[0].time if newest else None


def _shed(writer: LogWriter | None) -> tuple[tuple[str, int], ...]:
    if writer is None:
        return ()
    return tuple((importance.name.lower(), count) for importance, count in writer.shed.items())
