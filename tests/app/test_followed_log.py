"""A follower's parts each have the log to themselves. A topic: tests/live/test_kafka_follower.py."""

from __future__ import annotations

from pathlib import Path

from app.config_load import check_data
from app.followed_log import followed_directory, is_on_kafka
from app.log_places import checkpoint_folder
from tests.app.log_on_disk import some_picks, written


def test_a_directory_is_opened_for_each_part_with_the_configured_checkpoints(tmp_path: Path) -> None:
    data = written(some_picks(), tmp_path / "data")
    shared = tmp_path / "shared"
    for settings, folder in (({}, checkpoint_folder(data)), ({"folder": str(shared)}, shared)):
        config = check_data({"checkpoints": settings})[0]
        with followed_directory(data, config) as followed:
            readers = {id(one.reader) for one in (followed.folded, followed.audited, followed.asked)}
            assert len(readers) == 3
            end = followed.folded.reader.end_offset()
            followed.checkpoints.write(followed.folded.reader.log_id, end - 1, 1, 2, iter([b"x" * 40]))
        assert len([*folder.iterdir()]) == 1


def test_the_configuration_says_where_the_log_is() -> None:
    assert not is_on_kafka(check_data({})[0])
    kafka = {"kind": "kafka", "kafka": {"bootstrap_servers": ["broker:9092"]}}
    assert is_on_kafka(check_data({"log": kafka})[0])
