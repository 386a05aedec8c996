"""The segment log against the suite of the port, and what only files can do wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.log_report import log_report
from ingest.log.reserve import RESERVE_STEP_BYTES, Room
from ingest.log.segment_files import Disk, LogHeld, log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_upkeep import compress_sealed, forget
from projections.bounds import MIB, SECOND_US
from projections.events.ports import LogFailed, LogFull, LogReader, LogStore
from tests.ingest.log.log_places import (
    SMALL,
    BrokenSync,
    LimitedDisk,
    files,
    fill,
    newest_segment,
    owned,
    read_back,
)
from tests.log_suite import EVERYTHING, LogSuite, read_all, record


class SegmentLogSuite(LogSuite):
    """The suite on files."""

    settings = SMALL

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        self.data = tmp_path
        self.opened: list[SegmentLog | SegmentReader] = []
        yield
        for log in reversed(self.opened):
            log.close()

    def make(self) -> LogStore:
        log = SegmentLog.open_owner(self.data, self.settings)
        self.opened.append(log)
        return log

    def reader_of(self, log: LogStore) -> LogReader:
        reader = SegmentLog.open_reader(self.data)
        self.opened.append(reader)
        return reader

    def forget(self, log: LogStore, offset: int) -> None:
        assert isinstance(log, SegmentLog)
        forget(log, offset)


class TestSmallSegments(SegmentLogSuite):
    """Rolls every few batches, so that most cases run over several segments."""


class TestLargeSegments(SegmentLogSuite):
    """One segment that is synced, with room taken ahead."""

    settings = replace(SMALL, segment_bytes=16 * MIB, allocate_bytes=MIB, durable=True)

    def test_what_retention_dropped_is_gone_and_the_rest_stays(self) -> None:
        log = self.make()
        self.batches(log, *[50] * 40)
        self.forget(log, log.end_offset())
        assert log.first_offset() == 0  # the open segment never goes


class TestCompressedSegments(SegmentLogSuite):
    """Every sealed segment is compressed before it is read."""

    def reader_of(self, log: LogStore) -> LogReader:
        assert isinstance(log, SegmentLog)
        compress_sealed(log)
        return super().reader_of(log)

    def test_most_of_the_log_is_in_fact_compressed(self) -> None:
        log = self.make()
        self.batches(log, *[50] * 40)
        self.reader_of(log)
        assert [name.endswith(".zst") for name in files(self.data)].count(False) == 1
        assert len(files(self.data)) > 4


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = SegmentLog.open_owner(tmp_path, SMALL)
    yield opened
    opened.close()


def test_a_second_owner_is_refused_and_told_who_holds_the_log(log: SegmentLog, tmp_path: Path) -> None:
    with pytest.raises(LogHeld, match=f"process {os.getpid()}"):
        SegmentLog.open_owner(tmp_path, SMALL)


def test_an_owner_in_another_process_is_refused(log: SegmentLog, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ingest.log.segment_log import SegmentLog\n"
        "SegmentLog.open_owner(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"is owned by process {os.getpid()}" in done.stderr


def test_the_lock_is_free_again_after_close(tmp_path: Path) -> None:
    for _ in range(3):
        SegmentLog.open_owner(tmp_path, SMALL).close()


def test_everything_belongs_to_the_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = SegmentLog.open_owner(tmp_path, replace(SMALL, reserve_bytes=4096))
        fill(log, [100] * 20)
        compress_sealed(log)
        log.close()
    finally:
        os.umask(before)
    folder = log_folder(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_bytes_of_the_open_segment_are_those_written_not_those_taken_ahead(
    log: SegmentLog, tmp_path: Path
) -> None:
    before = log.open_bytes
    fill(log, [3])
    assert before < log.open_bytes < newest_segment(tmp_path).stat().st_size
    assert log_report(tmp_path, SegmentReader.open(tmp_path)).stored_bytes == log.open_bytes


def test_a_segment_is_sealed_before_it_grows_beyond_its_size(log: SegmentLog, tmp_path: Path) -> None:
    fill(log, [20] * 30)
    sizes = [path.stat().st_size for path in log_folder(tmp_path).glob("*.seg")]
    assert len(sizes) > 2
    assert max(sizes) <= SMALL.segment_bytes + 4096  # the footer comes on top


def test_a_segment_is_sealed_once_its_records_span_its_age(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, replace(SMALL, segment_age_us=60 * SECOND_US))
    start = log.newest_stamp
    log.commit([owned(0, start + 1)])
    log.commit([owned(1, start + 59 * SECOND_US)])
    assert len(files(tmp_path)) == 1
    log.commit([owned(2, start + 61 * SECOND_US)])
    log.commit([owned(3, start + 62 * SECOND_US)])
    assert len(files(tmp_path)) == 2
    log.close()


def test_a_batch_larger_than_a_segment_has_one_of_its_own(log: SegmentLog) -> None:
    fill(log, [3])
    large = record(3, blob=64 << 10)
    log.commit([large])
    fill(log, [2])
    assert read_all(log, 0)[3] == (3, large)
    assert len(read_all(log, 0)) == 6


def test_a_log_goes_on_where_it_was_closed(tmp_path: Path) -> None:
    ends = []
    for _ in range(5):
        log = SegmentLog.open_owner(tmp_path, SMALL)
        ends.append(fill(log, [7, 50]))
        log.close()
    assert ends == [57, 114, 171, 228, 285]
    assert [offset for offset, _ in read_back(tmp_path)] == list(range(285))


def append_for_ever(log: SegmentLog, blob: int, critical: bool) -> None:
    """One record after the other, until the log refuses one."""
    while True:
        log.commit([record(log.end_offset(), blob)], critical=critical)


# A disk that fails ----------------------------------------------------------------------


def test_after_a_failed_sync_the_log_is_over_and_ends_at_the_last_durable_record(tmp_path: Path) -> None:
    disk = BrokenSync()
    log = SegmentLog.open_owner(tmp_path, replace(SMALL, durable=True), disk)
    end = fill(log, [5, 5])
    reader = SegmentReader.open(tmp_path)
    disk.broken = True
    with pytest.raises(LogFailed, match="fdatasync"):
        log.commit([record(end)])
    disk.broken = False
    with pytest.raises(LogFailed, match="restart"):
        log.commit([record(end)])
    assert log.end_offset() == reader.end_offset() == end
    reader.close()
    log.close()
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert len(read_all(again, 0)) == end
    again.close()


def test_a_log_whose_segment_was_deleted_acknowledges_nothing(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path)
    end = fill(log, [5])
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LogFailed, match="deleted"):
        log.commit([record(end)])
    assert log.end_offset() == end
    log.close()


def test_a_reader_sees_a_batch_only_after_its_sync(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(Disk):
        def sync(self, fd: int) -> None:
            if log_folder(tmp_path).joinpath("durable").exists():
                seen.append(SegmentReader.open(tmp_path).end_offset())
            super().sync(fd)

    log = SegmentLog.open_owner(tmp_path, replace(SMALL, durable=True), Watching())
    seen.clear()
    log.commit([record(0)])
    log.commit([record(1)])
    assert seen == [0, 1]
    log.close()


def test_a_full_disk_refuses_what_may_be_shed_and_takes_what_is_critical(tmp_path: Path) -> None:
    reserve = 2 * RESERVE_STEP_BYTES
    disk = LimitedDisk(reserve + 300_000)
    settings = replace(SMALL, segment_bytes=MIB, allocate_bytes=64 << 10, reserve_bytes=reserve)
    log = SegmentLog.open_owner(tmp_path, settings, disk)
    assert log.room is Room.PLENTY
    disk.room = 0
    with pytest.raises(LogFull):
        append_for_ever(log, 1000, critical=False)
    assert log.room is Room.RESERVE
    assert log.is_full()
    kept = log.end_offset()
    with pytest.raises(LogFull):
        log.commit([record(kept)], critical=False)
    for _ in range(500):
        log.commit([record(log.end_offset(), blob=1000)], critical=True)
    assert log.end_offset() == kept + 500
    assert len(read_all(log, 0)) == kept + 500
    log.close()


def test_when_the_reserve_is_used_up_nothing_is_written_and_nothing_is_broken(tmp_path: Path) -> None:
    disk = LimitedDisk(RESERVE_STEP_BYTES + 100_000)
    settings = replace(SMALL, segment_bytes=MIB, reserve_bytes=RESERVE_STEP_BYTES)
    log = SegmentLog.open_owner(tmp_path, settings, disk)
    disk.room = 0
    with pytest.raises(LogFull):
        append_for_ever(log, 100_000, critical=True)
    assert log.room is Room.NONE
    end = log.end_offset()
    assert [offset for offset, _ in read_all(log, 0)] == list(range(end))
    disk.room = 2 * RESERVE_STEP_BYTES
    log.reserve.fill()
    assert log.room is Room.PLENTY
    assert log.commit([record(end)]) == end
    log.close()


def test_a_file_size_limit_of_the_process_is_a_full_disk_not_a_crash(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.events.ports import LogFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = SegmentLog.open_owner(Path(sys.argv[1]), SegmentSettings(reserve_bytes=0, allocate_bytes=4096))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    while True:
        log.commit([b"x" * 1000], critical=False)
except LogFull:
    print(log.end_offset())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    end = int(done.stdout)
    assert 250 < end < 300
    log = SegmentLog.open_owner(tmp_path, SMALL)
    assert len(read_all(log, 0)) == end
    log.close()


def test_a_roll_that_finds_no_room_is_tried_again_later(tmp_path: Path) -> None:
    disk = LimitedDisk(1 << 30)
    log = SegmentLog.open_owner(tmp_path, SMALL, disk)
    while log_folder(tmp_path).joinpath(files(tmp_path)[-1]).stat().st_size < SMALL.segment_bytes:
        fill(log, [10])
    disk.room = 10
    end = log.end_offset()
    with pytest.raises(LogFull):
        append_for_ever(log, 500, critical=False)
    stuck = log.end_offset()
    assert stuck >= end
    disk.room = 1 << 20
    log.reserve.fill()
    fill(log, [10] * 50)
    assert [offset for offset, _ in read_all(log, 0)] == list(range(stuck + 500))
    log.close()


def test_an_io_error_while_writing_ends_the_log(tmp_path: Path) -> None:
    class Broken(Disk):
        broken = False

        def write(self, fd: int, data: bytes, position: int) -> None:
            if self.broken:
                super().write(fd, data[: len(data) // 2], position)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().write(fd, data, position)

    disk = Broken()
    log = SegmentLog.open_owner(tmp_path, SMALL, disk)
    end = fill(log, [4])
    disk.broken = True
    with pytest.raises(LogFailed):
        log.commit([record(end)])
    log.close()
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert len(read_all(again, 0)) == end
    again.close()


# Waiting ---------------------------------------------------------------------------------


async def test_a_waiter_is_woken_by_the_commit(log: SegmentLog) -> None:
    waiting = asyncio.create_task(log.wait(0, 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.get_running_loop().run_in_executor(None, log.commit, [record(0)])
    await asyncio.wait_for(waiting, 30.0)


async def test_waiting_in_vain_ends_after_its_time(log: SegmentLog) -> None:
    await log.wait(100, 0.001)
    assert log.read(100, EVERYTHING) == []
