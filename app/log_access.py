"""How a process reaches its log: what the fold reads, what the writer writes to, where checkpoints lie.

Three ways, one shape. `OwnedLog` holds the segments of a data directory and its lock, and takes
the batches of other processes of the machine; `shared_log.SharedLog` reads the same segments and
appends through their owner; `kafka_access.KafkaAccess` reads and writes a topic. A process is put
together from one of them and never asks which.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from app.checkpoint_store import CheckpointFolder
from app.config_model import Config
from app.log_places import checkpoint_folder
from app.part_settings import bytes_of, raw_settings, segment_settings
from ingest.log.grouped_store import GroupedStore
from ingest.log.owner_socket import OwnerSocket
from ingest.log.raw_frames import FrameKeeper, RawFrames
from ingest.log.segment_files import Disk
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_upkeep import (
    HORIZON_WARN_US,
    keep_up,
    log_horizon_seconds,
    retention_bytes,
    stored_bytes,
)
from ingest.log.spool import Spool
from projections.bounds import SECOND_US
from projections.events.ports import CheckpointStore, LogReader, LogStore

log = structlog.get_logger("picklog")


SOCKET_NAME = "owner.sock"


class StoreFigures(NamedTuple):
    """Bytes of segments, their ceiling, and how long a record is kept, microseconds.

    routers: other processes that append through this one now. turned_away: connections of such that
    were refused since start, for what they sent or because there were too many.
    """

    stored_bytes: int
    ceiling_bytes: int
    horizon_us: int
    routers: int = 0
    turned_away: int = 0


class ClosingReader(LogReader, Protocol):
    """A reader of its own."""

    def close(self) -> None:
        """Let its files or connections go."""


class LogAccess(Protocol):
    """See the module's text. Calls are made on the event loop unless they say otherwise."""

    @property
    def data(self) -> Path:
        """The data directory: checkpoints, artifacts, and segments where there are any."""

    @property
    def reader(self) -> LogReader:
        """What the fold reads."""

    @property
    def store(self) -> LogStore:
        """What the writer writes to."""

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where checkpoints are kept."""

    @property
    def folder(self) -> CheckpointFolder:
        """The folder among them, whose files peers may fetch."""

    @property
    def room(self) -> Enum | None:
        """What the log has room for, None where others watch that."""

    def open_reader(self) -> ClosingReader:
        """A new reader for questions about the past. In a thread."""

    def figures(self) -> StoreFigures | None:
        """Sizes; None where others keep them. Looks at every segment."""

    def upkeep(self) -> None:
        """Compress, and let retention go no further than kept checkpoints allow. In a thread."""

    def spool(self) -> Spool | None:
        """A new spool for an owner; None where the log is on the machine's own disk. Raises OSError."""

    def raw_frames(self, config: Config) -> FrameKeeper | None:
        """Where an owner's raw frames go. Raises OSError."""

    def give_up(self) -> None:
        """End a commit that waits for another process or for brokers; nothing is written behind it.

        In a thread.
        """

    def close(self) -> None:
        """Let the log go. In a thread."""


def checkpoints_in(data: Path, config: Config, file_system_bytes: int) -> CheckpointFolder:
    """The checkpoints of a data directory, or of the folder that replicas share."""
    settings = config.checkpoints
    return CheckpointFolder(
        checkpoint_folder(data) if settings.folder is None else Path(settings.folder),
        keep=settings.keep,
        bytes_max=bytes_of(settings.bytes, file_system_bytes),
    )


class OwnedLog:
    """The owner's access. Raises LogError and OSError where the data directory cannot be owned or read."""

    def __init__(self, data: Path, config: Config, disk: Disk | None = None) -> None:
        self.data = data
        self.log = SegmentLog.open_owner(data, segment_settings(config), disk)
        self.file_system_bytes = self.log.disk.total_bytes(data)
        self.checkpoints = checkpoints_in(data, config, self.file_system_bytes)
        self._keep = config.checkpoints.keep
        self._grouped = GroupedStore(self.log)
        try:
            self._socket = OwnerSocket(data / SOCKET_NAME, self._grouped)
        except BaseException:
            self.log.close()
            raise
        horizon_s = log_horizon_seconds(self.log)
        if horizon_s < HORIZON_WARN_US / SECOND_US:
            log.warning("the log keeps less than a day at its present rate", hours=round(horizon_s / 3600, 1))

    @property
    def reader(self) -> LogReader:
        """See LogAccess."""
        return self.log

    @property
    def store(self) -> LogStore:
        """See LogAccess."""
        return self._grouped

    @property
    def folder(self) -> CheckpointFolder:
        """See LogAccess."""
        return self.checkpoints

    @property
    def room(self) -> Enum | None:
        """See LogAccess."""
        return self.log.room

    def open_reader(self) -> ClosingReader:
        """See LogAccess."""
        return SegmentLog.open_reader(self.data)

    def figures(self) -> StoreFigures | None:
        """See LogAccess."""
        horizon_us = int(log_horizon_seconds(self.log) * SECOND_US)
        return StoreFigures(
            stored_bytes(self.log) + self.log.open_bytes,
            retention_bytes(self.log),
            horizon_us,
            self._socket.connections,
            self._socket.malformed + self._socket.turned_away,
        )

    def upkeep(self) -> None:
        """See LogAccess."""
        newest = self.checkpoints.list()[-self._keep :]
        self.log.retention_floor = newest[0].offset if len(newest) == self._keep else 0
        keep_up(self.log)

    def spool(self) -> Spool | None:
        """See LogAccess."""
        return None

    def raw_frames(self, config: Config) -> FrameKeeper | None:
        """See LogAccess. `DIR/raw`."""
        settings = raw_settings(config, self.file_system_bytes)
        log.info("raw frames go to the data directory", age_us=settings.age_us, bytes=settings.bytes_max)
        return RawFrames(self.data, self.log.log_id, settings)

    def give_up(self) -> None:
        """See LogAccess. A commit waits for the disk alone."""

    def close(self) -> None:
        """See LogAccess."""
        self._socket.close()
        self.log.close()
