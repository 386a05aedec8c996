"""Batches and what their answers mean. A real broker's answers: tests/live/test_kafka_log.py."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)

from ingest.log.kafka_send import KafkaSend, SendRefused, SendUnclear
from tests.ingest.log.kafka_topic import PLACE

HEADER = ("picklog.shift", bytes(24))


class Done(NamedTuple):
    offset: int


class Batch:
    """Takes three records."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def append(self, *, timestamp: int, key: None, value: bytes, headers: list[Any]) -> object:
        assert headers == [HEADER]
        assert timestamp == -1, "a broker refuses one that a clock ahead of its own made"
        if len(self.values) == 3:
            return None
        self.values.append(value)
        return self


class Producer:
    """Answers from a list: an offset, an error, or nothing at all."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.sent: list[list[bytes]] = []
        self.calls: list[str] = []
        self.client = self

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Done]:
        assert (topic, partition) == (PLACE.topic, 0)
        self.sent.append(batch.values)
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(Done(answer))
        return future

    async def begin_transaction(self) -> None:
        self.calls.append("begin")

    async def commit_transaction(self) -> None:
        self.calls.append("commit")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def close(self) -> None:
        self.calls.append("close")


def send_of(*answers: Any) -> tuple[KafkaSend, Producer]:
    producer = Producer(*answers)
    return KafkaSend(PLACE, producer, 0.05), producer


RECORDS = [(bytes([number]), HEADER) for number in range(7)]


async def test_records_go_in_as_few_batches_as_the_topic_takes() -> None:
    send, producer = send_of(10, 13, 20)
    assert await send.batches(RECORDS) == [(10, 3), (13, 3), (20, 1)]
    assert producer.sent == [[b"\0", b"\1", b"\2"], [b"\3", b"\4", b"\5"], [b"\6"]]


async def test_a_refusal_says_that_nothing_was_written_unless_something_was() -> None:
    with pytest.raises(SendRefused, match="MessageSizeTooLarge"):
        await send_of(MessageSizeTooLargeError())[0].batches(RECORDS)
    with pytest.raises(SendUnclear):
        await send_of(10, MessageSizeTooLargeError())[0].batches(RECORDS)


@pytest.mark.parametrize(
    "answer",
    [KafkaConnectionError(), OutOfOrderSequenceNumber(), ProducerFenced(), ConnectionResetError(), -1, None],
)
async def test_everything_else_is_unclear_also_no_answer_and_no_offset(answer: Any) -> None:
    with pytest.raises(SendUnclear):
        await send_of(answer)[0].batches(RECORDS[:1])


async def test_a_transaction_is_committed_behind_its_batches() -> None:
    send, producer = send_of(10, 13, 16)
    assert await send.transaction(RECORDS) == 17
    assert producer.calls == ["begin", "commit"]
    send, producer = send_of(ProducerFenced())
    with pytest.raises(SendUnclear, match="Fenced"):
        await send.transaction(RECORDS)
    assert producer.calls == ["begin"]


async def test_an_end_in_mid_air_closes_the_connections_first() -> None:
    send, producer = send_of()
    await send.abandon()
    assert producer.calls == ["close", "stop"]
    await send.close()
    assert producer.calls[-1] == "stop"
