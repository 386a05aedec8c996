from __future__ import annotations

from pathlib import Path

from ingest.log.manifest import MANIFEST_NAME, SegmentInfo, SegmentState, read_manifest, write_manifest
from ingest.log.segment_files import Disk

LOG = bytes(range(16))
INFO = SegmentInfo(7, 90, 1000, 2000, 4096, 512, "aa" * 32, "bb" * 32, SegmentState.COMPRESSED)


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    infos = {90: INFO._replace(first_offset=90, head="", state=SegmentState.OPEN), 7: INFO}
    write_manifest(Disk(), tmp_path, LOG, infos)
    assert read_manifest(tmp_path, LOG) == infos


def test_the_manifest_of_another_log_counts_for_nothing(tmp_path: Path) -> None:
    write_manifest(Disk(), tmp_path, LOG, {7: INFO})
    assert read_manifest(tmp_path, bytes(16)) == {}


def test_odd_manifests_count_for_nothing(tmp_path: Path) -> None:
    assert read_manifest(tmp_path, LOG) == {}
    write_manifest(Disk(), tmp_path, LOG, {7: INFO})
    whole = (tmp_path / MANIFEST_NAME).read_bytes()
    for odd in (whole[:-20], whole.replace(b"compressed", b"melted"), whole.replace(b"end_offset", b"end")):
        (tmp_path / MANIFEST_NAME).write_bytes(odd)
        assert read_manifest(tmp_path, LOG) == {}
