"""A topic's own checkpoint stands before those of a folder."""

from __future__ import annotations

from pathlib import Path

from app.checkpoint_store import CheckpointFolder
from app.topic_checkpoints import TopicCheckpoints
from ingest.log.kafka_base import BASE, BaseCheckpoint
from ingest.log.kafka_records import Role
from projections.events.codec import encode_record
from projections.events.held import CheckpointClosed, CheckpointOpened
from tests.app.test_checkpoint_store import LOG, records
from tests.ingest.log.kafka_topic import LOG_ID, Topic, reader_of


def test_both_are_listed_oldest_first_and_read_and_only_the_folder_is_written(tmp_path: Path) -> None:
    opened = CheckpointOpened(7, 99, 1234, LOG_ID)
    base = [encode_record(0, bytes(16), 0, 1, fact) for fact in (opened, CheckpointClosed(0, ()))]
    topic = Topic()
    topic.add(Role.ORIGIN, 8)
    for data in base:
        topic.add(Role.BASE, 7, data)
    store = TopicCheckpoints(CheckpointFolder(tmp_path), BaseCheckpoint(reader_of(topic)))
    written = store.write(LOG, 20, 1, 2, iter(records(3)))
    first, second = store.list()
    assert (first.name, second) == (BASE, written)
    assert [*store.read(first)] == base and [*store.read(second)] == records(3)
