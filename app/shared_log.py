"""The log of a router process beside its owner: the same segments to read, the owner's socket to write."""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path

import structlog

from app.config_model import Config
from app.log_access import SOCKET_NAME, ClosingReader, StoreFigures, checkpoints_in
from ingest.log.raw_frames import FrameKeeper
from ingest.log.segment_files import Disk, LogAbsent
from ingest.log.segment_reader import SegmentReader
from ingest.log.socket_store import SocketStore
from ingest.log.spool import Spool

log = structlog.get_logger("picklog.log")

OWNER_WAIT_S = 30.0  # for the owner to make the log that this process reads
OWNER_LOOK_S = 0.1


class SharedLog:
    """`LogAccess` of a router process. Use `open`."""

    def __init__(self, data: Path, config: Config, reader: SegmentReader) -> None:
        self.data = data
        self.reader = reader
        self.store = SocketStore(data / SOCKET_NAME, reader)
        self.checkpoints = self.folder = checkpoints_in(data, config, Disk().total_bytes(data))
        self.room: Enum | None = None

    @classmethod
    async def open(cls, data: Path, config: Config, patience_s: float = OWNER_WAIT_S) -> SharedLog:
        """Wait a while for the owner to make the log. Raises LogAbsent, LogCorrupt."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        is_told = False
        while True:
            try:
                return cls(data, config, SegmentReader.open(data))
            except LogAbsent as problem:
                if loop.time() > deadline:
                    raise
                if not is_told:
                    is_told = True
                    log.warning("waiting for the log's owner", cause=str(problem), seconds=patience_s)
            await asyncio.sleep(OWNER_LOOK_S)

    def open_reader(self) -> ClosingReader:
        """See LogAccess."""
        return SegmentReader.open(self.data)

    def figures(self) -> StoreFigures | None:
        """See LogAccess. The owner tells them."""
        return None

    def upkeep(self) -> None:
        """See LogAccess. The owner does it."""

    def spool(self) -> Spool | None:
        """See LogAccess. This process never owns the log."""
        return None

    def raw_frames(self, config: Config) -> FrameKeeper | None:
        """See LogAccess. This process never owns the log."""
        return None

    def give_up(self) -> None:
        """See LogAccess."""
        self.store.close()

    def close(self) -> None:
        """See LogAccess."""
        self.store.close()
        self.reader.close()
