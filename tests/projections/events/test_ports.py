from __future__ import annotations

import pytest

from projections.events.ports import LogReader, LogStore, MemoryLog
from tests.log_suite import LogSuite, read_all, record


class TestMemoryLog(LogSuite):
    def make(self) -> LogStore:
        return MemoryLog()

    def reader_of(self, log: LogStore) -> LogReader:
        return log

    def forget(self, log: LogStore, offset: int) -> None:
        assert isinstance(log, MemoryLog)
        log.forget(offset)


def test_offsets_may_jump_forward_and_never_back() -> None:
    log = MemoryLog()
    log.commit([record(0)])
    log.jump(1 << 20)
    assert log.commit([record(1)]) == 1 << 20
    assert read_all(log, 0) == [(0, record(0)), (1 << 20, record(1))]
    with pytest.raises(ValueError, match="was used"):
        log.jump(5)
