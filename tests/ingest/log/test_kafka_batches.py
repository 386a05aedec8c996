"""Batches come out of the library's own loop whole; with transactions: tests/live/test_kafka_copy.py."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher as library
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from ingest.log.kafka_batches import RecordsOfBatch, hand_out_batches

PARTITION = TopicPartition("log", 0)
ZSTD = 4
READ_COMMITTED = 1


def batch(first: int, count: int) -> bytes:
    """A batch of the topic with records first, first + 1, ..."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=ZSTD,
        is_transactional=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for place in range(count):
        builder.append(place, timestamp=1, key=None, value=b"%d" % (first + place), headers=[("h", b"v")])
    data = bytearray(builder.build())
    data[:8] = first.to_bytes(8, "big")  # a broker writes it; the check sum begins behind it
    return bytes(data)


def a_consumer() -> Any:
    return SimpleNamespace(_fetcher=SimpleNamespace(_records=OrderedDict()))


def fetched(consumer: Any, data: bytes, start: int) -> Any:
    """What the consumer's fetcher holds once that answer came."""
    records = library.PartitionRecords(
        PARTITION, MemoryRecords(data), [], start, None, None, True, READ_COMMITTED
    )
    state = SimpleNamespace(paused=False, position=start)
    state.consumed_to = lambda offset: setattr(state, "position", offset)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    consumer._fetcher._records[PARTITION] = library.FetchResult(
        PARTITION, assignment=assignment, partition_records=records, backoff=0
    )
    return consumer._fetcher._records[PARTITION]


@pytest.mark.parametrize("start", [10, 12, 14, 15])
def test_the_same_records_come_as_without_it(start: int) -> None:
    data = batch(10, 5) + batch(15, 1) + batch(16, 4)
    plain, dressed = a_consumer(), a_consumer()
    assert hand_out_batches(dressed)
    wanted = [(one.offset, one.value, list(one.headers)) for one in fetched(plain, data, start).getall()]
    parts = fetched(dressed, data, start).getall()
    assert all(type(part) is RecordsOfBatch for part in parts)
    assert [(one.offset, one.value, list(one.headers)) for part in parts for one in part] == wanted
    assert [offset for offset, _, _ in wanted] == [*range(start, 20)]


def test_the_position_goes_on_behind_each_batch() -> None:
    consumer = a_consumer()
    assert hand_out_batches(consumer)
    result = fetched(consumer, batch(10, 5) + batch(15, 2), 11)
    assert [part.offset for part in result.getall(max_records=1)] == [14]
    assert result._partition_records.next_fetch_offset == 15
    assert [part.offset for part in result.getall(max_records=1)] == [16]


def test_a_library_of_another_shape_is_left_alone() -> None:
    for odd in (SimpleNamespace(), SimpleNamespace(_fetcher=SimpleNamespace(_records=[]))):
        before = repr(odd)
        assert not hand_out_batches(odd)
        assert repr(odd) == before
