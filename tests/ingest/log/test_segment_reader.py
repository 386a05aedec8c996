"""Readers: beside a living owner, after it, across roll, compression and retention."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.log.durable_mark import MARK_NAME
from ingest.log.segment_files import LogAbsent, log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_upkeep import compress_sealed, forget
from projections.bounds import OFFSET_JUMP
from projections.events.ports import LogCorrupt, OffsetGone
from projections.events.segment_format import encode_batch
from tests.ingest.log.log_places import (
    NO_ROOM_AHEAD,
    SMALL,
    UnsyncedDisk,
    files,
    fill,
    first_segment,
    newest_segment,
    read_back,
)
from tests.log_suite import EVERYTHING, number_of, read_all, record


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    opened = SegmentLog.open_owner(tmp_path, SMALL, UnsyncedDisk())
    yield opened
    opened.close()


@pytest.fixture
def reader(log: SegmentLog, tmp_path: Path) -> Iterator[SegmentReader]:
    opened = SegmentReader.open(tmp_path)
    yield opened
    opened.close()


def numbers(reader: SegmentReader, start: int) -> list[int]:
    return [number_of(data) for _, data in read_all(reader, start)]


def read_for_ever(reader: SegmentReader, start: int) -> None:
    """Batch after batch, until the reader refuses."""
    while True:
        start += sum(len(batch.records) for batch in reader.read(start, 1))


def test_where_there_is_no_log_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(LogAbsent, match="no log at"):
        SegmentReader.open(tmp_path)


@pytest.mark.req("EVS-14")
def test_a_tailing_reader_goes_on_through_roll_compression_and_retention(
    log: SegmentLog, reader: SegmentReader
) -> None:
    found: list[int] = []
    for step in range(60):
        fill(log, [7, 3, 11])
        found += numbers(reader, len(found))
        if step % 3 == 0:
            compress_sealed(log)
        if step % 5 == 0:
            forget(log, log.end_offset() - 40)
    assert found == list(range(log.end_offset()))
    assert log.first_offset() > 0


def test_a_reader_that_holds_a_segment_reads_it_to_its_end_though_it_was_compressed(
    log: SegmentLog, reader: SegmentReader, tmp_path: Path
) -> None:
    fill(log, [20] * 5)
    assert reader.read(0, 1)[0].first_offset == 0
    fill(log, [20] * 40)
    compress_sealed(log)
    assert not first_segment(tmp_path).exists()
    assert numbers(reader, 20) == list(range(20, log.end_offset()))


def test_a_slow_reader_that_retention_overtook_is_told_where_to_go_on(
    log: SegmentLog, reader: SegmentReader
) -> None:
    fill(log, [20] * 5)
    assert reader.read(0, 1)
    fill(log, [20] * 100)
    forget(log, log.end_offset())
    with pytest.raises(OffsetGone) as gone:
        read_for_ever(reader, 20)
    assert gone.value.first_offset == log.first_offset()
    assert numbers(reader, log.first_offset())[0] == log.first_offset()


def test_a_batch_that_is_not_durable_yet_is_not_seen(log: SegmentLog, reader: SegmentReader) -> None:
    fill(log, [3])
    tail = log._tail
    batch, _ = encode_batch(tail.header.mark, 3, [record(3)], tail.head)
    log.disk.write(tail.fd, batch, tail.position)
    assert numbers(reader, 0) == [0, 1, 2]
    assert reader.end_offset() == 3
    log.commit([record(77)])
    assert numbers(reader, 3) == [77]


def test_without_an_owner_every_whole_batch_is_seen(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, NO_ROOM_AHEAD, UnsyncedDisk())
    fill(log, [3])
    tail = log._tail
    batch, _ = encode_batch(tail.header.mark, 3, [record(3)], tail.head)
    log.disk.write(tail.fd, batch, tail.position)
    log._lock.release()  # the owner dies before its mark moves
    assert [number_of(data) for _, data in read_back(tmp_path)] == [0, 1, 2, 3]


def test_a_copy_of_a_running_log_reads_as_far_as_it_was_copied(log: SegmentLog, tmp_path: Path) -> None:
    fill(log, [3, 4])
    copy = tmp_path / "copy"
    log_folder(copy).mkdir(parents=True)
    for name in files(tmp_path):
        (log_folder(copy) / name).write_bytes((log_folder(tmp_path) / name).read_bytes())
    fill(log, [5])
    (log_folder(copy) / MARK_NAME).write_bytes((log_folder(tmp_path) / MARK_NAME).read_bytes())
    assert [number_of(data) for _, data in read_back(copy)] == list(range(7))


def test_a_reader_from_before_the_owner_sees_what_it_writes(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    fill(log, [2])
    log.close()
    reader = SegmentReader.open(tmp_path)
    again = SegmentLog.open_owner(tmp_path, SMALL)
    fill(again, [2])
    assert numbers(reader, 0) == [0, 1, 2, 3]
    reader.close()
    again.close()


@pytest.mark.field("B-137")
def test_after_a_jump_a_reader_goes_on_from_either_side_of_the_hole(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, NO_ROOM_AHEAD)
    fill(log, [3])
    log.close()
    path = newest_segment(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn")
    reader = SegmentReader.open(tmp_path)
    assert numbers(reader, 0) == [0, 1, 2]
    log = SegmentLog.open_owner(tmp_path, NO_ROOM_AHEAD)
    for _ in range(2):
        assert reader.read(3, EVERYTHING) == []
    fill(log, [2])
    for start in (3, 4, 1000, OFFSET_JUMP):
        assert [offset for offset, _ in read_all(reader, start)] == [OFFSET_JUMP, OFFSET_JUMP + 1]
    reader.close()
    log.close()


def test_what_does_not_check_below_the_mark_is_reported_at_its_place(
    log: SegmentLog, reader: SegmentReader, tmp_path: Path
) -> None:
    fill(log, [3, 3, 3])
    data = bytearray(first_segment(tmp_path).read_bytes())
    at = data.find(record(4)) + 5
    data[at] ^= 1
    first_segment(tmp_path).write_bytes(data)
    assert [number_of(one) for batch in reader.read(0, 1) for one in batch.records] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="offset 3"):
            reader.read(3, EVERYTHING)


def test_corruption_before_the_end_is_reported_by_a_reader_without_owner(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, NO_ROOM_AHEAD)
    fill(log, [3, 3, 3])
    log.close()
    data = bytearray(first_segment(tmp_path).read_bytes())
    data[data.find(record(4)) + 5] ^= 1
    first_segment(tmp_path).write_bytes(data)
    reader = SegmentReader.open(tmp_path)
    assert [number_of(one) for batch in reader.read(0, EVERYTHING) for one in batch.records] == [0, 1, 2]
    with pytest.raises(LogCorrupt, match="offset 3"):
        reader.read(3, EVERYTHING)
    reader.close()


async def test_a_reader_in_another_process_is_woken_and_sees_each_record(
    log: SegmentLog, tmp_path: Path
) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from ingest.log.segment_reader import SegmentReader
from tests.log_suite import number_of
async def main():
    reader = SegmentReader.open(Path(sys.argv[1]))
    print("ready", flush=True)
    offset = 0
    while offset < 50:
        await reader.wait(offset, 30)
        for batch in reader.read(offset, 1 << 20):
            for data in batch.records:
                print(number_of(data), flush=True)
                offset += 1
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    for number in range(50):
        fill(log, [1])
        assert int(await asyncio.wait_for(process.stdout.readline(), 30)) == number
    assert await process.wait() == 0


async def test_waiting_ends_after_its_time_without_news(reader: SegmentReader) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await reader.wait(0, 0.02)
    assert loop.time() - began >= 0.02
