"""An imported capture is a data directory like any other, and comes to be in one step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import app.capture_import
from app.capture_import import import_capture
from app.capture_reader import CaptureReader
from app.fold_start import start_fold
from app.log_places import open_log
from ingest.log.log_check import check_log
from ingest.log.segment_files import log_folder
from replay.log_walk import records_of
from tests.app.captures import capture_of
from tests.replay.captured import busy_log


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaptureReader:
    monkeypatch.setattr("app.capture_file.PART_BYTES", 4096)
    capture_of(busy_log(30).log, None, tmp_path / "a.capture", 60)
    return CaptureReader(tmp_path / "a.capture")


@pytest.mark.req("EVS-19")
def test_its_log_checks_and_holds_the_same_records_behind_the_same_state(
    capture: CaptureReader, tmp_path: Path
) -> None:
    data = tmp_path / "made"
    import_capture(capture, data)
    with open_log(data) as opened:
        assert [*records_of(opened.reader, 0 + opened.reader.first_offset())] == [
            *records_of(capture, capture.first_offset())
        ]
        assert opened.reader.log_id == capture.log_id
        start = start_fold(opened.reader, opened.checkpoints)
        assert (start.next_offset, start.incomplete) == (capture.first_offset(), False)
        assert getattr(opened.reader, "window_start") == 60  # noqa: B009
    found = check_log(log_folder(data), capture.end_offset())
    assert found.first_bad is None
    assert found.anchor.hex() == capture.parts[0].head
    assert found.head.hex() == capture.parts[-1].head
    assert (data.stat().st_mode & 0o777, log_folder(data).stat().st_mode & 0o777) == (0o700, 0o700)


def test_what_goes_wrong_on_the_way_leaves_nothing(
    capture: CaptureReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(app.capture_import, "_write", full)
    with pytest.raises(OSError):
        import_capture(capture, tmp_path / "made")
    assert os.listdir(tmp_path) == ["a.capture"]
