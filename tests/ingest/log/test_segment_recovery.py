"""What a crash leaves behind: every cut, every flipped bit, and a writer killed many times."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.log.durable_mark import MARK_NAME
from ingest.log.log_check import check_log
from ingest.log.manifest import MANIFEST_NAME
from ingest.log.segment_files import compressed_name, log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_store import StoredSegment
from ingest.log.segment_upkeep import compress_sealed
from projections.bounds import OFFSET_JUMP
from projections.events.ports import LogCorrupt
from projections.events.segment_format import HEADER_BYTES
from tests.ingest.log.log_places import (
    NO_ROOM_AHEAD,
    SMALL,
    UnsyncedDisk,
    files,
    fill,
    first_segment,
    newest_segment,
    owned,
    read_back,
)
from tests.log_suite import number_of, read_all, record

KILLS = 24


def made(data: Path, batches: list[int]) -> tuple[bytes, list[int]]:
    """A log of one plain segment; its bytes and the byte where each batch ends."""
    log = SegmentLog.open_owner(data, NO_ROOM_AHEAD, UnsyncedDisk())
    ends = [HEADER_BYTES]
    for size in batches:
        fill(log, [size])
        ends.append(log._tail.position)
    log.close()
    return newest_segment(data).read_bytes(), ends


def without_mark(data: Path) -> None:
    """Forget what had been acknowledged, as after a power cut that lost the page."""
    (log_folder(data) / MARK_NAME).unlink()


def reopened(data: Path) -> SegmentLog:
    return SegmentLog.open_owner(data, NO_ROOM_AHEAD, UnsyncedDisk())


def test_a_tail_cut_at_any_byte_is_cut_back_to_whole_batches_and_offsets_jump(tmp_path: Path) -> None:
    whole, ends = made(tmp_path / "made", [1, 1, 1])
    offsets = [0, 1, 2, 3]
    for cut in range(HEADER_BYTES, len(whole)):
        data = tmp_path / "cut"
        shutil.copytree(tmp_path / "made", data)
        first_segment(data).write_bytes(whole[:cut])
        without_mark(data)
        good = max(offset for end, offset in zip(ends, offsets, strict=True) if end <= cut)
        with_tail = cut not in ends
        reader = SegmentReader.open(data)
        assert [number_of(one) for _, one in read_all(reader, 0)] == list(range(good))
        log = reopened(data)
        assert log.end_offset() == (OFFSET_JUMP if with_tail else good)
        first_new = log.commit([record(99)])
        found = read_all(log, 0)
        assert found[:-1] == [(n, record(n)) for n in range(good)]
        assert found[-1] == (first_new, record(99))
        assert read_all(reader, good) == found[-1:]
        reader.close()
        log.close()
        shutil.rmtree(data)


def test_a_cut_below_what_was_acknowledged_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    whole, ends = made(tmp_path / "made", [1, 1, 1])
    for cut in [*range(HEADER_BYTES, ends[-1], 7), ends[-2], ends[-1] - 1]:
        data = tmp_path / "cut"
        shutil.copytree(tmp_path / "made", data)
        first_segment(data).write_bytes(whole[:cut])
        with pytest.raises(LogCorrupt, match="were acknowledged"):
            reopened(data)
        assert first_segment(data).read_bytes() == whole[:cut]
        shutil.rmtree(data)


def test_a_log_whose_segments_all_went_is_not_begun_anew(tmp_path: Path) -> None:
    made(tmp_path, [1, 1, 1])
    for path in log_folder(tmp_path).glob("*.seg*"):
        path.unlink()
    with pytest.raises(LogCorrupt, match="up to 2 were acknowledged"):
        reopened(tmp_path)
    without_mark(tmp_path)
    log = reopened(tmp_path)
    assert log.end_offset() == 0
    log.close()


def test_a_bit_flipped_anywhere_is_cut_or_reported_and_never_read_as_data(tmp_path: Path) -> None:
    whole, ends = made(tmp_path / "made", [1, 1, 1])
    outcomes = set()
    for at in range(len(whole)):
        data = tmp_path / "flip"
        shutil.copytree(tmp_path / "made", data)
        first_segment(data).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        without_mark(data)
        try:
            log = reopened(data)
        except LogCorrupt as problem:
            outcomes.add(("reported", at < ends[-2], segment_name(0) in str(problem)))
        else:
            assert read_all(log, 0) == [(n, record(n)) for n in range(2)]
            assert log.end_offset() == OFFSET_JUMP
            outcomes.add(("cut", at < ends[-2], True))
            log.close()
        shutil.rmtree(data)
    # In the last batch nothing good follows: that is what a crash looks like.
    assert outcomes == {("reported", True, True), ("cut", False, True)}


def test_a_bit_flipped_in_acknowledged_records_is_reported_wherever_it_is(tmp_path: Path) -> None:
    whole, _ = made(tmp_path / "made", [1, 1, 1])
    for at in range(0, len(whole), 3):
        data = tmp_path / "flip"
        shutil.copytree(tmp_path / "made", data)
        first_segment(data).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(LogCorrupt):
            reopened(data)
        shutil.rmtree(data)


def test_the_report_names_segment_offset_and_what_to_do(tmp_path: Path) -> None:
    whole, ends = made(tmp_path, [2, 1, 3])
    at = ends[1] + 70
    first_segment(tmp_path).write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(LogCorrupt, match=rf"{segment_name(0)}, offset 2, byte {ends[1]}.*restore the file"):
        reopened(tmp_path)


def test_offsets_after_a_cut_are_never_used_twice_though_recovery_crashes_too(tmp_path: Path) -> None:
    whole, _ = made(tmp_path, [2, 3])
    first_segment(tmp_path).write_bytes(whole[:-1])
    without_mark(tmp_path)
    log = reopened(tmp_path)
    log.close()
    newest_segment(tmp_path).unlink()  # the crash came before the new segment had its name
    without_mark(tmp_path)
    log = reopened(tmp_path)
    assert log.end_offset() == OFFSET_JUMP
    log.close()


def test_each_cut_jumps_to_the_next_multiple(tmp_path: Path) -> None:
    made(tmp_path, [2])
    for expected in (1, 2, 3):
        path = newest_segment(tmp_path)
        path.write_bytes(path.read_bytes() + b"torn")
        log = reopened(tmp_path)
        assert log.end_offset() == expected * OFFSET_JUMP
        fill(log, [1])
        log.close()
    offsets = [offset for offset, _ in read_back(tmp_path)]
    assert offsets == [0, 1, OFFSET_JUMP, 2 * OFFSET_JUMP, 3 * OFFSET_JUMP]


def test_room_taken_ahead_is_no_torn_tail(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    fill(log, [3])
    log._lock.release()  # as after a kill: nothing was given back
    assert first_segment(tmp_path).stat().st_size == 128 + SMALL.allocate_bytes
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert again.end_offset() == 3
    again.close()


def test_the_newest_stamp_is_found_again(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    stamp = log.newest_stamp + 5_000_000
    log.commit([owned(0, stamp)])
    log.commit([record(1), record(2)])
    log.close()
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert again.newest_stamp == stamp
    again.close()


def test_a_missing_segment_in_the_middle_is_reported(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    fill(log, [50] * 30)
    log.close()
    (log_folder(tmp_path) / files(tmp_path)[1]).unlink()
    with pytest.raises(LogCorrupt, match="does not continue"):
        SegmentLog.open_owner(tmp_path, SMALL)


def test_a_segment_of_another_log_is_reported(tmp_path: Path) -> None:
    for name in ("one", "two"):
        log = SegmentLog.open_owner(tmp_path / name, SMALL)
        fill(log, [50] * 10)
        log.close()
    shutil.copy(first_segment(tmp_path / "one"), first_segment(tmp_path / "two"))
    (log_folder(tmp_path / "two") / MANIFEST_NAME).unlink()
    with pytest.raises(LogCorrupt):
        SegmentLog.open_owner(tmp_path / "two", SMALL)


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b'{"format": 9}', b"[1, 2]", b'{"format": 1, "log_id": 3}']
)
def test_a_missing_or_odd_manifest_is_made_anew(tmp_path: Path, content: bytes | None) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    end = fill(log, [50] * 30)
    compress_sealed(log)
    before = dict(log.manifest)
    log.close()
    manifest = log_folder(tmp_path) / MANIFEST_NAME
    manifest.unlink() if content is None else manifest.write_bytes(content)
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert {first: info.head for first, info in again.manifest.items()} == {
        first: info.head for first, info in before.items() if info.head
    }
    assert len(read_all(again, 0)) == end
    again.close()


def test_an_unfinished_compression_is_thrown_away(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    end = fill(log, [50] * 10)
    log.close()
    folder = log_folder(tmp_path)
    (folder / compressed_name(0)).write_bytes(b"half a file")
    (folder / (compressed_name(0) + ".tmp")).write_bytes(b"quarter")
    again = SegmentLog.open_owner(tmp_path, SMALL)
    assert not files(tmp_path, "*.tmp")
    assert not files(tmp_path, "*.zst")
    assert len(read_all(again, 0)) == end
    again.close()


# A writer that is killed -----------------------------------------------------------------

# One process that forks a writer for each number it is told: a start from nothing costs
# most of a second.
WRITING = """
import os, sys
from pathlib import Path
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_upkeep import compress_sealed
from tests.ingest.log.log_places import UnsyncedDisk
from tests.log_suite import record

def say(line):
    os.write(1, f"{line}\\n".encode())  # whole or not at all, as short writes to a pipe are

def write(number):
    settings = SegmentSettings(segment_bytes=32 << 10, allocate_bytes=8 << 10, reserve_bytes=0)
    log = SegmentLog.open_owner(Path(sys.argv[1]), settings, UnsyncedDisk())
    size = 1
    while True:
        offset = log.commit([record(number + n, blob=n) for n in range(size)])
        say(f"{offset} {number} {size}")
        number, size = number + size, size % 40 + 1
        if size % 10 == 0:
            compress_sealed(log)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        write(int(line))
    say(pid)
    os.waitpid(pid, 0)
    say("dead")
"""


class Writers:
    """Writer processes one after the other, each killed with SIGKILL after some acknowledgements."""

    def __init__(self, data: Path) -> None:
        self.acknowledged: dict[int, int] = {}  # offset: number
        command = [sys.executable, "-c", WRITING, str(data)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def write_and_kill(self, number: int, acknowledgements: int) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        pid = 0
        for line in self._process.stdout:
            words = line.split()
            if words == ["dead"]:
                return
            if len(words) == 1:
                pid = int(words[0])
                continue
            offset, first, size = map(int, words)
            self.acknowledged.update((offset + n, first + n) for n in range(size))
            acknowledgements -= 1
            if acknowledgements <= 0 and pid:
                os.kill(pid, signal.SIGKILL)
                acknowledgements = 1 << 30

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


@pytest.mark.req("EVS-15")
def test_no_acknowledged_record_is_lost_when_the_writer_is_killed_at_any_moment(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    number = 0
    with Writers(tmp_path) as writers:
        acknowledged = writers.acknowledged
        for kill in range(KILLS):
            writers.write_and_kill(number, chance.randrange(1, 50))
            found = {offset: number_of(one) for offset, one in read_back(tmp_path)}
            where = f"kill {kill}, seed {seed}"
            assert acknowledged.items() <= found.items(), where
            assert len(found) - len(acknowledged) <= 40, f"one batch under way at most: {where}"
            acknowledged.update(found)
            number = max(acknowledged.values()) + 1
    log = SegmentLog.open_owner(tmp_path, SMALL)
    kept = read_all(log, 0)
    assert {offset: number_of(one) for offset, one in kept} == acknowledged
    assert [number_of(one) for _, one in kept] == list(range(number)), (
        f"in order, no gap, none twice: seed {seed}"
    )
    result = check_log(log_folder(tmp_path), log.end_offset())
    assert (result.first_bad, result.records) == (None, number)
    log.close()


def test_a_stored_segment_says_what_it_is(tmp_path: Path) -> None:
    made(tmp_path, [2])
    segment = StoredSegment(log_folder(tmp_path), 0)
    assert (segment.name, segment.is_compressed, segment.footer()) == (segment_name(0), False, None)
    segment.close()
