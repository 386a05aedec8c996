"""The client library's consumer, as a reader of one log needs it: assign and seek, no group.

Records come out with the place that they tell; what tells none, is of another log or is above the
record ceiling is LogCorrupt. A position that retention passed by is OutOfRange. Whatever the
brokers do not answer in time is KafkaUnreachable; the library itself would try for ever.

All calls are for the client's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from ingest.log.kafka_admin import describe_topic
from ingest.log.kafka_batches import RecordsOfBatch, hand_out_batches
from ingest.log.kafka_client import client_options
from ingest.log.kafka_records import Role, Told, read_place
from ingest.log.kafka_settings import (
    PARTITION,
    REQUEST_S,
    KafkaPlace,
    KafkaUnreachable,
    TopicRefused,
    TopicReplaced,
)
from projections.bounds import MIB, RECORD_BYTES_MAX
from projections.events.ports import LogCorrupt, LogError

FETCH_BYTES = MIB  # of one answer, compressed; a larger batch comes alone
FETCH_WAIT_MS = 250  # that a broker holds a request while there is nothing new
POLL_MS = 20  # between looks at the position: markers at the end move it without a record
CLOSE_S = 2.0


class OutOfRange(LogError):
    """The position is not in the topic: before its oldest record, or behind its end."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: what was read is not there any more: retention passed by, try again")


class Fetched(NamedTuple):
    """One record: its offsets in the topic and, for records of the log, in the log; its bytes; its place."""

    kafka_offset: int
    offset: int
    value: bytes
    place: Told


class KafkaFetch:
    """Use `open`. log_id: once set, records of any other log are refused."""

    def __init__(self, place: KafkaPlace, consumer: AIOKafkaConsumer) -> None:
        self.place = place
        self.log_id: bytes | None = None
        self._consumer = consumer
        self._headers: object = None  # of the record before, what they told, and of which log it was
        self._place: Told | None = None
        self._told_of: bytes | None = None
        self._partition = TopicPartition(place.topic, PARTITION)

    @classmethod
    async def open(cls, place: KafkaPlace) -> KafkaFetch:
        """Reach the topic. Raises TopicRefused where it is missing or no lane, KafkaUnreachable."""
        async with asyncio.timeout(2 * REQUEST_S):
            facts = await describe_topic(place)
            if facts is None:
                raise TopicRefused(f"there is no {place.name}: copy a log into it with `picklog log copy`")
            if facts.partitions != 1:
                raise TopicRefused(f"{place.name} has {facts.partitions} partitions, a log is one")
            consumer = AIOKafkaConsumer(
                **client_options(place),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                max_partition_fetch_bytes=FETCH_BYTES,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                fetch_min_bytes=1,
                check_crcs=True,
            )
            fetch = cls(place, consumer)
            try:
                await consumer.start()
                hand_out_batches(consumer)
                consumer.assign([fetch._partition])
            except BaseException:
                await fetch.close()
                raise
            return fetch

    async def close(self) -> None:
        """Leave the cluster, whether it answers or not."""
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._stop()

    async def _stop(self) -> None:
        try:
            await self._consumer.stop()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # the library cancelled a fetch that nobody answers, awaited it, and left its connections open
            await self._consumer._client.close()

    async def begin(self) -> int:
        """The topic's offset of the oldest record. Raises KafkaUnreachable."""
        found: dict[TopicPartition, int] = await self._consumer.beginning_offsets([self._partition])
        return found[self._partition]

    async def end(self) -> int:
        """The topic's offset behind the last committed record or marker. Raises KafkaUnreachable."""
        found: dict[TopicPartition, int] = await self._consumer.end_offsets([self._partition])
        return found[self._partition]

    async def ends(self) -> tuple[int, int]:
        """Both."""
        return await self.begin(), await self.end()

    def seek(self, position: int) -> None:
        """Fetch from this offset of the topic on."""
        self._consumer.seek(self._partition, position)

    async def position(self) -> int:
        """The topic's offset that the next fetch begins with."""
        found: int = await self._consumer.position(self._partition)
        return found

    async def some(self, stop: int, count: int | None = None, *, beyond_too: bool = False) -> list[Fetched]:
        """Records from the position on: the rest of one answer, at most `count`; [] once `stop` is reached.

        beyond_too: an answer may reach beyond `stop`; what does comes too, since the position is behind it.
        Raises OutOfRange, LogCorrupt, KafkaUnreachable.
        """
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        while True:
            found = await self._poll(POLL_MS, count)
            is_done = await self.position() >= stop
            if is_done:  # a request that waits for news would hold up the one after the next seek
                self._consumer.pause(self._partition)
            if found or is_done:
                return found if beyond_too else [record for record in found if record.kafka_offset < stop]
            if asyncio.get_running_loop().time() > deadline:
                raise KafkaUnreachable(f"Kafka sends nothing of {self.place.name} within {REQUEST_S:.0f} s")

    async def news(self, timeout_s: float) -> list[Fetched]:
        """Records from the position on as they come, [] after a while. Raises as `some`."""
        return await self._poll(int(timeout_s * 1000), None)

    async def first_from(self, position: int, stop: int) -> Fetched | None:
        """The first record at or behind `position` and before `stop`. Moves the position."""
        if position >= stop:
            return None
        self.seek(position)
        return next(iter(await self.some(stop, 1)), None)

    async def last_between(self, position: int, stop: int) -> Fetched | None:
        """The last record there; an origin only where there are no others. Moves the position.

        Of two processes that begin a log at the same time the slower one writes its origin behind records.
        """
        newest: Fetched | None = None
        self.seek(position)
        while await self.position() < stop:
            for record in await self.some(stop):
                if newest is None or record.place.role is not Role.ORIGIN:
                    newest = record
        return newest

    async def _poll(self, timeout_ms: int, count: int | None) -> list[Fetched]:
        self._consumer.resume(self._partition)
        try:
            answer = await self._consumer.getmany(self._partition, timeout_ms=timeout_ms, max_records=count)
        except OffsetOutOfRangeError as problem:
            raise OutOfRange(self.place.name) from problem
        except KafkaError as problem:
            if not problem.retriable:
                raise
            await asyncio.sleep(POLL_MS / 1000)
            return []
        found: list[Fetched] = []
        for part in answer.get(self._partition, ()):
            self._tell(part if type(part) is RecordsOfBatch else (part,), found)
        return found

    def _tell(self, records: Iterable[Any], found: list[Fetched]) -> None:
        """Add what the records are; a hundred thousand a second pass here. Raises LogCorrupt."""
        if self._told_of != self.log_id:
            self._told_of, self._headers = self.log_id, None
        known, place = self._headers, self._place
        shift = place.number if place is not None and place.role is Role.APPENDED else None
        make, add = tuple.__new__, found.append
        for record in records:
            offset, value, headers = record.offset, record.value, record.headers
            if headers != known:  # appended records of a log all have the same
                place = self._place_of(offset, headers)
                self._headers = known = headers
                self._place = place
                shift = place.number if place.role is Role.APPENDED else None
            if value is None or place is None or len(value) > RECORD_BYTES_MAX:
                raise LogCorrupt(self._why_refused(offset, value))
            add(make(Fetched, (offset, place.number if shift is None else offset + shift, value, place)))

    def _place_of(self, offset: int, headers: Any) -> Told:
        place = read_place(headers)
        if place is None:
            raise LogCorrupt(self._why_refused(offset, None))
        if self.log_id is not None and place.log_id != self.log_id and place.role is not Role.ORIGIN:
            raise TopicReplaced(
                f"{self.place.name}: its record {offset} is of another log: it was recreated, or two "
                "logs write there"
            )
        return place

    def _why_refused(self, offset: int, value: bytes | None) -> str:
        if value is None:
            return f"{self.place.name}: its record {offset} is none of a log: something else writes there"
        return f"{self.place.name}: its record {offset} has {len(value)} bytes, above the ceiling"
