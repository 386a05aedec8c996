"""The log of a process on Kafka: a tail that reads ahead for the fold, and a store of its own to write to.

Checkpoints lie in the data directory, or in the folder that the replicas of a site share; a log that
was copied into its topic begins with one in the topic itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from app.checkpoint_store import CheckpointFolder
from app.config_model import Config
from app.kafka_places import place_of
from app.log_access import ClosingReader, StoreFigures, checkpoints_in
from ingest.log.kafka_base import BASE, BaseCheckpoint
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_tail import KafkaTail
from ingest.log.segment_files import Disk
from projections.events.ports import CheckpointInfo


class TopicCheckpoints:
    """A folder's checkpoints behind the one that the topic begins with. A `CheckpointStore`."""

    def __init__(self, folder: CheckpointFolder, base: BaseCheckpoint) -> None:
        self._folder = folder
        self._base = base

    def list(self) -> Sequence[CheckpointInfo]:
        """See CheckpointStore."""
        return [*self._base.list(), *self._folder.list()]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        return self._base.read(info) if info.name == BASE else self._folder.read(info)

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """See CheckpointStore."""
        return self._folder.write(log_id, offset, check, time, records)


class KafkaAccess:
    """`LogAccess` over the topic of `log.kafka`; made where it is missing.

    Raises TopicRefused, KafkaUnreachable, LogCorrupt, OSError.
    """

    def __init__(self, data: Path, config: Config) -> None:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data = data
        self._place = place_of(config.log.kafka)
        self.store = KafkaLog.open(self._place)
        try:
            self.reader = KafkaTail.open(self._place)
        except BaseException:
            self.store.close()
            raise
        self.folder = checkpoints_in(data, config, Disk().total_bytes(data))
        self.checkpoints = TopicCheckpoints(self.folder, BaseCheckpoint(self.reader.source))
        self.room: Enum | None = None

    def open_reader(self) -> ClosingReader:
        """See LogAccess."""
        return KafkaReader.open(self._place)

    def figures(self) -> StoreFigures | None:
        """See LogAccess. The brokers keep them."""
        return None

    def upkeep(self) -> None:
        """See LogAccess. The brokers do it."""

    def close(self) -> None:
        """See LogAccess."""
        try:
            self.reader.close()
        finally:
            self.store.close()
