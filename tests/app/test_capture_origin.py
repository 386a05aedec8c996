"""The chain heads that a capture names are those that the original log has at these places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.capture_origin import origin_of_capture, origin_of_directory, origin_of_topic
from app.capture_reader import CaptureReader
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_store import StoredSegment
from ingest.log.segment_upkeep import keep_up
from projections.events.segment_format import chain_start
from projections.events.segment_scan import scan
from tests.app.captures import capture_of
from tests.replay.captured import busy_log

SETTINGS = SegmentSettings(segment_bytes=6000, reserve_bytes=0, durable=False, allocate_bytes=4096)


def heads_of(data: Path) -> dict[int, bytes]:
    """Chain head at every offset where a batch ends, and at the log's beginning."""
    found: dict[int, bytes] = {}
    for first in stored_segments(log_folder(data)):
        segment = StoredSegment(log_folder(data), first)
        found[first] = chain_start(segment.header)
        for frame in scan(segment.read_at(0, segment.size()), segment.header).batches:
            found[frame.first_offset + frame.records] = frame.head
        segment.close()
    return found


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some sealed segments, compressed ones among them, with a dense index, and an open one."""
    monkeypatch.setattr("projections.events.segment_format.INDEX_STEP_BYTES", 500)
    log = SegmentLog.open_owner(tmp_path / "data", SETTINGS)
    for number, batch in enumerate(busy_log(40).log.read(0, 1 << 30)):
        log.commit([*batch.records] * (1 + number % 3))
        if number == 60:
            keep_up(log)
    log.close()
    return tmp_path / "data"


def as_heads(origin: dict[str, Any]) -> list[tuple[int, bytes]]:
    return [(origin[name]["offset"], bytes.fromhex(origin[name]["head"])) for name in ("before", "after")]


def test_both_heads_stand_in_the_log_around_any_window(data: Path) -> None:
    heads = heads_of(data)
    ends = sorted(heads)
    for first in range(0, ends[-1], 7):
        for stop in (first + 1, (first + ends[-1]) // 2 + 1, ends[-1]):
            if stop <= first:
                continue
            before, after = as_heads(origin_of_directory(data, bytes(16), first, stop))
            assert before[0] == max(end for end in ends if end <= first)
            assert after[0] == min(end for end in ends if end >= stop)
            assert after[1] == heads[after[0]] or after[0] in stored_segments(log_folder(data))
            assert before[1] == heads[before[0]] or before[0] in stored_segments(log_folder(data))


def test_a_capture_of_a_capture_names_the_heads_of_the_one_it_was_made_of(tmp_path: Path) -> None:
    plan = capture_of(busy_log().log, None, tmp_path / "a.capture", 30)
    reader = CaptureReader(tmp_path / "a.capture")
    origin = origin_of_capture(reader, plan.first_offset, plan.stop)
    assert as_heads(origin)[1][0] == plan.stop
    assert origin["capture"] == reader.ends.manifest["capture"]


def test_a_topic_has_no_chain_to_name() -> None:
    assert origin_of_topic(bytes(16)) == {"log_id": bytes(16).hex(), "before": None, "after": None}
