"""Checkpoints of a log on Kafka: a folder's, behind the one that a copied log begins with in its topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.checkpoint_store import CheckpointFolder
from ingest.log.kafka_base import BASE, BaseCheckpoint
from projections.events.ports import CheckpointInfo


class TopicCheckpoints:
    """See the module's text. A `CheckpointStore`."""

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
