"""Figures of a log on Kafka and the check of its records, for `log stat` and `log verify`.

Writers interleave on a topic, so no chain of batches can be kept there (architecture 7.4): what
is checked is each record's own check word and that offsets grow; whether the state agrees with the
owner's ticks is told by `replay verify`. Sizes are the records' own; what brokers store, compressed
and copied, they alone know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from app.marks import Marks
from ingest.log.kafka_reader import KafkaReader
from projections.bounds import SECOND_US
from projections.events.segment_format import record_checks

READ_BYTES = 1 << 20


class TopicWalk(NamedTuple):
    """All records of a topic, walked once. first_bad: offset and what is wrong there."""

    first_offset: int
    end_offset: int
    records: int
    plain_bytes: int
    first_bad: tuple[int, str] | None


def walk_topic(reader: KafkaReader, advance: Callable[[int], object]) -> TopicWalk:
    """Read and check every record. Raises LogError where the topic itself cannot be read."""
    first, end = reader.first_offset(), reader.end_offset()
    records = plain_bytes = 0
    due = offset = first
    while offset < end and (batches := reader.read(offset, READ_BYTES)):
        for batch in batches:
            for offset, data in enumerate(batch.records, batch.first_offset):
                if offset < due:
                    bad = offset, f"offset {offset}, {due} is due"
                    return TopicWalk(first, end, records, plain_bytes, bad)
                if not record_checks(data):
                    bad = offset, f"the check word of record {offset} differs"
                    return TopicWalk(first, end, records, plain_bytes, bad)
                due = offset + 1
                records += 1
                plain_bytes += len(data)
        offset = due
        advance(min(offset, end))
    return TopicWalk(first, end, records, plain_bytes, None)


def topic_document(reader: KafkaReader, walk: TopicWalk) -> dict[str, Any]:
    """Keys as those of a data directory's report, where a topic has them."""
    marks = Marks(reader)
    first, newest = marks.oldest_stamp(), marks.newest_stamp()
    span_us = newest - first if first is not None and newest is not None else 0
    seconds = span_us / SECOND_US
    return {
        "log_id": reader.log_id.hex(),
        "topic": reader.place.topic,
        "first_offset": walk.first_offset,
        "end_offset": walk.end_offset,
        "records": walk.records,
        "first_at": None if first is None else marks.time_text(first),
        "last_at": None if newest is None else marks.time_text(newest),
        "span_seconds": seconds,
        "records_per_second": walk.records / seconds if seconds else 0.0,
        "plain_bytes": walk.plain_bytes,
    }


def check_document(reader: KafkaReader, walk: TopicWalk) -> dict[str, Any]:
    """What `log verify --json` says of a topic."""
    bad = walk.first_bad
    return {
        "log_id": reader.log_id.hex(),
        "topic": reader.place.topic,
        "good": bad is None,
        "first_offset": walk.first_offset,
        "end_offset": walk.end_offset,
        "records": walk.records,
        "first_bad": None if bad is None else {"offset": bad[0], "what": bad[1]},
    }
