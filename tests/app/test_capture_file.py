"""A capture file is whole or not there, and its parts are the segments that a log is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zstandard

import app.capture_file
from app.capture_file import CaptureFile
from app.capture_reader import CaptureReader
from projections.events.segment_format import HEADER_BYTES, decode_header, frame_records
from projections.events.segment_scan import StopKind, scan
from replay.log_walk import records_of
from tests.app.captures import capture_of
from tests.replay.captured import busy_log


def test_each_part_is_a_compressed_segment_that_continues_the_chain_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.capture_file, "PART_BYTES", 4096)
    world = busy_log(30)
    plan = capture_of(world.log, None, tmp_path / "a.capture", 40)
    reader = CaptureReader(tmp_path / "a.capture")
    data = (tmp_path / "a.capture").read_bytes()
    head, found = bytes(32), []
    for part in reader.parts:
        stored = data[part.position : part.position + part.bytes]
        plain = b"".join(_frames(stored))
        header = decode_header(plain)
        assert (header.previous_head, header.log_id) == (head, world.log.log_id)
        scanned = scan(plain, header)
        assert scanned.stop.kind is StopKind.SEALED
        head = scanned.head
        if part.what == "records":
            found += [record for frame in scanned.batches for record in frame_records(plain, frame)]
    assert len(reader.records_parts) > 2
    assert head.hex() == reader.ends.manifest["chain_head"]
    assert found == [data for _, data in records_of(world.log, plan.first_offset)]


def _frames(stored: bytes) -> list[bytes]:
    """The plain bytes of a run of zstd frames, as `zstd -d` would give them."""
    reader = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
    return [reader.read()]


def test_a_jump_of_offsets_begins_a_new_part(tmp_path: Path) -> None:
    world = busy_log(4)
    world.log.jump(1 << 20)
    world.sample(1, 5)
    capture_of(world.log, None, tmp_path / "a.capture")
    reader = CaptureReader(tmp_path / "a.capture")
    assert [part.first_offset for part in reader.records_parts] == [0, 1 << 20]
    assert [*records_of(reader, 0)] == [*records_of(world.log, 0)]


def test_large_batches_and_many_small_ones_become_batches_of_about_one_size(tmp_path: Path) -> None:
    path = tmp_path / "a.capture"
    record = next(data for _, data in records_of(busy_log(1).log, 0))
    with CaptureFile(path, bytes(16)) as file:
        offset = 0
        for count in (1, 1, 1, 70_000, 1, 1):
            file.records(offset, [record] * count)
            offset += count
        file.finish(
            {"log_id": bytes(16).hex(), "first_offset": 0, "end_offset": offset, "window": {"from": 0}}
            | {"records": offset, "schema": 1, "fold_modes": []}
        )
    reader = CaptureReader(path)
    assert reader.check_whole() == offset
    sizes = [len(batch.records) for batch in reader.read(0, 1 << 30)]
    assert sum(sizes) == offset and max(sizes) <= 16_384


def test_nothing_stays_where_it_was_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.capture"
    path.write_bytes(b"an older one")
    with CaptureFile(path, bytes(16)) as file:
        file.records(0, [b"x" * 50])
    assert os.listdir(tmp_path) == ["a.capture"]
    assert path.read_bytes() == b"an older one"


def test_it_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    capture_of(busy_log(2).log, None, tmp_path / "a.capture")
    assert (tmp_path / "a.capture").stat().st_mode & 0o777 == 0o600
    assert HEADER_BYTES == 128
