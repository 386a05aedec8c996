"""Topics beside the log: keyed messages over several partitions, not one totally ordered lane.

The follower tells the audit there. Such a topic is made and checked before anybody uses it: with another
number of partitions a key would be looked for elsewhere, and a compacted one drops messages that others
still need.

    KeyedSend     writes a batch at a time, until every message is acknowledged by all replicas in sync
    KeyedSpans    reads spans of partitions by offset, without a consumer group

All calls are for one event loop. What the library raises ends here: KafkaUnreachable, or TopicRefused where
trying again is in vain.

Source: decision 48.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from ingest.log.kafka_admin import (
    BATCH_OVERHEAD_BYTES,
    KEEPS_ALL,
    MESSAGE_BYTES_CREATED,
    TopicFacts,
    copy_doubts,
    topic_made,
)
from ingest.log.kafka_client import client_options
from ingest.log.kafka_loop import told
from ingest.log.kafka_settings import REQUEST_S, KafkaPlace, KafkaUnreachable, TopicRefused
from projections.bounds import MIB

log = structlog.get_logger("picklog.log")

VALUE_BYTES_MAX = 8 * MIB
MESSAGE_BYTES_MIN = VALUE_BYTES_MAX + BATCH_OVERHEAD_BYTES
FETCH_BYTES = MIB
POLL_MS = 200
CLOSE_S = 2.0


class KeyedTopic(NamedTuple):
    """How a topic has to be. retention_ms: of one that is made; where it is compacted, of removed keys."""

    partitions: int
    is_compacted: bool
    retention_ms: int


class Keyed(NamedTuple):
    """A message to send. partition: None where the key decides."""

    key: bytes
    value: bytes
    partition: int | None = None


class Found(NamedTuple):
    """A message that was read."""

    partition: int
    offset: int
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def keyed_faults(name: str, facts: TopicFacts, wanted: KeyedTopic) -> list[str]:
    """Every reason for which a topic cannot be used, each with what to do."""
    faults = []
    if facts.partitions != wanted.partitions:
        faults.append(
            f"{name} has {facts.partitions} partitions and needs {wanted.partitions}: name another topic,"
            " or remove it and let it be made anew"
        )
    policy = facts.configs.get("cleanup.policy", "delete")
    if ("compact" in policy) != wanted.is_compacted:
        needed = "compact" if wanted.is_compacted else "delete"
        faults.append(f"{name} has cleanup.policy={policy}: set {needed}")
    if facts.message_bytes_max < MESSAGE_BYTES_MIN:
        faults.append(
            f"{name} takes max.message.bytes={facts.message_bytes_max}: set at least {MESSAGE_BYTES_MIN}"
        )
    return faults


def keyed_doubts(place: KafkaPlace, facts: TopicFacts, wanted: KeyedTopic) -> list[str]:
    """What a topic that can be used should have otherwise, each with what to do."""
    doubts = copy_doubts(place, facts)
    policy, age_ms = facts.configs.get("cleanup.policy", "delete"), facts.kept("retention.ms")
    if wanted.is_compacted and "delete" in policy:
        doubts.append(
            f"{place.name} has cleanup.policy={policy}, which drops the newest of a key too: set compact"
        )
    elif KEEPS_ALL < age_ms < wanted.retention_ms:
        doubts.append(
            f"{place.name} has retention.ms={age_ms}: what nobody has written into the database by then is "
            f"gone: set {wanted.retention_ms}"
        )
    return doubts


async def prepare_keyed(place: KafkaPlace, wanted: KeyedTopic) -> None:
    """Make the topic where it is missing, and check it; what is doubtful is logged.

    Raises TopicRefused, KafkaUnreachable.
    """
    with _translated():
        other = {
            "cleanup.policy": "compact" if wanted.is_compacted else "delete",
            "retention.ms": str(wanted.retention_ms),
            "max.message.bytes": str(MESSAGE_BYTES_CREATED),
        }
        facts = await topic_made(place, wanted.partitions, other)
    faults = keyed_faults(place.name, facts, wanted)
    if faults:
        raise TopicRefused("; ".join(faults))
    for what in keyed_doubts(place, facts, wanted):
        log.warning("a topic beside the log should be set otherwise", detail=what)


class KeyedSend:
    """Use `open`; throw it away after any exception."""

    def __init__(self, place: KafkaPlace, producer: AIOKafkaProducer, patience_s: float) -> None:
        self._place = place
        self._producer = producer
        self._patience_s = patience_s

    @classmethod
    async def open(cls, place: KafkaPlace, patience_s: float) -> KeyedSend:
        """Reach the cluster. Raises TopicRefused, KafkaUnreachable."""
        # The library logs every retry by names of its own; what matters arrives as an exception.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        with _translated():
            producer = AIOKafkaProducer(
                **client_options(place),
                acks="all",
                enable_idempotence=True,
                compression_type="zstd",
                linger_ms=5,
                max_batch_size=256 * 1024,
                max_request_size=MESSAGE_BYTES_CREATED,
            )
            send = cls(place, producer, patience_s)
            try:
                async with asyncio.timeout(REQUEST_S):
                    await producer.start()
            except BaseException:
                await send.close()
                raise
            return send

    async def messages(self, messages: Sequence[Keyed]) -> None:
        """Send them, in order within a partition. Raises TopicRefused, KafkaUnreachable: some may arrive."""
        with _translated():
            async with asyncio.timeout(self._patience_s):
                acknowledged = [
                    await self._producer.send(self._place.topic, value, key=key, partition=partition)
                    for key, value, partition in messages
                ]
                await asyncio.gather(*acknowledged)

    async def close(self) -> None:
        """Leave the cluster; what is under way may still arrive."""
        sender = getattr(self._producer, "_sender", None)  # stop() alone waits for what is under way
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if sender is not None:
                    await sender.close()
                await self._producer.client.close()
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._producer.stop()


class KeyedSpans:
    """Use `open`."""

    def __init__(self, place: KafkaPlace, partitions: int, consumer: AIOKafkaConsumer) -> None:
        self._partitions = [TopicPartition(place.topic, number) for number in range(partitions)]
        self._name = place.name
        self._consumer = consumer

    @classmethod
    async def open(cls, place: KafkaPlace, partitions: int) -> KeyedSpans:
        """Reach the topic. Raises TopicRefused, KafkaUnreachable."""
        with _translated():
            consumer = AIOKafkaConsumer(
                **client_options(place),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                max_partition_fetch_bytes=FETCH_BYTES,
                check_crcs=True,
            )
            spans = cls(place, partitions, consumer)
            try:
                async with asyncio.timeout(REQUEST_S):
                    await consumer.start()
            except BaseException:
                await spans.close()
                raise
            return spans

    async def ends(self) -> list[tuple[int, int]]:
        """Of each partition the oldest offset and the one behind the newest. Raises KafkaUnreachable."""
        with _translated():
            begins = await self._consumer.beginning_offsets(self._partitions)
            ends = await self._consumer.end_offsets(self._partitions)
            return [(begins[partition], ends[partition]) for partition in self._partitions]

    async def read(self, partition: int, first: int, stop: int) -> AsyncIterator[list[Found]]:
        """The messages from `first` up to, not including, `stop`, in stretches. Raises KafkaUnreachable.

        What retention has taken is left out; the rest comes.
        """
        wanted = self._partitions[partition]
        with _translated():
            self._consumer.assign([wanted])
            self._consumer.seek(wanted, first)
        position, idle_s = first, 0.0
        while position < stop:
            with _translated():
                answer = await self._consumer.getmany(wanted, timeout_ms=POLL_MS)
                position = await self._consumer.position(wanted)
            records = [record for some in answer.values() for record in some if record.offset < stop]
            idle_s = 0.0 if records else idle_s + POLL_MS / 1000
            if idle_s > REQUEST_S:
                raise KafkaUnreachable(f"Kafka sends nothing of {self._name} within {REQUEST_S:.0f} s")
            if records:
                yield [Found(partition, record.offset, record.value, record.headers) for record in records]

    async def close(self) -> None:
        """Leave the cluster."""
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._consumer.stop()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MessageSizeTooLargeError as problem:
        raise TopicRefused("Kafka takes no message of that size: raise max.message.bytes") from problem
    except TopicAuthorizationFailedError as problem:
        raise TopicRefused(str(told(problem))) from problem
    except (KafkaError, OSError, TimeoutError) as problem:
        raise told(problem) from problem
