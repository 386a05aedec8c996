"""The checkpoint in a topic as a store that takes nothing."""

from __future__ import annotations

import pytest

from ingest.log.kafka_base import BaseCheckpoint
from ingest.log.kafka_records import Role
from projections.events.codec import encode_record
from projections.events.held import CheckpointClosed, CheckpointOpened
from projections.events.ports import LogCorrupt
from tests.ingest.log.kafka_topic import LOG_ID, Topic, reader_of
from tests.log_suite import record


def held(fact: tuple[object, ...]) -> bytes:
    return encode_record(0, bytes(16), 0, 1, fact)


def store(*base: bytes) -> BaseCheckpoint:
    topic = Topic()
    topic.add(Role.ORIGIN, 8)
    for data in base:
        topic.add(Role.BASE, 7, data)
    topic.add(Role.COPIED, 8, record(8))
    return BaseCheckpoint(reader_of(topic))


def test_the_base_is_the_one_checkpoint() -> None:
    records = [held(CheckpointOpened(7, 99, 1234, LOG_ID)), held(CheckpointClosed(0, ()))]
    checkpoints = store(*records)
    (info,) = checkpoints.list()
    assert (info.offset, info.check, info.time, info.size_bytes) == (7, 99, 1234, sum(map(len, records)))
    assert list(checkpoints.read(info)) == records
    with pytest.raises(OSError, match="topic picklog"):
        checkpoints.write(LOG_ID, 9, 9, 9, iter(()))


def test_a_log_without_a_base_has_no_checkpoint() -> None:
    assert store().list() == []


@pytest.mark.parametrize("data", [b"", b"no record", record(3)])
def test_a_base_that_is_no_checkpoint_is_corrupt(data: bytes) -> None:
    with pytest.raises(LogCorrupt, match="its base is no checkpoint"):
        store(data).list()
