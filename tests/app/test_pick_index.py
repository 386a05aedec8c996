"""The index of picks: the same answers as a scan, made anew whenever it does not fit."""

from pathlib import Path

import pytest

from app.pick_index import PickIndex
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.events.picks import PickMade
from replay.explain import PickNotFound, explain, find_pick
from replay.log_walk import record_at, records_of
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_engine import long_log

SMALL = SegmentSettings(segment_bytes=1 << 14, durable=False, reserve_bytes=0, allocate_bytes=1 << 12)


def segmented(world: RecordedLog, data: Path) -> Path:
    """The log in several segments."""
    store = SegmentLog.open_owner(data, SMALL)
    for batch in world.log.read(0, 1 << 30):
        store.commit(batch.records)
    store.close()
    return data


def picks_of(reader: SegmentReader) -> dict[int, PickMade]:
    found = {}
    for offset, data in records_of(reader, 0):
        record = record_at(offset, data)
        if record is not None and isinstance(record.fact, PickMade):
            found[offset] = record.fact
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return segmented(long_log(), tmp_path / "data")


@pytest.mark.req("EVS-07")
def test_every_pick_is_found_by_both_ids_as_a_scan_finds_it(data: Path) -> None:
    reader = SegmentReader.open(data)
    index = PickIndex(data, reader)
    picks = picks_of(reader)
    assert min(picks) < index.indexed_end < max(picks), "some are indexed and some are not"
    for offset, fact in picks.items():
        for name in (fact.pick_id.hex(), fact.question.request_id):
            assert find_pick(reader, name, index)[0] == find_pick(reader, name)[0] == offset
    assert find_pick(reader, "last", index)[0] == max(picks)
    with pytest.raises(PickNotFound):
        find_pick(reader, "nobody", index)
    reader.close()


def test_an_indexed_pick_is_explained_with_its_end(data: Path) -> None:
    reader = SegmentReader.open(data)
    index = PickIndex(data, reader)
    offset, fact = next(iter(picks_of(reader).items()))
    with_index = explain(reader, None, fact.pick_id.hex(), str, index)
    assert with_index == explain(reader, None, str(offset), str)
    assert with_index["end"]["status"] == "ok" and with_index["repeated"] == "equal"
    reader.close()


def test_files_are_kept_used_again_and_forgotten_with_their_segment(data: Path) -> None:
    reader = SegmentReader.open(data)
    PickIndex(data, reader)
    files = sorted((data / "index").iterdir())
    assert len(files) > 2 and {path.suffix for path in files} == {".picks"}, "the newest one is short yet"
    times = [path.stat().st_mtime_ns for path in files]
    (data / "index" / f"{5:020d}.picks").write_bytes(b"of a segment that is gone")
    PickIndex(data, reader)
    assert sorted((data / "index").iterdir()) == files
    assert [path.stat().st_mtime_ns for path in files] == times
    reader.close()


@pytest.mark.parametrize("harm", [b"", b"short", None])
def test_a_file_that_does_not_fit_is_made_anew(data: Path, harm: bytes | None) -> None:
    reader = SegmentReader.open(data)
    PickIndex(data, reader)
    path = sorted((data / "index").iterdir())[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:] if harm is None else harm)
    PickIndex(data, reader)
    assert path.read_bytes() == whole
    reader.close()


def test_a_folder_that_cannot_be_written_costs_time_alone(data: Path) -> None:
    (data / "index").write_text("in the way")
    reader = SegmentReader.open(data)
    index = PickIndex(data, reader)
    offset, fact = next(iter(picks_of(reader).items()))
    assert find_pick(reader, fact.pick_id.hex(), index)[0] == offset
    reader.close()


def test_the_newest_segment_has_a_file_that_is_brought_up_to_date(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SegmentReader.open(data)
    end = reader.end_offset()
    monkeypatch.setattr("app.pick_index.OPEN_LAG_RECORDS", 1)
    assert PickIndex(data, reader).indexed_end == end
    monkeypatch.setattr("app.pick_index.OPEN_LAG_RECORDS", 10)
    store = SegmentLog.open_owner(data, SMALL)
    late = RecordedLog().replica()
    store.commit([bytes(record) for _, record in records_of(late.world.log, 0, 5)])
    store.close()
    reader.close()
    reader = SegmentReader.open(data)
    lagging = PickIndex(data, reader)
    assert lagging.indexed_end == end < reader.end_offset(), "five records are not worth it"
    monkeypatch.setattr("app.pick_index.OPEN_LAG_RECORDS", 2)
    whole = PickIndex(data, reader)
    assert whole.indexed_end == reader.end_offset()
    for offset, fact in picks_of(reader).items():
        assert find_pick(reader, fact.pick_id.hex(), whole)[0] == offset
    reader.close()
