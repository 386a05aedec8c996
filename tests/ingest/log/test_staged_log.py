"""A staged log begins where it is told, jumps where it is told, and cuts what a crash tore off."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.log.log_check import check_log
from ingest.log.segment_files import log_folder, segment_name
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.staged_log import open_staged
from projections.bounds import OFFSET_JUMP
from projections.events.ports import CommitFailed
from tests.replay.captured import busy_log

SETTINGS = SegmentSettings(reserve_bytes=0, durable=False, allocate_bytes=1 << 12)
ID = b"s" * 16


def some(count: int) -> list[bytes]:
    found: list[bytes] = []
    for batch in busy_log(count).log.read(0, 1 << 30):
        found += batch.records
    return found[:count]


def read(data: Path) -> list[tuple[int, bytes]]:
    reader = SegmentLog.open_reader(data)
    first = reader.first_offset()
    found = [
        (o, d)
        for batch in reader.read(first, 1 << 30)
        for o, d in enumerate(batch.records, batch.first_offset)
    ]
    reader.close()
    return found


def test_it_begins_at_any_offset_and_goes_on_there(tmp_path: Path) -> None:
    records = some(6)
    log = open_staged(tmp_path, ID, 1000, SETTINGS)
    assert (log.log_id, log.first_offset(), log.end_offset()) == (ID, 1000, 1000)
    assert log.commit(records[:3]) == 1000
    log.close()
    log = open_staged(tmp_path, b"other-id-is-late", 5, SETTINGS)
    assert (log.log_id, log.end_offset()) == (ID, 1003)
    assert log.commit(records[3:]) == 1003
    log.close()
    assert read(tmp_path) == [*enumerate(records, 1000)]


@pytest.mark.parametrize("before", [0, 3])
def test_it_jumps_as_the_original_did_and_still_checks(tmp_path: Path, before: int) -> None:
    records = some(5)
    log = open_staged(tmp_path, ID, 10, SETTINGS)
    if before:
        log.commit(records[:before])
    log.jump(10 + before)
    log.jump(OFFSET_JUMP)
    assert log.commit(records[before:]) == OFFSET_JUMP
    with pytest.raises(CommitFailed, match="was used"):
        log.jump(11)
    log.close()
    expected = [*enumerate(records[:before], 10), *enumerate(records[before:], OFFSET_JUMP)]
    assert read(tmp_path) == expected
    assert check_log(log_folder(tmp_path), OFFSET_JUMP + 5 - before).first_bad is None


def test_a_torn_tail_is_cut_and_its_offsets_are_used_for_the_same_records_again(tmp_path: Path) -> None:
    records = some(6)
    log = open_staged(tmp_path, ID, 0, SETTINGS)
    log.commit(records[:2])
    whole = (log_folder(tmp_path) / segment_name(0)).read_bytes()
    log.commit(records[2:4])
    log.close()
    path = log_folder(tmp_path) / segment_name(0)
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn + b"\x01" * 9)
    (log_folder(tmp_path) / "durable").unlink()
    log = open_staged(tmp_path, ID, 0, SETTINGS)
    assert log.end_offset() == 2
    assert log.commit(records[2:]) == 2
    log.close()
    assert read(tmp_path) == [*enumerate(records)]
    assert len(whole) > 0
