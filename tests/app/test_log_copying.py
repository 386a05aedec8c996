"""Copying between places without Kafka: the base, going on, and what is refused. Topics: tests/live."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.log_copying import Copied, base_of, copy_document, copy_log, open_target
from app.log_places import OpenLog, checkpoint_folder, open_log
from ingest.log.log_copy import CopyRefused
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.staged_log import open_staged
from projections.events.ports import MemoryLog
from tests.app.log_on_disk import some_picks, written
from tests.log_suite import record

SETTINGS = SegmentSettings(durable=False, reserve_bytes=0, allocate_bytes=1 << 16)


def copied(source: Path, target: Path) -> Copied:
    with open_log(source) as opened, open_target(target) as place:
        return copy_log(opened, place)


def late_log(data: Path, first: int, count: int = 10) -> Path:
    """A log that retention has let begin at `first`."""
    log = open_staged(data, bytes(range(16)), first, SETTINGS)
    log.commit([record(first + n) for n in range(count)])
    log.close()
    return data


def test_a_copy_is_equal_goes_on_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    source = written(some_picks(), tmp_path / "source")
    done = copied(source, tmp_path / "copy")
    assert done.is_equal and done.base is None and done.copied == done.source.records > 10
    log = SegmentLog.open_owner(source, SETTINGS)
    log.commit([record(0), record(1)])
    log.close()
    again = copied(source, tmp_path / "copy")
    assert (again.copied, again.is_equal, again.log_id) == (2, True, done.log_id)
    assert copied(source, tmp_path / "copy").copied == 0
    document = copy_document("a", "b", again)
    assert document["source_digest"] == document["target_digest"] and document["equal"] is True
    assert document["records"] == done.copied + 2


def test_a_log_that_begins_late_takes_its_oldest_good_checkpoint_along(tmp_path: Path) -> None:
    source = late_log(tmp_path / "source", 100)
    store = CheckpointFolder(checkpoint_folder(source), keep=9)
    infos = [
        store.write(bytes(16), offset, 1, offset, iter([record(offset)])) for offset in (50, 99, 103, 105)
    ]
    (checkpoint_folder(source) / infos[1].name).write_bytes(b"damaged")
    with open_log(source) as opened:
        base = base_of(opened, 110)
        assert base is not None and base.info.offset == 103
        assert list(base.records()) == list(base.records()) == [record(103)]
    done = copied(source, tmp_path / "copy")
    assert (done.base, done.is_equal, done.source.first_offset) == (103, True, 100)
    (kept,) = CheckpointFolder(checkpoint_folder(tmp_path / "copy")).list()
    assert (kept.offset, kept.check) == (103, 1)


def test_a_log_that_cannot_be_folded_from_its_beginning_is_not_copied(tmp_path: Path) -> None:
    source = late_log(tmp_path / "source", 100)
    with pytest.raises(CopyRefused, match="begins at offset 100 and no checkpoint"):
        copied(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "log").exists()


def test_a_place_with_another_log_or_an_older_beginning_is_refused(tmp_path: Path) -> None:
    source = written(some_picks(), tmp_path / "source")
    other = late_log(tmp_path / "other", 0)
    with pytest.raises(CopyRefused, match="name an empty place"):
        copied(source, other)
    empty = late_log(tmp_path / "empty", 0, 0)
    with pytest.raises(CopyRefused, match="the source begins at 100 now"):
        copied(late_log(tmp_path / "late", 100), empty)


def test_a_log_from_offset_0_needs_no_base() -> None:
    assert base_of(OpenLog(MemoryLog(), CheckpointFolder(Path("none")), "x"), 0) is None
