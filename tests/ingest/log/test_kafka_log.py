"""What a commit on a topic tells the appender. The suite of every log: tests/live/test_kafka_log.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from ingest.log import kafka_log
from ingest.log.kafka_admin import TopicFacts
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_records import Role, read_place
from ingest.log.kafka_send import SendRefused, SendUnclear
from ingest.log.kafka_settings import KafkaPlace, TopicRefused
from projections.events.ports import CommitFailed, CommitUnclear, LogFailed
from tests.ingest.log.kafka_topic import FakeFetch, SameThread, Topic
from tests.log_suite import read_all, record


class Send:
    """Appends to the topic; before that it does what the list says: an error, or another writer's records."""

    def __init__(self, topic: Topic, *plan: Any) -> None:
        self.topic = topic
        self.plan = deque(plan)
        self.batch_records = 1_000
        self.is_given_up = False

    async def batches(self, records: Sequence[tuple[bytes, tuple[str, bytes]]]) -> list[tuple[int, int]]:
        step = self.plan.popleft() if self.plan else None
        if isinstance(step, Exception):
            raise step
        sent = []
        for start in range(0, len(records), self.batch_records):
            part = records[start : start + self.batch_records]
            offsets = []
            for value, header in part:
                told = read_place([header])
                assert told is not None
                offsets.append(self.topic.add(told.role, told.number, value, told.log_id))
            sent.append((offsets[0], len(part)))
            if step == "another writer":
                self.topic.add(Role.APPENDED, -1)
        return sent

    async def abandon(self) -> None:
        self.is_given_up = True

    async def close(self) -> None:
        self.is_given_up = True


class Log(KafkaLog):
    """Whose producers are given."""

    def __init__(self, topic: Topic, *sends: Any) -> None:
        super().__init__(SameThread(), FakeFetch(topic), 1 << 20, 1.0)
        self.sends = deque(sends)

    async def _sender(self) -> Any:
        if self._send is None:
            send = self.sends.popleft()
            if isinstance(send, Exception):
                raise send
            self._send = send
        return self._send


def log_of(topic: Topic, *sends: Any) -> Log:
    log = Log(topic, *sends)
    log.loop.run(log._begin_or_go_on())
    return log


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture(autouse=True)
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(place: KafkaPlace) -> TopicFacts | None:
        return TopicFacts(1, 1, {})

    monkeypatch.setattr(kafka_log, "describe_topic", describe)


def test_an_empty_topic_gets_an_origin_and_the_log_begins_at_0(topic: Topic) -> None:
    log = log_of(topic, Send(topic))
    assert (log.first_offset(), log.end_offset(), log.shift, log.is_full()) == (0, 0, -1, False)
    assert log.commit([record(0), record(1)]) == 0
    assert log.commit([]) == 2
    assert read_all(log, 0) == [(0, record(0)), (1, record(1))]
    assert log_of(topic).log_id == log.log_id


def test_of_two_that_begin_a_log_at_once_the_first_counts(topic: Topic) -> None:
    topic.add(Role.ORIGIN, 0)
    topic.add(Role.ORIGIN, 0, log_id=bytes(16))
    log = log_of(topic, Send(topic))
    assert log.log_id != bytes(16)
    assert log.commit([record(0)]) == 1


def test_a_copied_log_goes_on_behind_its_last_record(topic: Topic) -> None:
    topic.add(Role.ORIGIN, 500)
    topic.add(Role.COPIED, 500)
    topic.add(Role.COPIED, 900)
    topic.mark()
    log = log_of(topic, Send(topic))
    assert log.commit([record(0)]) == 902
    assert log_of(topic, Send(topic)).commit([record(1)]) == 903
    assert log.end_offset() == 904


def test_the_beginning_of_a_copy_is_not_written_to(topic: Topic) -> None:
    topic.add(Role.ORIGIN, 500)
    topic.add(Role.BASE, 499)
    with pytest.raises(TopicRefused, match="finish it"):
        log_of(topic)


def test_a_broker_that_is_away_or_refuses_took_nothing(topic: Topic) -> None:
    refusing = Send(topic, None, SendRefused("MessageSizeTooLargeError"))
    log = log_of(topic, refusing, KafkaConnectionError(), Send(topic))
    for words in ("refused the batch", "no broker takes it"):
        with pytest.raises(CommitFailed, match=words):
            log.commit([record(0)])
    assert refusing.is_given_up
    assert log.commit([record(0)]) == 0


def test_an_unclear_append_ends_the_producer_and_is_told(topic: Topic) -> None:
    unclear = Send(topic, None, SendUnclear("TimeoutError"))
    log = log_of(topic, unclear, Send(topic))
    with pytest.raises(CommitUnclear, match="no acknowledgement") as told:
        log.commit([record(0)])
    assert not isinstance(told.value, LogFailed) and unclear.is_given_up
    assert log.commit([record(0)]) == 0


def test_a_batch_that_another_writer_parted_is_unclear(topic: Topic) -> None:
    send = Send(topic, None, "another writer")
    send.batch_records = 2
    log = log_of(topic, send)
    with pytest.raises(CommitUnclear, match="another writer came between"):
        log.commit([record(n) for n in range(4)])
    assert len(read_all(log, 0)) == 6


def test_a_topic_that_gives_an_offset_again_ends_the_log(topic: Topic) -> None:
    log = log_of(topic, Send(topic))
    log.commit([record(n) for n in range(5)])
    topic.end = 2
    for _ in range(2):
        with pytest.raises(LogFailed, match="gave offset 2 again, 6 was due"):
            log.commit([record(5)])


def test_a_topic_that_is_gone_or_shorter_ends_the_log(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(topic, Send(topic, None, None, SendUnclear("x")))
    log.commit([record(0)])
    topic.end = 1
    with pytest.raises(LogFailed, match="ends before what it had acknowledged"):
        log.commit([record(1)])

    async def gone(place: KafkaPlace) -> None:
        return None

    monkeypatch.setattr(kafka_log, "describe_topic", gone)
    other = Topic()
    log = log_of(other, Send(other, None, SendUnclear("x")))
    with pytest.raises(LogFailed, match="not there any more"):
        log.commit([record(1)])


def test_closing_closes_the_producer_too(topic: Topic) -> None:
    send = Send(topic)
    log = log_of(topic, send)
    log.close()
    assert send.is_given_up
