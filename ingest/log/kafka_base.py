"""The checkpoint that a copied log begins with, read from its topic, as a store that takes nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from ingest.log.kafka_reader import KafkaReader
from projections.events.codec import RecordRefused, decode_record
from projections.events.held import CheckpointOpened
from projections.events.ports import CheckpointInfo, LogCorrupt

BASE = "base"


class BaseCheckpoint:
    """CheckpointStore with the base of a topic alone. Its records are read once and kept."""

    def __init__(self, reader: KafkaReader) -> None:
        self._reader = reader
        self._records: list[bytes] | None = None

    def list(self) -> Sequence[CheckpointInfo]:
        """See CheckpointStore."""
        records = self._read()
        if not records:
            return []
        try:
            opened = decode_record(0, records[0]).fact
        except RecordRefused:
            opened = None
        if not isinstance(opened, CheckpointOpened):
            name = self._reader.place.name
            raise LogCorrupt(f"{name}: its base is no checkpoint: copy the log into an empty topic")
        size = sum(map(len, records))
        return [CheckpointInfo(opened.offset, opened.check, opened.time, size, BASE)]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        yield from self._read()

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """See CheckpointStore. Raises OSError: only a copy writes a base."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self._reader.place.name)

    def _read(self) -> Sequence[bytes]:
        if self._records is None:
            self._records = self._reader.base()
        return self._records
