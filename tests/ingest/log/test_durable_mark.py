from __future__ import annotations

from pathlib import Path

import pytest

from ingest.log.durable_mark import MARK_FILE_BYTES, MARK_NAME, DurableMark, DurableMarkReader

LOG = bytes(range(16))


def test_a_reader_sees_what_was_published_last(tmp_path: Path) -> None:
    mark = DurableMark(tmp_path, LOG, 5)
    reader = DurableMarkReader(tmp_path, LOG)
    assert reader.end_offset() == 5
    mark.publish((1 << 63) + 1)
    assert reader.end_offset() == (1 << 63) + 1
    mark.close()
    assert reader.end_offset() == (1 << 63) + 1
    reader.close()


def test_the_page_is_as_documented(tmp_path: Path) -> None:
    mark = DurableMark(tmp_path, LOG, 0x0102)
    mark.close()
    assert (tmp_path / MARK_NAME).read_bytes() == LOG + b"\x02\x01" + bytes(14)


def test_marks_of_another_log_or_size_are_refused(tmp_path: Path) -> None:
    DurableMark(tmp_path, LOG, 5).close()
    with pytest.raises(ValueError, match="another log"):
        DurableMarkReader(tmp_path, bytes(16))
    (tmp_path / MARK_NAME).write_bytes(LOG)
    with pytest.raises(ValueError, match="size"):
        DurableMarkReader(tmp_path, LOG)


def test_a_page_of_another_size_is_put_right_by_the_owner(tmp_path: Path) -> None:
    (tmp_path / MARK_NAME).write_bytes(b"odd")
    DurableMark(tmp_path, LOG, 9).close()
    assert (tmp_path / MARK_NAME).stat().st_size == MARK_FILE_BYTES
    reader = DurableMarkReader(tmp_path, LOG)
    assert reader.end_offset() == 9
    reader.close()
