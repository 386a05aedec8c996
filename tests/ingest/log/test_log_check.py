from __future__ import annotations

from pathlib import Path

import pytest

from ingest.log.log_check import LogCheck, check_log
from ingest.log.segment_files import log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_upkeep import compress_sealed, forget
from tests.ingest.log.log_places import SMALL, UnsyncedDisk, files, fill, first_segment, newest_segment


def check(data: Path, end: int) -> LogCheck:
    return check_log(log_folder(data), end)


def made(data: Path, batches: list[int], compress: bool = False) -> int:
    log = SegmentLog.open_owner(data, SMALL, UnsyncedDisk())
    end = fill(log, batches)
    if compress:
        compress_sealed(log)
    log.close()
    return end


@pytest.mark.parametrize("compress", [False, True])
def test_a_good_log_is_walked_to_its_end(tmp_path: Path, compress: bool) -> None:
    end = made(tmp_path, [25] * 60, compress)
    found = check(tmp_path, end)
    assert found.first_bad is None
    assert (found.first_offset, found.end_offset, found.records) == (0, end, end)
    assert (found.batches, found.segments) == (60, len(files(tmp_path)))
    assert found.anchor == bytes(32)


def test_after_retention_the_anchor_is_the_head_before_the_oldest_kept_segment(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL, UnsyncedDisk())
    end = fill(log, [25] * 60)
    gone = sorted(log.manifest.items())[1][1]
    forget(log, gone.end_offset)
    log.close()
    found = check(tmp_path, end)
    assert found.first_bad is None
    assert (found.first_offset, found.anchor.hex()) == (gone.end_offset, gone.head)


def test_any_flipped_bit_is_found_at_its_offset(tmp_path: Path) -> None:
    end = made(tmp_path, [2, 3, 4])
    whole = first_segment(tmp_path).read_bytes()
    for at in range(0, len(whole), 5):
        first_segment(tmp_path).write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        bad = check(tmp_path, end).first_bad
        assert bad is not None
        assert bad.segment == segment_name(0)
        assert bad.offset in (0, 2, 5)
    first_segment(tmp_path).write_bytes(whole)
    assert check(tmp_path, end).first_bad is None


@pytest.mark.parametrize("compress", [False, True])
def test_a_flipped_bit_in_a_sealed_segment_is_found(tmp_path: Path, compress: bool) -> None:
    end = made(tmp_path, [25] * 40, compress)
    path = log_folder(tmp_path) / files(tmp_path)[1]
    whole = path.read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        bad = check(tmp_path, end).first_bad
        assert bad is not None
        assert path.name.startswith(bad.segment.partition(".")[0])


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    end = made(tmp_path, [25] * 60)
    (log_folder(tmp_path) / files(tmp_path)[1]).unlink()
    bad = check(tmp_path, end).first_bad
    assert bad is not None
    assert bad.what == "it does not continue the segment before it"


def test_an_unfinished_batch_at_the_end_is_no_damage(tmp_path: Path) -> None:
    end = made(tmp_path, [3])
    path = newest_segment(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn" + bytes(50))
    found = check(tmp_path, end)
    assert (found.first_bad, found.torn_bytes, found.records) == (None, 4, 3)


def test_where_there_is_no_log_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check(tmp_path, 0)
