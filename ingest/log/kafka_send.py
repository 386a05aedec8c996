"""The client library's producer, as a log needs it: whole batches, acknowledged by all replicas in sync.

An idempotent producer sends a batch again until it is acknowledged, and the broker knows a
repetition, so a lost acknowledgement costs nothing while this process lives. What stays unclear:
patience that ended, or a broker that no longer knows the producer. A producer that failed is
thrown away, since its numbers no longer fit the broker's.

Messages have no timestamp of ours. A broker refuses one that lies an hour beyond its own clock, so a
process whose clock was set forward would find the log shut; records carry log time in any case.

With a `transactional_id` the batches of a transaction appear together or not at all, and opening
the producer ends (fences) any older one of that id, what it had under way included.

All calls are for the client's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from ingest.log.kafka_admin import BATCH_OVERHEAD_BYTES
from ingest.log.kafka_client import client_options
from ingest.log.kafka_settings import PARTITION, KafkaPlace

REFUSED = (
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
"""Answers after which nothing of the batch is in the topic."""

NO_TIMESTAMP = -1  # the protocol's word for it
CLOSE_S = 2.0
TRANSACTION_S = 120  # after which the cluster ends a transaction that nobody ends

Header = tuple[str, bytes]


class SendRefused(Exception):
    """Nothing was written."""


class SendUnclear(Exception):
    """It may or may not have been written."""


class KafkaSend:
    """Use `open`; throw it away after any exception.

    batch_bytes_max: of records in one batch of the topic, before compression.
    """

    def __init__(self, place: KafkaPlace, producer: AIOKafkaProducer, patience_s: float) -> None:
        self._place = place
        self._producer = producer
        self._patience_s = patience_s

    @classmethod
    async def open(
        cls,
        place: KafkaPlace,
        message_bytes_max: int,
        patience_s: float,
        transactional_id: str | None = None,
    ) -> KafkaSend:
        """Reach the cluster. Raises KafkaError, OSError."""
        more = {} if transactional_id is None else {"transactional_id": transactional_id}
        producer = AIOKafkaProducer(
            **client_options(place),
            **more,
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=0,
            max_batch_size=message_bytes_max - BATCH_OVERHEAD_BYTES,
            max_request_size=message_bytes_max + BATCH_OVERHEAD_BYTES,
            transaction_timeout_ms=TRANSACTION_S * 1000,
        )
        send = cls(place, producer, patience_s)
        try:
            async with asyncio.timeout(patience_s):
                await producer.start()
        except BaseException:
            await send.abandon()
            raise
        return send

    async def batches(self, records: Sequence[tuple[bytes, Header]]) -> list[tuple[int, int]]:
        """Send records in as few batches as the topic takes: (topic's offset, records) of each.

        Returns once all are acknowledged. Raises SendRefused, SendUnclear.
        """
        sent: list[tuple[int, int]] = []
        place = 0
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while place < len(records):
            builder = self._producer.create_batch()
            count = 0
            for value, header in records[place:]:
                if builder.append(timestamp=NO_TIMESTAMP, key=None, value=value, headers=[header]) is None:
                    break
                count += 1
            try:
                async with asyncio.timeout_at(deadline):
                    done = await self._producer.send_batch(builder, self._place.topic, partition=PARTITION)
                    offset = (await done).offset
            except REFUSED as problem:
                if sent:
                    raise SendUnclear(type(problem).__name__) from problem
                raise SendRefused(type(problem).__name__) from problem
            except (KafkaError, OSError, TimeoutError) as problem:
                raise SendUnclear(type(problem).__name__) from problem
            if offset < 0:  # a repetition whose place the broker has forgotten
                raise SendUnclear("acknowledged without an offset")
            sent.append((offset, count))
            place += count
        return sent

    async def transaction(self, records: Sequence[tuple[bytes, Header]]) -> int:
        """Send records in one transaction, surely committed on return; the topic's offset behind them.

        Readers see them once the coordinator has marked the topic, which is a little later. Raises
        SendRefused, SendUnclear: such a transaction is ended by the next producer of the id, or by
        its time limit.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                await self._producer.begin_transaction()
                sent = await self.batches(records)
                await self._producer.commit_transaction()
                return sent[-1][0] + sent[-1][1]
        except (KafkaError, OSError, TimeoutError) as problem:
            raise SendUnclear(type(problem).__name__) from problem

    async def close(self) -> None:
        """Leave the cluster; nothing may be under way."""
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._producer.stop()

    async def abandon(self) -> None:
        """End it though something is under way: it is sent no more, it may still arrive."""
        sender = getattr(self._producer, "_sender", None)  # stop() alone waits for what is under way
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._producer.client.close()
                if sender is not None:
                    await sender.close()
        await self.close()
