"""Frames found again in a topic, beside a walk over the log. Real topics: tests/live/test_kafka_raw.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ingest.log import kafka_raw_reader
from ingest.log.kafka_keyed import Found
from ingest.log.kafka_raw_reader import STRETCHES_HELD, KafkaKeptFrames
from ingest.log.kafka_raw_topic import HEADER, frame_header
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable
from ingest.log.raw_frames import Lost, raw_digest
from projections.bounds import KV_FRAME_BYTES_MAX

LOG = bytes(range(16))
PLACE = KafkaPlace(("broker:9092",), "raw", 1)


def frame(number: int) -> bytes:
    return b"frame %d" % number


class Topic:
    """Messages by the topic's offsets. answer: messages of one answer. reads: (begin, stop) of each walk."""

    def __init__(self, answer: int = 10) -> None:
        self.answer = answer
        self.begin = 0
        self.messages: list[tuple[bytes | None, list[tuple[str, bytes]]]] = []
        self.reads: list[tuple[int, int]] = []
        self.opened = self.closed = 0
        self.is_there = True

    def put(self, offset: int, data: bytes | None = None, log_id: bytes = LOG) -> None:
        data = frame(offset) if data is None else data
        self.messages.append((data, [frame_header(log_id, offset, 0, data)]))

    async def describe(self, _: KafkaPlace) -> object | None:
        return object() if self.is_there else None

    async def open(self, *_: object) -> Topic:
        self.opened += 1
        return self

    async def ends(self) -> list[tuple[int, int]]:
        return [(self.begin, len(self.messages))]

    async def read(self, _: int, first: int, stop: int) -> AsyncIterator[list[Found]]:
        self.reads.append((first, stop))
        for start in range(max(first, self.begin), stop, self.answer):
            numbers = range(start, min(start + self.answer, stop))
            yield [Found(0, at, *self.messages[at]) for at in numbers if at >= self.begin]

    async def close(self) -> None:
        self.closed += 1


class Loop:
    """In the place of the client's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(kafka_raw_reader, "describe_topic", topic.describe)
    monkeypatch.setattr(kafka_raw_reader, "KeyedSpans", topic)
    monkeypatch.setattr(kafka_raw_reader, "KafkaLoop", Loop)
    return topic


@pytest.fixture
def opened(topic: Topic) -> Iterator[list[KafkaKeptFrames]]:
    """Readers to close at the end."""
    readers: list[KafkaKeptFrames] = []
    yield readers
    for reader in readers:
        reader.close()


def kept(topic: Topic, opened: list[KafkaKeptFrames]) -> KafkaKeptFrames:
    opened.append(KafkaKeptFrames.open(PLACE, LOG))
    return opened[-1]


def has(reader: KafkaKeptFrames, offset: int) -> bytes | Lost:
    return reader.get(offset, raw_digest(frame(offset)))


@pytest.mark.req("EVS-02")
def test_frames_are_found_by_the_offsets_of_their_records(
    topic: Topic, opened: list[KafkaKeptFrames]
) -> None:
    for number in range(200):
        topic.put(7 + number * 3)
    reader = kept(topic, opened)
    assert reader.first_offset() == 7
    assert has(reader, 0) is Lost.GONE
    for number in (*range(200), 199, 3, 150, 0):
        offset = 7 + number * 3
        assert has(reader, offset) == frame(offset)
        assert has(reader, offset + 1) is Lost.GONE
        assert reader.get(offset, 1) is Lost.DAMAGED
    assert has(reader, 10_000) is Lost.GONE


def test_a_scout_and_a_fold_read_the_topic_once_each_and_hold_little(
    topic: Topic, opened: list[KafkaKeptFrames]
) -> None:
    for number in range(1000):
        topic.put(number)
    reader = kept(topic, opened)
    for number in range(1000):
        assert has(reader, number) == frame(number)
        if number >= 500:
            assert has(reader, number - 500) == frame(number - 500)
        assert len(reader._held) <= STRETCHES_HELD
    assert topic.reads[0] == (0, 1000)
    assert topic.reads[1:] == [(start, start + 10) for start in range(0, 500, 10)]


def test_no_more_is_read_than_was_asked_for(topic: Topic, opened: list[KafkaKeptFrames]) -> None:
    for number in range(1000):
        topic.put(number)
    reader = kept(topic, opened)
    assert has(reader, 15) == frame(15)
    assert len(reader._firsts) == 2


def test_what_was_sent_twice_counts_once_and_what_was_sent_late_not_at_all(
    topic: Topic, opened: list[KafkaKeptFrames]
) -> None:
    for number in (*range(15), *range(5, 15), *range(15, 30), 40, 41, 35, 36, 42):
        topic.put(number)
    reader = kept(topic, opened)
    for number in (*range(30), 40, 41, 42, *range(30)):
        assert has(reader, number) == frame(number)
    assert has(reader, 35) is has(reader, 36) is Lost.GONE


def test_of_two_frames_at_one_offset_the_first_counts(topic: Topic, opened: list[KafkaKeptFrames]) -> None:
    topic.put(1)
    topic.put(1, b"another one")
    reader = kept(topic, opened)
    assert has(reader, 1) == frame(1)
    assert reader.get(1, raw_digest(b"another one")) is Lost.DAMAGED


def test_messages_of_other_logs_and_of_others_are_passed_over(
    topic: Topic, opened: list[KafkaKeptFrames]
) -> None:
    for number in range(100):
        topic.put(number + 10_000, log_id=bytes(16))
    topic.messages += [(b"x", []), (None, [frame_header(LOG, 3, 0, b"")]), (b"x", [(HEADER, b"short")])]
    topic.put(4, bytes(KV_FRAME_BYTES_MAX + 1))
    topic.put(9)
    reader = kept(topic, opened)
    assert reader.first_offset() == 9
    assert has(reader, 9) == frame(9)
    assert [has(reader, offset) for offset in (3, 4, 10_001)] == [Lost.GONE] * 3


def test_what_retention_takes_meanwhile_is_gone(topic: Topic, opened: list[KafkaKeptFrames]) -> None:
    for number in range(100):
        topic.put(number)
    reader = kept(topic, opened)
    assert [has(reader, number) for number in range(100)] == [frame(number) for number in range(100)]
    topic.begin = 25
    assert has(reader, 3) is Lost.GONE
    assert has(reader, 24) is Lost.GONE
    assert has(reader, 25) == frame(25)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_topic_without_frames_or_none_at_all_keeps_nothing(
    topic: Topic, opened: list[KafkaKeptFrames], is_there: bool
) -> None:
    topic.is_there = is_there
    reader = kept(topic, opened)
    assert reader.first_offset() is None
    assert has(reader, 1) is Lost.GONE
    assert topic.opened == is_there


def test_all_connections_are_closed(topic: Topic) -> None:
    for number in range(100):
        topic.put(number)
    reader = KafkaKeptFrames.open(PLACE, LOG)
    assert has(reader, 99) == frame(99)
    assert has(reader, 1) == frame(1)
    reader.close()
    assert topic.opened == topic.closed == 2


def test_a_cluster_that_is_away_is_told_and_nothing_stays_open(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: KafkaPlace) -> None:
        raise KafkaUnreachable("Kafka cannot be reached")

    monkeypatch.setattr(kafka_raw_reader, "describe_topic", away)
    with pytest.raises(KafkaUnreachable):
        KafkaKeptFrames.open(PLACE, LOG)
    assert topic.opened == 0
