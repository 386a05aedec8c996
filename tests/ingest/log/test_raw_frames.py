from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingest.log.raw_frames import KeptFrames, Lost, RawFrames, RawSettings, raw_digest, raw_folder
from projections.bounds import KV_FRAME_BYTES_MAX, SECOND_US

LOG = bytes(range(16))


def frame(number: int, size: int = 200) -> bytes:
    return number.to_bytes(4, "big") * (size // 4)


def test_a_frame_is_found_by_the_offset_of_its_record(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings(file_bytes=1000))
    for number in range(50):
        raw.put(number * 3, frame(number), number)
    reader = KeptFrames(tmp_path, LOG)
    for number in range(50):
        assert reader.get(number * 3, raw_digest(frame(number))) == frame(number)
        assert reader.get(number * 3 + 1, raw_digest(frame(number))) is Lost.GONE
    assert len(list(raw_folder(tmp_path).iterdir())) > 5
    raw.close()


@pytest.mark.req("EVS-02")
def test_a_frame_that_is_not_the_records_own_counts_as_not_kept(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw.put(1, frame(1), 1)
    raw.close()
    assert KeptFrames(tmp_path, LOG).get(1, raw_digest(frame(2))) is Lost.DAMAGED
    path = next(raw_folder(tmp_path).iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    assert KeptFrames(tmp_path, LOG).get(1, raw_digest(frame(1))) is Lost.DAMAGED
    path.write_bytes(data[:-1])
    assert KeptFrames(tmp_path, LOG).get(1, raw_digest(frame(1))) is Lost.DAMAGED


def test_frames_of_another_log_are_not_found(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw.put(1, frame(1), 1)
    raw.close()
    assert KeptFrames(tmp_path, bytes(16)).get(1, raw_digest(frame(1))) is Lost.GONE


def test_files_beyond_their_age_go(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings(age_us=10 * SECOND_US, file_bytes=1000))
    for second in range(100):
        raw.put(second, frame(second), second * SECOND_US)
    reader = KeptFrames(tmp_path, LOG)
    assert reader.get(80, raw_digest(frame(80))) is Lost.GONE
    assert all(reader.get(second, raw_digest(frame(second))) for second in range(91, 100))
    raw.close()


def test_the_oldest_files_go_beyond_the_bytes_also_after_a_restart(tmp_path: Path) -> None:
    settings = RawSettings(bytes_max=5000, file_bytes=1000)
    for start in (0, 1000):
        raw = RawFrames(tmp_path, LOG, settings)
        for number in range(100):
            raw.put(start + number, frame(number), start + number)
        raw.close()
    assert sum(path.stat().st_size for path in raw_folder(tmp_path).iterdir()) <= 5000
    reader = KeptFrames(tmp_path, LOG)
    assert reader.get(99, raw_digest(frame(99))) is Lost.GONE
    assert reader.get(1099, raw_digest(frame(99))) == frame(99)


def test_a_disk_that_fails_loses_frames_and_raises_nothing(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw_folder(tmp_path).rename(tmp_path / "away")
    raw.put(1, frame(1), 1)
    raw.put(2, bytes(KV_FRAME_BYTES_MAX + 1), 1)
    assert raw.dropped == 2
    (tmp_path / "away").rename(raw_folder(tmp_path))
    raw.put(3, frame(3), 1)
    assert KeptFrames(tmp_path, LOG).get(3, raw_digest(frame(3))) == frame(3)
    raw.close()


def test_kept_frames_are_found_in_any_order_over_many_files(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings(file_bytes=1000))
    for number in range(50):
        raw.put(7 + number * 3, frame(number), number)
    raw.close()
    kept = KeptFrames(tmp_path, LOG)
    assert kept.first_offset() == 7
    for number in (*range(50), 49, 3, 31, 0):
        assert kept.get(7 + number * 3, raw_digest(frame(number))) == frame(number)
        assert kept.get(8 + number * 3, raw_digest(frame(number))) is Lost.GONE
        assert kept.get(7 + number * 3, raw_digest(frame(number + 1))) is Lost.DAMAGED


def test_kept_frames_of_another_log_cut_short_or_gone_count_as_not_kept(tmp_path: Path) -> None:
    assert KeptFrames(tmp_path, LOG).first_offset() is None
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw.put(1, frame(1), 1)
    raw.put(2, frame(2), 2)
    raw.close()
    assert KeptFrames(tmp_path, bytes(16)).first_offset() is None
    path = next(raw_folder(tmp_path).iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    kept = KeptFrames(tmp_path, LOG)
    assert kept.get(1, raw_digest(frame(1))) == frame(1)
    assert kept.get(2, raw_digest(frame(2))) is Lost.DAMAGED
    path.unlink()
    assert kept.get(1, raw_digest(frame(1))) is Lost.GONE
    assert KeptFrames(tmp_path, LOG).first_offset() is None


def test_a_size_beyond_the_ceiling_of_frames_ends_a_file(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw.put(1, frame(1), 1)
    raw.put(2, frame(2), 2)
    raw.close()
    path = next(raw_folder(tmp_path).iterdir())
    huge = bytes(KV_FRAME_BYTES_MAX + 1)
    data = bytearray(path.read_bytes())
    second = 24 + 28 + len(frame(1))
    data[second + 16 : second + 20] = len(huge).to_bytes(4, "little")
    path.write_bytes(bytes(data[: second + 28]) + huge)
    kept = KeptFrames(tmp_path, LOG)
    assert kept.get(1, raw_digest(frame(1))) == frame(1)
    assert kept.get(2, raw_digest(huge)) is Lost.DAMAGED
    RawFrames(tmp_path, LOG, RawSettings()).close()


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling", "link", "device"])
def test_what_is_no_plain_file_is_left_alone_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    raw.put(1, frame(1), 1)
    raw.close()
    place = raw_folder(tmp_path) / f"{7:020d}.raw"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        (tmp_path / "other").write_bytes(b"x")
        place.symlink_to({"dangling": "none", "link": str(tmp_path / "other"), "device": "/dev/zero"}[kind])
    again = RawFrames(tmp_path, LOG, RawSettings())
    again.put(9, frame(9), 9)
    again.close()
    kept = KeptFrames(tmp_path, LOG)
    assert kept.get(1, raw_digest(frame(1))) == frame(1)
    assert kept.get(7, 0) is Lost.GONE
    assert kept.get(9, raw_digest(frame(9))) == frame(9)


def test_an_offset_that_stands_twice_hides_none_of_the_others(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path, LOG, RawSettings())
    for number in (1, 2, 2, 3):
        raw.put(number, frame(number), number)
    raw.close()
    kept = KeptFrames(tmp_path, LOG)
    assert [kept.get(n, raw_digest(frame(n))) for n in (1, 2, 3)] == [frame(n) for n in (1, 2, 3)]
