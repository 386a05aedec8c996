from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.log import segment_upkeep
from ingest.log.manifest import SegmentState
from ingest.log.segment_files import log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import compressed_parts
from ingest.log.segment_upkeep import (
    compress_sealed,
    expire,
    forget,
    horizon_us,
    keep_up,
    log_horizon_seconds,
    stored_bytes,
)
from projections.bounds import SECOND_US
from projections.events.ports import LogCorrupt
from tests.ingest.log.log_places import SMALL, UnsyncedDisk, files, fill, owned, read_back
from tests.log_suite import read_all

HOUR = 3600 * SECOND_US


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = SegmentLog.open_owner(tmp_path, SMALL, UnsyncedDisk())
    yield opened
    opened.close()


def aged(log: SegmentLog, hours: int) -> int:
    """A segment or so of records for each hour; the end offset."""
    start = log.newest_stamp
    for hour in range(hours):
        for number in range(300):
            log.commit([owned(log.end_offset(), start + hour * HOUR + number)])
    return log.end_offset()


@pytest.mark.req("EVS-14")
def test_compression_changes_no_record_and_no_chain(log: SegmentLog, tmp_path: Path) -> None:
    end = fill(log, [25] * 60)
    before = read_all(log, 0)
    heads = {first: info.head for first, info in log.manifest.items()}
    assert compress_sealed(log) == len(files(tmp_path, "*.zst")) > 2
    assert compress_sealed(log) == 0
    assert read_back(tmp_path) == before
    assert {first: info.head for first, info in log.manifest.items()} == heads
    assert {info.state for info in log.manifest.values()} == {SegmentState.COMPRESSED}
    assert log.end_offset() == end


def test_a_segment_that_reads_back_differently_is_kept_plain(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, [25] * 60)
    real = compressed_parts

    def damaged(*arguments: object) -> Iterator[bytes]:
        parts = list(real(*arguments))  # type: ignore[arg-type]
        yield parts[0][:-6] + b"\0" + parts[0][-5:]
        yield from parts[1:]

    monkeypatch.setattr(segment_upkeep, "compressed_parts", damaged)
    with pytest.raises(LogCorrupt):
        compress_sealed(log)
    assert not files(tmp_path, "*.zst")
    assert len(read_back(tmp_path)) == log.end_offset()


def test_a_full_disk_stops_compression_and_loses_nothing(tmp_path: Path) -> None:
    class Full(UnsyncedDisk):
        full = False

        def write(self, fd: int, data: bytes, position: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data, position)

    disk = Full()
    log = SegmentLog.open_owner(tmp_path, SMALL, disk)
    end = fill(log, [25] * 60)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        compress_sealed(log)
    disk.full = False
    assert compress_sealed(log) > 2
    assert len(read_back(tmp_path)) == end
    log.close()


def test_nothing_expires_before_somebody_said_what_checkpoints_need(log: SegmentLog) -> None:
    aged(log, 400)
    assert expire(log) == 0


def test_segments_beyond_their_age_go_oldest_first(tmp_path: Path) -> None:
    settings = replace(SMALL, retention_age_us=10 * HOUR, retention_bytes=1 << 40)
    log = SegmentLog.open_owner(tmp_path, settings, UnsyncedDisk())
    end = aged(log, 30)
    log.retention_floor = end
    newest = log.newest_stamp
    assert expire(log) > 5
    kept = [info for info in log.manifest.values() if info.head]
    assert min(info.last_time for info in kept) >= newest - 10 * HOUR
    first = log.first_offset()
    assert [offset for offset, _ in read_back(tmp_path)] == list(range(first, end))
    assert expire(log) == 0
    log.close()


def test_the_oldest_segments_go_while_all_take_too_much(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, replace(SMALL, retention_bytes=60_000), UnsyncedDisk())
    end = fill(log, [25] * 200)
    assert stored_bytes(log) > 60_000
    log.retention_floor = end
    assert expire(log) > 0
    assert 60_000 - SMALL.segment_bytes - 4096 < stored_bytes(log) <= 60_000
    log.close()


@pytest.mark.req("EVS-14")
def test_retention_never_removes_what_a_kept_checkpoint_needs(tmp_path: Path) -> None:
    settings = replace(SMALL, retention_bytes=0, retention_age_us=0)
    log = SegmentLog.open_owner(tmp_path, settings, UnsyncedDisk())
    end = fill(log, [25] * 100)
    for floor in (0, 300, 800, 801, end):
        log.retention_floor = floor
        expire(log)
        assert log.first_offset() <= floor
        assert read_all(log, min(floor, end - 1))
    assert log.first_offset() > 801
    log.close()


def test_forgetting_removes_whole_segments_only(log: SegmentLog) -> None:
    end = fill(log, [25] * 60)
    assert forget(log, 10) == 0
    assert log.first_offset() == 0
    assert forget(log, end) > 0
    first = log.first_offset()
    assert [offset for offset, _ in read_all(log, first)] == list(range(first, end))


def test_a_round_of_upkeep_does_all_of_it(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, replace(SMALL, retention_bytes=0), UnsyncedDisk())
    end = fill(log, [25] * 60)
    log.retention_floor = end // 2
    done = keep_up(log)
    assert done.compressed > 0
    assert done.removed > 0
    assert done.stored_bytes == sum(path.stat().st_size for path in log_folder(tmp_path).glob("*.zst"))
    log.close()


def test_the_horizon_is_the_age_or_what_the_bytes_allow_at_this_rate() -> None:
    settings = SegmentSettings(retention_age_us=7 * 24 * HOUR)
    assert horizon_us(settings, 10 * HOUR, 1 << 30, 1 << 40) == 7 * 24 * HOUR
    assert horizon_us(settings, 10 * HOUR, 1 << 30, 2 << 30) == 20 * HOUR
    assert horizon_us(settings, 0, 0, 1 << 30) == 7 * 24 * HOUR


def test_the_horizon_of_a_log_is_told_in_seconds(log: SegmentLog) -> None:
    assert log_horizon_seconds(log) == 7 * 24 * 3600
