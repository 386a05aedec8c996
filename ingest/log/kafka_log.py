"""The writing side of a log on Kafka: a commit batch is a batch of the topic, acknowledged by all in sync.

A batch of the topic stands together and whole, so a commit gets following offsets whoever else
writes. One that the topic's `max.message.bytes` splits may be torn apart by another writer; then
it is told as unclear, and the appender finds its records by reading.

CommitUnclear is told only when the log can be read again, since the appender's next step is to
look for what it sent. What was under way then may still arrive: the records after it name the
writer that ended, and every fold passes over what it sent late (decision 7).

`commit` blocks; it is called in the writer's own thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import NoReturn

import structlog
from aiokafka.errors import KafkaError

from ingest.log.kafka_admin import describe_topic, prepare_topic
from ingest.log.kafka_fetch import KafkaFetch
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_records import ORIGIN_VALUE, Role, place_header
from ingest.log.kafka_send import KafkaSend, SendRefused, SendUnclear
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable, TopicRefused
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from projections.events.ports import CommitFailed, CommitUnclear, LogError, LogFailed

PATIENCE_S = 30.0  # until an append counts as unclear; a leader change takes a few seconds
AGAIN_S = 0.2

log = structlog.get_logger("picklog.log")


class KafkaLog(KafkaReader):
    """LogStore over a topic. Use `open`, and `close` afterwards.

    Whoever opens it does not own the log yet: that is the claim's business, as on every log.
    """

    def __init__(self, loop: KafkaLoop, fetch: KafkaFetch, message_bytes_max: int, patience_s: float) -> None:
        super().__init__(loop, fetch, follows=True)
        self._message_bytes_max = message_bytes_max
        self._patience_s = patience_s
        self._send: KafkaSend | None = None
        self._written = 0  # the topic's offset behind what was surely written
        self._failed: str | None = None

    @classmethod
    def open(cls, place: KafkaPlace, follows: bool = True, *, patience_s: float = PATIENCE_S) -> KafkaLog:
        """Write to the log of a topic, begin one where the topic is missing or empty.

        Raises TopicRefused, KafkaUnreachable, LogCorrupt.
        """
        loop = KafkaLoop()
        try:
            return loop.run(cls._open(loop, place, patience_s))
        except BaseException:
            loop.close()
            raise

    @classmethod
    async def _open(cls, loop: KafkaLoop, place: KafkaPlace, patience_s: float) -> KafkaLog:
        facts, faults = await prepare_topic(place)
        for what in faults.unsafe:
            log.warning("the topic of the log may lose acknowledged records", detail=what)
        for what in faults.doubtful:
            log.warning("the topic of the log should be set otherwise", detail=what)
        fetch = await KafkaFetch.open(place)
        store = cls(loop, fetch, facts.message_bytes_max, patience_s)
        try:
            await store._begin_or_go_on()
            return store
        except BaseException:
            await store._give_up_sender()
            await fetch.close()
            raise

    async def _begin_or_go_on(self) -> None:
        """Write the origin where there is nothing; learn which log it is. The first origin counts."""
        begin, end = await self._fetch.ends()
        if begin == 0 and await self._fetch.first_from(begin, end) is None:
            origin = place_header(Role.ORIGIN, os.urandom(16), 0)
            try:
                await (await self._sender()).batches([(ORIGIN_VALUE, origin)])
            except (SendRefused, SendUnclear) as problem:
                raise KafkaUnreachable(f"{self.place.name}: no log can be begun ({problem})") from problem
        await self.identify()
        self._shift = await self._shift_now()
        self._written = self._stop

    @property
    def shift(self) -> int:
        """What to add to the topic's offsets of appended records."""
        assert self._shift is not None
        return self._shift

    def is_full(self) -> bool:
        """See LogStore. The brokers' disks are theirs to watch."""
        return False

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore. Raises CommitFailed, CommitUnclear, and LogFailed for a topic that is another one."""
        size = sum(map(len, records))
        if len(records) > COMMIT_BATCH_RECORDS_MAX or size > COMMIT_BATCH_BYTES_MAX:
            raise CommitFailed(f"a batch of {len(records)} records, {size} bytes: send smaller batches")
        if any(len(record) > RECORD_BYTES_MAX for record in records):
            raise CommitFailed(f"a record above the ceiling of {RECORD_BYTES_MAX} bytes: it is never split")
        if not records:
            return self.end_offset()
        return self.loop.run(self._commit(records))

    def close(self) -> None:
        """Leave the cluster. A commit under way ends with LogFailed."""
        try:
            if self._send is not None:
                self.loop.run(self._send.close())
        finally:
            super().close()

    async def _commit(self, records: Sequence[bytes]) -> int:
        if self._failed is not None:
            raise LogFailed(self._failed)
        header = place_header(Role.APPENDED, self.log_id, self.shift)
        try:
            send = await self._sender()
        except (KafkaError, OSError, TimeoutError) as problem:
            raise CommitFailed(
                f"{self.place.name}: no broker takes it ({type(problem).__name__})"
            ) from problem
        try:
            sent = await send.batches([(record, header) for record in records])
        except SendRefused as problem:
            await self._give_up_sender()
            raise CommitFailed(f"{self.place.name}: the broker refused the batch ({problem})") from problem
        except SendUnclear as problem:
            await self._give_up_sender()
            await self._until_readable()
            raise CommitUnclear(f"{self.place.name}: no acknowledgement ({problem})") from problem
        first = due = sent[0][0]
        if first < self._written:
            self._fail(f"it gave offset {first} again, {self._written} was due")
        for offset, count in sent:
            if offset != due:
                raise CommitUnclear(f"{self.place.name}: another writer came between the parts of a batch")
            due = offset + count
        self._written = due
        return first + self.shift

    async def _sender(self) -> KafkaSend:
        if self._send is None:
            self._send = await KafkaSend.open(self.place, self._message_bytes_max, self._patience_s)
        return self._send

    async def _give_up_sender(self) -> None:
        send, self._send = self._send, None
        if send is not None:
            await send.abandon()

    async def _until_readable(self) -> None:
        """Return once the topic can be read. Raises LogFailed where it is another one now."""
        while True:
            try:
                if await describe_topic(self.place) is None:
                    self._fail("it is not there any more")
                if await self._fetch.end() < self._written:
                    self._fail("it ends before what it had acknowledged")
                return
            except LogFailed:
                raise
            except (KafkaError, KafkaUnreachable, OSError, TimeoutError):
                await asyncio.sleep(AGAIN_S)

    def _fail(self, what: str) -> NoReturn:
        self._failed = f"{self.place.name}: {what}: it was recreated or lost records: exit, and look at it"
        raise LogFailed(self._failed)

    async def _shift_now(self) -> int:
        """What to add to the topic's offsets of appended records: one number for a topic's whole life."""
        newest = await self._last_record()
        assert newest is not None
        role = newest.place.role
        if role is Role.APPENDED:
            return newest.place.number
        if role is Role.COPIED:
            return newest.offset - newest.kafka_offset
        if role is Role.BASE:
            raise TopicRefused(f"{self.place.name} holds the beginning of a copy: finish it with `log copy`")
        origin = await self._fetch.first_from(self._begin, self._stop)
        if origin is None:
            raise LogError(f"{self.place.name}: its first record is gone while it is opened: try again")
        return origin.place.number - origin.kafka_offset - 1
