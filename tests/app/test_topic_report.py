"""Figures and the check of a topic, on one in memory."""

from __future__ import annotations

from app.topic_report import check_document, topic_document, walk_topic
from ingest.log.kafka_records import Role
from projections.events.ports import MemoryLog
from tests.app.timed_log import write_seconds
from tests.ingest.log.kafka_topic import LOG_ID, Topic, reader_of
from tests.log_suite import read_all, record

SECONDS = 20


def timed() -> Topic:
    topic = Topic()
    log = MemoryLog(LOG_ID)
    write_seconds(log, SECONDS)
    topic.add(Role.ORIGIN, 0)
    for offset, data in read_all(log, 0):
        topic.add(Role.COPIED, offset, data)
    topic.mark()
    return topic


def test_a_topic_is_told_as_a_directory_is() -> None:
    reader = reader_of(timed(), follows=False)
    told: list[int] = []
    walk = walk_topic(reader, told.append)
    found = topic_document(reader, walk)
    assert (found["first_offset"], found["end_offset"], found["records"]) == (0, 201, 201)
    assert (found["log_id"], found["topic"]) == (LOG_ID.hex(), "picklog")
    assert round(found["span_seconds"]) == SECONDS
    assert 9 < found["records_per_second"] < 11
    assert found["plain_bytes"] == sum(len(data) for _, data in read_all(reader, 0))
    assert found["first_at"].startswith("2026-")
    assert told[-1] == 201
    assert check_document(reader, walk)["good"] is True


def test_a_record_that_does_not_check_is_named() -> None:
    topic = timed()
    broken = topic.add(Role.APPENDED, -1, record(7)[:-1] + b"x")
    reader = reader_of(topic)
    found = check_document(reader, walk_topic(reader, lambda offset: None))
    assert found["good"] is False
    assert found["first_bad"] == {
        "offset": broken - 1,
        "what": f"the check word of record {broken - 1} differs",
    }


def test_an_empty_log_has_no_times() -> None:
    topic = Topic()
    topic.add(Role.ORIGIN, 0)
    reader = reader_of(topic)
    found = topic_document(reader, walk_topic(reader, lambda offset: None))
    assert (found["records"], found["first_at"], found["records_per_second"]) == (0, None, 0.0)
