"""The segment log against the suite of the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_upkeep import forget
from projections.events.ports import LogReader, LogStore
from tests.log_suite import LogSuite

SMALL = SegmentSettings(
    segment_bytes=16 << 10, allocate_bytes=4 << 10, reserve_bytes=0, durable=False, compress_level=0
)


class TestSegmentLog(LogSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        self.data = tmp_path
        self.opened: list[SegmentLog] = []
        yield
        for log in self.opened:
            log.close()

    def make(self) -> LogStore:
        log = SegmentLog.open_owner(self.data, SMALL)
        self.opened.append(log)
        return log

    def reader_of(self, log: LogStore) -> LogReader:
        return SegmentLog.open_reader(self.data)

    def forget(self, log: LogStore, offset: int) -> None:
        assert isinstance(log, SegmentLog)
        forget(log, offset)
