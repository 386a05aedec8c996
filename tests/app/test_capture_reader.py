"""A capture reads like the log that it is of; what is wrong with one is told in one line."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import orjson
import pytest

import app.capture_file
from app.capture_file import HEAD, HEAD_BYTES, PartInfo, checked
from app.capture_reader import CaptureReader, CaptureUnreadable
from projections.events.ports import LogCorrupt, OffsetGone
from replay.log_walk import records_of
from replay.verify import verify
from tests.app.captures import capture_of, with_manifest
from tests.replay.captured import busy_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    capture_of(busy_log(30).log, None, tmp_path / "a.capture", 60)
    return tmp_path / "a.capture"


def refusal(path: Path) -> str:
    with pytest.raises(CaptureUnreadable) as refused:
        CaptureReader(path)
    text = str(refused.value)
    assert "\n" not in text and text.startswith(str(path))
    return text


@pytest.mark.req("EVS-19")
def test_it_reads_at_every_offset_what_the_log_held_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.capture_file, "PART_BYTES", 6000)
    monkeypatch.setattr(app.capture_file, "BATCH_RECORDS", 7)
    monkeypatch.setattr("projections.events.segment_format.INDEX_STEP_BYTES", 1000)
    world = busy_log(40)
    plan = capture_of(world.log, None, tmp_path / "a.capture", 60)
    reader = CaptureReader(tmp_path / "a.capture")
    whole = [*records_of(world.log, plan.first_offset)]
    assert (reader.first_offset(), reader.end_offset()) == (plan.first_offset, plan.stop)
    assert reader.window_start == 60
    for offset in (*range(plan.first_offset, plan.stop, 5), plan.first_offset, plan.stop - 1):
        assert [*records_of(reader, offset)] == [one for one in whole if one[0] >= offset]
    assert reader.check_whole() == len(whole)
    assert verify(reader, reader.checkpoints(), reader.window_start, plan.stop).unverifiable == 0
    reader.close()


def test_what_lies_outside_is_gone_or_the_end(path: Path) -> None:
    reader = CaptureReader(path)
    assert reader.read(reader.end_offset(), 100) == []
    with pytest.raises(OffsetGone):
        reader.read(reader.first_offset() - 1, 100)


async def test_waiting_at_its_end_takes_as_long_as_asked(path: Path) -> None:
    reader = CaptureReader(path)
    began = asyncio.get_running_loop().time()
    await reader.wait(reader.end_offset(), 0.02)
    assert asyncio.get_running_loop().time() - began > 0.01


def test_its_base_is_its_one_checkpoint_and_takes_no_other(path: Path) -> None:
    store = CaptureReader(path).checkpoints()
    (info,) = store.list()
    assert info.offset == CaptureReader(path).first_offset() - 1
    with pytest.raises(OSError) as refused:
        store.write(bytes(16), 0, 0, 0, iter(()))
    assert refused.value.errno == errno.EROFS


@pytest.mark.req("EVS-19")
def test_every_flipped_byte_is_found(path: Path) -> None:
    data = path.read_bytes()
    undetected = []
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])
        try:
            reader = CaptureReader(path)
            reader.check_whole()
            undetected.append(place)
        except (CaptureUnreadable, LogCorrupt):
            pass
    assert undetected == []


def test_every_length_but_its_own_is_cut_short(path: Path) -> None:
    data = path.read_bytes()
    for size in (0, 1, 7, 8, 63, 64, 127, 128, len(data) // 2, len(data) - 65, len(data) - 1):
        path.write_bytes(data[:size])
        assert "no capture" in refusal(path) if size < 8 else "cut short" in refusal(path)
    path.write_bytes(data + b"\0")
    assert "end is not that of a capture" in refusal(path)


def test_a_part_that_does_not_continue_the_one_before_is_found(path: Path) -> None:
    manifest = CaptureReader(path).ends.manifest
    manifest["parts"][0]["head"] = "00" * 32
    with_manifest(path, orjson.dumps(manifest))
    with pytest.raises(LogCorrupt, match="part 1 does not continue the chain"):
        CaptureReader(path).read(CaptureReader(path).first_offset(), 1)


def test_a_manifest_that_names_other_records_is_found(path: Path) -> None:
    manifest = CaptureReader(path).ends.manifest
    with_manifest(path, orjson.dumps({**manifest, "records": 3}))
    with pytest.raises(LogCorrupt, match="not those that the manifest names"):
        CaptureReader(path).check_whole()


def test_other_files_are_told_from_captures(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"PICKLOG\n" + bytes(200))
    assert "a single segment is no capture" in refusal(file)
    file.write_bytes(b"SQLite format 3\0" + bytes(200))
    assert "its first 8 bytes differ" in refusal(file)


def test_a_newer_format_is_refused_by_its_number(path: Path) -> None:
    data = path.read_bytes()
    head = HEAD.pack(b"PICKCAP\n", 2, HEAD_BYTES, 0, data[16:32])
    path.write_bytes(checked(head) + data[HEAD_BYTES:])
    assert "capture format 2 is newer than this release reads (1): update picklog" in refusal(path)


@pytest.mark.req("EVS-21")
def test_a_newer_schema_or_fold_mode_is_refused_by_name(tmp_path: Path) -> None:
    world = busy_log(2)
    path = tmp_path / "a.capture"
    capture_of(world.log, None, path, schema=2, product="picklog 3.1")
    assert "schema 2, written by picklog 3.1; this release reads 1: update picklog" in refusal(path)
    capture_of(world.log, None, path, fold_modes=[7])
    assert "fold mode [7]" in refusal(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"log_id": "zz"}, "its manifest lacks"),
        ({"window": None}, "its manifest lacks"),
        ({"parts": []}, "parts that are not there"),
        ({"parts": [{"what": "records"}]}, "its manifest lacks"),
        ({"parts": [dict.fromkeys(PartInfo._fields, "x")]}, "its manifest lacks the right kinds of values"),
        ({"parts": [dict.fromkeys(PartInfo._fields)]}, "its manifest lacks the right kinds of values"),
        ({"parts": {"a": 1}}, "its manifest lacks"),
        ({"schema": "2"}, "schema 2"),
        ({"fold_modes": 3}, "fold mode"),
        ({"fold_modes": [[1]]}, "fold mode"),
        ({"fold_modes": [True]}, "fold mode"),
        ({"end_offset": 1e30}, "other offsets than its parts hold"),
        ({"end_offset": 10**9}, "other offsets than its parts hold"),
        ({"first_offset": -5}, "other offsets than its parts hold"),
    ],
)
def test_a_manifest_that_says_nonsense_is_refused(path: Path, change: dict[str, object], words: str) -> None:
    with_manifest(path, orjson.dumps({**CaptureReader(path).ends.manifest, **change}))
    assert words in refusal(path)


def test_a_manifest_that_is_no_object_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for body in (b"[1]", b"{"):
        path.write_bytes(whole)
        with_manifest(path, body)
        assert "no JSON object" in refusal(path)
