from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ingest.log.segment_files import (
    Disk,
    LogHeld,
    OwnerLock,
    compressed_name,
    has_owner,
    is_full,
    log_folder,
    make_folder,
    offset_of_name,
    segment_name,
    stored_segments,
    write_whole,
)


def test_names_sort_as_offsets_do_and_lead_back() -> None:
    offsets = [0, 9, 10, 1 << 20, (1 << 63) - 1]
    names = [segment_name(offset) for offset in offsets]
    assert names == sorted(names)
    assert [offset_of_name(name) for name in names] == offsets
    assert offset_of_name(compressed_name(77)) == 77


@pytest.mark.parametrize(
    "name", ["manifest.json", "lock", "durable", "1.seg", segment_name(1) + ".tmp", "x" * 20 + ".seg"]
)
def test_other_files_are_no_segments(name: str) -> None:
    assert offset_of_name(name) is None


def test_a_segment_in_both_forms_is_listed_once(tmp_path: Path) -> None:
    for name in (segment_name(5), compressed_name(5), segment_name(3), "lock"):
        (tmp_path / name).touch()
    assert stored_segments(tmp_path) == [3, 5]
    assert stored_segments(tmp_path / "absent") == []


def test_a_file_is_replaced_as_a_whole_also_over_an_earlier_attempt(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    (tmp_path / "file.tmp").write_bytes(b"half of an earlier attempt")
    write_whole(Disk(), path, b"new")
    assert path.read_bytes() == b"new"
    assert not (tmp_path / "file.tmp").exists()


def test_the_lock_tells_who_holds_it_and_goes_with_it(tmp_path: Path) -> None:
    assert not has_owner(tmp_path)
    lock = OwnerLock(tmp_path)
    assert has_owner(tmp_path)
    with pytest.raises(LogHeld, match=str(os.getpid())):
        OwnerLock(tmp_path)
    lock.release()
    assert not has_owner(tmp_path)
    OwnerLock(tmp_path).release()


def test_folders_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    make_folder(log_folder(tmp_path / "data"))
    assert log_folder(tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_want_of_room_is_told_from_other_errors() -> None:
    assert all(is_full(OSError(code, "")) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    assert not is_full(OSError(errno.EIO, ""))


def test_zeros_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.create(tmp_path / "file")
    disk.write(fd, b"x" * 10, 0)
    disk.write_zeros(fd, 4, (1 << 20) + 7)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"xxxx" + bytes((1 << 20) + 7)
