from __future__ import annotations

import io
from pathlib import Path

import pytest
import zstandard

from ingest.log.segment_files import compressed_name, log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import StoredSegment, compressed_parts
from projections.bounds import MIB
from projections.events.ports import LogCorrupt
from tests.ingest.log.log_places import UnsyncedDisk
from tests.log_suite import record

LARGE = SegmentSettings(segment_bytes=5 * MIB, reserve_bytes=0, durable=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose first segment is sealed and has several chunks, in both forms."""
    data = tmp_path_factory.mktemp("store")
    log = SegmentLog.open_owner(data, LARGE, UnsyncedDisk())
    while len(log.manifest) < 1:
        first = log.end_offset()
        log.commit([record(first + n, blob=200 + n) for n in range(300)])
    log.close()
    found = log_folder(data)
    plain = StoredSegment(found, 0)
    footer = plain.footer()
    assert footer is not None
    (found / compressed_name(0)).write_bytes(b"".join(compressed_parts(plain, footer[1], 3)))
    plain.close()
    return found


def both(folder: Path) -> tuple[StoredSegment, StoredSegment]:
    return StoredSegment(folder, 0, segment_name(0)), StoredSegment(folder, 0, compressed_name(0))


def test_both_forms_give_the_same_bytes_wherever_one_looks(folder: Path) -> None:
    plain, packed = both(folder)
    size = plain.size()
    assert packed.size() == size > 4 * MIB
    assert packed.stored_bytes() < size
    for position in (0, 1, 127, 128, MIB - 1, MIB, 3 * MIB + 5, size - 16, size - 1, size, size + 9):
        for length in (1, 16, 1000, 2 * MIB + 3):
            assert packed.read_at(position, length) == plain.read_at(position, length)
    assert packed.footer() == plain.footer()
    assert packed.header == plain.header
    plain.close()
    packed.close()


def test_an_ordinary_zstd_reader_gives_back_the_plain_segment(folder: Path) -> None:
    stream = zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO((folder / compressed_name(0)).read_bytes()), read_across_frames=True
    )
    assert stream.read() == (folder / segment_name(0)).read_bytes()


def test_a_damaged_table_is_reported(folder: Path, tmp_path: Path) -> None:
    whole = (folder / compressed_name(0)).read_bytes()
    for at in (len(whole) - 1, len(whole) - 9, len(whole) - 30, len(whole) - 60):
        (tmp_path / compressed_name(0)).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(LogCorrupt, match="restore"):
            StoredSegment(tmp_path, 0)
    (tmp_path / compressed_name(0)).write_bytes(b"short")
    with pytest.raises(LogCorrupt, match="too short"):
        StoredSegment(tmp_path, 0)


def test_a_damaged_frame_is_reported_when_it_is_read(folder: Path, tmp_path: Path) -> None:
    whole = (folder / compressed_name(0)).read_bytes()
    at = len(whole) // 2
    (tmp_path / compressed_name(0)).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    segment = StoredSegment(tmp_path, 0)
    with pytest.raises(LogCorrupt, match="zstd frame"):
        segment.read_at(0, segment.size())
    segment.close()


def test_a_segment_under_a_wrong_name_is_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / segment_name(9)).write_bytes((folder / segment_name(0)).read_bytes())
    with pytest.raises(LogCorrupt, match="begins at offset 0"):
        StoredSegment(tmp_path, 9)


def test_an_absent_segment_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StoredSegment(tmp_path, 0)
