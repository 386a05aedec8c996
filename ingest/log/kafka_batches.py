"""Whole batches out of the client library's consumer, where it would make an object of every record.

The library reads batches by compiled code, at a quarter of a microsecond a record, and then builds a
`ConsumerRecord` of each through several calls of Python, which costs ten times as much. A log's reader wants
offset, value and headers alone. So what the consumer has fetched is dressed such that its own loop,
which knows about check sums, markers and aborted transactions, hands out a batch where it would a record.

That leans on the inside of the library (0.12 to 0.14). Where it is another one, `hand_out_batches` says
so and changes nothing: records then come one by one, slower.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher as library


class RecordsOfBatch:
    """Records of one batch of the topic, as the library reads them: `offset`, `value`, `headers`.

    offset: of its last record; the consumer's position goes on behind it.
    """

    __slots__ = ("_batch", "_from", "offset")

    def __init__(self, batch: Any, start: int) -> None:
        self._batch = batch
        self._from = start
        self.offset = batch.next_offset - 1

    def __iter__(self) -> Iterator[Any]:
        """Those at or behind the position that was asked for: a batch may begin before it."""
        start = self._from
        if self._batch.base_offset >= start:
            return iter(self._batch)
        return (record for record in self._batch if record.offset >= start)


class _WholeBatch:
    """A batch whose one record is itself; of a control batch it is the marker."""

    __slots__ = ("_batch", "_records")

    def __init__(self, batch: Any, records: RecordsOfBatch) -> None:
        self._batch = batch
        self._records = records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[RecordsOfBatch]:
        return iter((self._records,))

    def __next__(self) -> Any:
        return next(self._batch)


class _WholeBatches:
    """What was fetched, by batches. asked: the library's iterator, which knows where it stands."""

    __slots__ = ("_asked", "_records")

    def __init__(self, records: Any, asked: Any) -> None:
        self._records = records
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def next_batch(self) -> _WholeBatch:
        batch = self._records.next_batch()
        return _WholeBatch(batch, RecordsOfBatch(batch, self._asked.next_fetch_offset))


class _Fetched(OrderedDict[Any, Any]):
    """Where the library's fetcher keeps what it has fetched, by partition."""

    def __setitem__(self, partition: Any, result: Any) -> None:
        if type(result) is library.FetchResult:
            plain = result._partition_records
            plain._records = _WholeBatches(plain._records, plain)
            plain._consumer_record = _as_it_is
        super().__setitem__(partition, result)


def _as_it_is(_: Any, record: Any) -> Any:
    return record


def hand_out_batches(consumer: AIOKafkaConsumer) -> bool:
    """Let a started consumer hand out RecordsOfBatch; False where the library is not as it is known here."""
    fetcher: Any = getattr(consumer, "_fetcher", None)
    is_known = (
        type(getattr(fetcher, "_records", None)) is OrderedDict
        and not fetcher._records
        and hasattr(library, "FetchResult")
        and hasattr(library.PartitionRecords, "_consumer_record")
        and "_unpack_records" in vars(library.PartitionRecords)
    )
    if is_known:
        fetcher._records = _Fetched()
    return is_known
