"""A data directory as the target of a copy: segments, and the base as its first checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ingest.log.log_copy import Base
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.staged_log import open_staged
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX
from projections.events.ports import CheckpointStore, LogReader, RecordBatch


class SegmentCopy:
    """CopyTarget over a data directory. Holds its lock as an owner does."""

    def __init__(
        self, data: Path, checkpoints: CheckpointStore, settings: SegmentSettings | None = None
    ) -> None:
        """Raises LogHeld, LogCorrupt, OSError."""
        self._data = data
        self._checkpoints = checkpoints
        self._settings = settings or SegmentSettings(reserve_bytes=0)
        self._log: SegmentLog | None = None
        if log_folder(data).is_dir() and stored_segments(log_folder(data)):
            self._log = open_staged(data, b"", 0, self._settings)

    @property
    def log_id(self) -> bytes | None:
        """See CopyTarget."""
        return self._log.log_id if self._log is not None else None

    def begin(self, log_id: bytes, first_offset: int, base: Base | None) -> None:
        """See CopyTarget. The checkpoint comes first: a log without its base must never be there."""
        if base is not None:
            info = base.info
            self._checkpoints.write(log_id, info.offset, info.check, info.time, base.records())
        self._log = open_staged(self._data, log_id, first_offset, self._settings)

    def take(self, batches: Sequence[RecordBatch]) -> None:
        """See CopyTarget."""
        log = self._open()
        for batch in batches:
            if batch.first_offset != log.end_offset():
                log.jump(batch.first_offset)
            records: list[bytes] = []
            size = 0
            for record in batch.records:
                if records and (
                    size + len(record) > COMMIT_BATCH_BYTES_MAX // 2
                    or len(records) >= COMMIT_BATCH_RECORDS_MAX
                ):
                    log.commit(records)
                    records, size = [], 0
                records.append(record)
                size += len(record)
            log.commit(records)

    def reader(self) -> LogReader:
        """See CopyTarget."""
        return self._open()

    def close(self) -> None:
        """See CopyTarget."""
        if self._log is not None:
            self._log.close()

    def _open(self) -> SegmentLog:
        assert self._log is not None, "begin comes first"
        return self._log
