"""The spool's files: order, ceiling, full and torn writes, and nothing that is left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ingest.log.segment_files import Disk
from ingest.log.spool import SpoolDamaged
from ingest.log.spool_files import CHECK_BYTES, SpoolFiles


class SmallDisk(Disk):
    """Has room for so many bytes; what is over is written as far as it goes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.files: list[int] = []

    def create(self, path: Path) -> int:
        self.files.append(super().create(path))
        return self.files[-1]

    def write(self, fd: int, data: bytes, position: int) -> None:
        taken = sum(os.fstat(one).st_size for one in self.files)
        fits = max(0, self.room - taken)
        super().write(fd, data[:fits], position)
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def chunk(number: int, size: int = 100) -> bytes:
    return number.to_bytes(4, "big") * (size // 4)


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 3)), max_size=40))
def test_chunks_come_back_as_they_were_first_in_first_out(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    spool = SpoolFiles(tmp_path_factory.mktemp("spool"), 1 << 30, file_bytes=4_096)
    waiting: list[bytes] = []
    for number, (size, taken) in enumerate(steps):
        made = bytes([number]) * size
        assert spool.put(made)
        waiting.append(made)
        for _ in range(min(taken, len(waiting))):
            assert spool.take() == waiting.pop(0)
    while waiting:
        assert spool.take() == waiting.pop(0)
    assert spool.size_bytes == 0


def test_files_are_let_go_of_when_their_last_chunk_was_read(tmp_path: Path) -> None:
    spool = SpoolFiles(tmp_path, 1 << 30, file_bytes=500)
    for number in range(20):
        spool.put(chunk(number))
    assert spool.size_bytes == 20 * (100 + CHECK_BYTES)
    for _ in range(12):
        spool.take()
    assert spool.size_bytes <= 13 * (100 + CHECK_BYTES)
    spool.clear()
    assert spool.size_bytes == 0


def test_nothing_has_a_name_and_the_folder_is_its_owner_s_alone(tmp_path: Path) -> None:
    modes: list[int] = []

    class Watching(Disk):
        def create(self, path: Path) -> int:
            fd = super().create(path)
            modes.append(os.fstat(fd).st_mode & 0o777)
            return fd

    folder = tmp_path / "data" / "spool"
    spool = SpoolFiles(folder, 1 << 30, Watching())
    assert spool.put(chunk(1))
    assert [*folder.iterdir()] == []
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes == [0o600]
    spool.clear()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "0123456789abcdef.spool").write_bytes(b"left")
    (tmp_path / "notes.txt").write_text("somebody's")
    SpoolFiles(tmp_path, 1 << 30)
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_the_ceiling_is_checked_before_bytes_are_written(tmp_path: Path) -> None:
    disk = SmallDisk(1 << 30)
    spool = SpoolFiles(tmp_path, 3 * (100 + CHECK_BYTES), disk)
    assert [spool.put(chunk(number)) for number in range(5)] == [True, True, True, False, False]
    assert os.fstat(disk.files[0]).st_size == spool.size_bytes == 3 * (100 + CHECK_BYTES)
    for _ in range(3):
        spool.take()
    assert spool.put(chunk(9)), "there is room again"
    assert spool.take() == chunk(9)


@pytest.mark.req("EVS-17")
def test_a_full_disk_takes_nothing_of_a_chunk_and_is_told_once(tmp_path: Path) -> None:
    disk = SmallDisk(250)
    spool = SpoolFiles(tmp_path, 1 << 30, disk)
    with capture_logs() as captured:
        assert [spool.put(chunk(number)) for number in range(4)] == [True, True, False, False]
        assert os.fstat(disk.files[0]).st_size == 2 * (100 + CHECK_BYTES), "the torn part is cut off"
        disk.room = 10_000
        assert spool.put(chunk(5))
    assert [entry["log_level"] for entry in captured] == ["warning"]
    assert [spool.take() for _ in range(3)] == [chunk(0), chunk(1), chunk(5)]


def test_a_torn_write_that_cannot_be_cut_off_is_written_over(tmp_path: Path) -> None:
    class Stubborn(SmallDisk):
        def truncate(self, fd: int, size: int) -> None:
            raise OSError(errno.EIO, "no")

    disk = Stubborn(150)
    spool = SpoolFiles(tmp_path, 1 << 30, disk)
    assert [spool.put(chunk(number)) for number in range(2)] == [True, False]
    disk.room = 10_000
    assert spool.put(chunk(7, 40))
    assert [spool.take(), spool.take()] == [chunk(0), chunk(7, 40)]


def test_a_disk_that_makes_no_file_takes_nothing(tmp_path: Path) -> None:
    class ReadOnly(Disk):
        def create(self, path: Path) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    spool = SpoolFiles(tmp_path, 1 << 30, ReadOnly())
    with capture_logs():
        assert not spool.put(chunk(1))
    assert spool.size_bytes == 0


@pytest.mark.parametrize("harm", ["changed", "cut"])
def test_bytes_that_do_not_come_back_as_they_were_are_told(tmp_path: Path, harm: str) -> None:
    disk = SmallDisk(1 << 30)
    spool = SpoolFiles(tmp_path, 1 << 30, disk)
    spool.put(chunk(1))
    if harm == "cut":
        os.ftruncate(disk.files[0], 50)
    else:
        os.pwrite(disk.files[0], b"?", 60)
    with pytest.raises(SpoolDamaged):
        spool.take()
    spool.clear()
