"""The topic as a row store: rows before marks, a broken producer thrown away, the newest mark found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from app.audit_database import AuditAway, AuditRefused
from app.audit_messages import decode, encode_mark
from app.audit_producer import MARK_KEY, PARTITIONS, AuditProducer
from app.audit_rows import AuditRows, SinkMark
from ingest.log.kafka_keyed import Keyed
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable, TopicRefused
from tests.app.stream_site import LOG, Story, Topic

PLACE = KafkaPlace(("127.0.0.1:1",), "picklog.audit")


class Sending:
    """A producer in memory. trouble: raised by the next calls."""

    def __init__(self, trouble: Sequence[Exception] = ()) -> None:
        self.trouble = list(trouble)
        self.calls: list[list[Keyed]] = []
        self.closed = 0

    async def messages(self, messages: Sequence[Keyed]) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        self.calls.append(list(messages))

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def sending(monkeypatch: pytest.MonkeyPatch) -> Sending:
    found = Sending()

    async def opened(*_: Any) -> Sending:
        return found

    monkeypatch.setattr("app.audit_producer.KeyedSend.open", opened)
    return found


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    found = Topic()

    async def opened(*_: Any) -> Topic:
        return found

    monkeypatch.setattr("app.audit_producer.KeyedSpans.open", opened)
    return found


async def test_rows_are_sent_before_marks_of_every_partition(sending: Sending) -> None:
    rows = Story(40).rows
    acknowledged: list[int] = []
    producer = AuditProducer(PLACE, LOG, acknowledged.append)
    assert await producer.write(rows) == rows.count
    told, marks = sending.calls
    assert acknowledged == [len(told)]
    assert sum(len(decode(message.value).rows) for message in told) == rows.count
    assert {message.partition for message in told} == {None}
    assert [(mark.key, mark.partition) for mark in marks] == [(MARK_KEY, n) for n in range(PARTITIONS)]
    assert rows.last is not None
    assert {decode(mark.value)[:4] for mark in marks} == {(LOG, rows.last[0], rows.at, rows.last[1])}
    await producer.close()
    assert sending.closed == 1


async def test_nothing_to_say_sends_nothing_and_a_moved_mark_is_sent_alone(sending: Sending) -> None:
    producer = AuditProducer(PLACE, LOG)
    assert await producer.write(AuditRows()) == 0
    assert sending.calls == []
    rows = AuditRows()
    rows.last = (5, 1)
    await producer.write(rows)
    assert [len(call) for call in sending.calls] == [0, PARTITIONS]


async def test_a_producer_that_failed_is_thrown_away_and_the_rows_are_sent_anew(sending: Sending) -> None:
    sending.trouble = [KafkaUnreachable("away"), TopicRefused("too large")]
    rows = Story(41).rows
    acknowledged: list[int] = []
    producer = AuditProducer(PLACE, LOG, acknowledged.append)
    with pytest.raises(AuditAway, match="away"):
        await producer.write(rows)
    with pytest.raises(AuditRefused, match="too large"):
        await producer.write(rows)
    assert (sending.closed, acknowledged) == (2, [])
    await producer.write(rows)
    assert len(sending.calls) == 2 and acknowledged == [len(sending.calls[0])]


async def test_the_newest_mark_of_any_partition_is_where_it_goes_on(topic: Topic) -> None:
    topic.send(Story(42, 200).rows)
    topic.partitions[6].append(encode_mark(SinkMark(900_000, 8, LOG), 1))
    topic.partitions[6] += [b"not ours"] * 100
    producer = AuditProducer(PLACE, LOG)
    assert await producer.mark() == SinkMark(900_000, 8, LOG)
    for values in topic.partitions:  # further from the ends than it looks at first
        values += [b"not ours"] * 1_000
    assert await producer.mark() == SinkMark(900_000, 8, LOG)


async def test_an_empty_topic_has_no_mark_and_one_of_another_log_says_so(topic: Topic) -> None:
    producer = AuditProducer(PLACE, b"other log, other")
    assert await producer.mark() is None
    topic.send(Story(43).rows)
    found = await producer.mark()
    assert found is not None and found.log_id == LOG


async def test_a_message_of_a_later_release_is_refused(topic: Topic) -> None:
    topic.partitions[0].append(orjson.dumps({"version": 9}))
    with pytest.raises(AuditRefused, match="has version 9"):
        await AuditProducer(PLACE, LOG).mark()
