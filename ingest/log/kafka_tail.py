"""A topic read ahead for a process that may not wait: its event loop takes what is already here.

A task in the client's own thread fetches from where the reader stands, up to a ceiling of bytes,
and wakes whoever waits. A read at another place than the one before (the start of a fold, or of its
successor) goes to the brokers and waits for them; reading ahead goes on behind it.

While no broker answers there is nothing to read; that is the outage of the log, not the end of the
process. What does end it is told at the next read: retention passed by (OffsetGone), or the topic
is another one (LogCorrupt).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

import structlog
from aiokafka.errors import KafkaError

from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable
from projections.bounds import MIB
from projections.events.ports import LogError, OffsetGone, RecordBatch

AHEAD_BYTES_MAX = 16 * MIB  # fetched and not taken yet, one fetch beyond it
FETCH_BYTES = MIB
NEWS_S = 0.5  # a request that waits for news
AGAIN_S = 0.2  # behind a broker that did not answer
BEGIN_EVERY_S = 10.0  # between looks at where retention has got to

log = structlog.get_logger("picklog.log")


class KafkaTail:
    """LogReader over a topic, for the thread of one event loop. Use `open`, and `close` afterwards."""

    def __init__(self, reader: KafkaReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._queue: deque[RecordBatch] = deque()
        self._queued_bytes = 0
        self._next = -1  # the log's offset that the next read is expected to ask for
        self._end = reader.end_offset()
        self._first = reader.first_offset()
        self._problem: LogError | None = None
        self._aim = 0  # counts the places that reading ahead was begun at
        self._room = asyncio.Event()  # of the client's loop
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @classmethod
    def open(cls, place: KafkaPlace) -> KafkaTail:
        """Follow the log of a topic. Raises TopicRefused, KafkaUnreachable, LogCorrupt."""
        return cls(KafkaReader.open(place, follows=True))

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._reader.log_id

    @property
    def source(self) -> KafkaReader:
        """The reader below, for what is asked before anything is read."""
        return self._reader

    def first_offset(self) -> int:
        """See LogReader; as it was some seconds ago."""
        return self._first

    def end_offset(self) -> int:
        """See LogReader; as far as is known here."""
        return self._end

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader. Waits for the brokers only where it does not go on from the read before."""
        with self._lock:
            if start == self._next:
                if self._queue:
                    return self._taken(bytes_max)
                if self._problem is not None:
                    raise self._problem
                return []
        return self._read_there(start, bytes_max)

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._queue or self._problem is not None or offset != self._next:
                return
            waiter = loop.create_future()
            self._waiter = loop, waiter
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await waiter

    def close(self) -> None:
        """Leave the cluster."""
        self._aim += 1
        self._reader.close()

    def _taken(self, bytes_max: int) -> list[RecordBatch]:
        found: list[RecordBatch] = []
        size = 0
        while self._queue and (size < bytes_max or not found):
            batch = self._queue.popleft()
            size += sum(map(len, batch.records))
            found.append(batch)
        self._queued_bytes -= size
        self._next = found[-1].first_offset + len(found[-1].records)
        self._reader.loop.call_soon(self._room.set)
        return found

    def _read_there(self, start: int, bytes_max: int) -> list[RecordBatch]:
        with self._lock:
            self._aim += 1
            self._queue.clear()
            self._queued_bytes = 0
            self._problem = None
            self._next = -1
            aim = self._aim
        try:
            found = self._reader.read(start, bytes_max)
        except OffsetGone as gone:
            self._first = max(self._first, gone.first_offset)
            with suppress(LogError):
                self._end = max(self._end, self._reader.end_offset())
            raise
        self._end = max(self._end, self._reader.end_offset())
        self._first = self._reader.first_offset()
        with self._lock:
            self._next = start
            if found:
                self._next = found[-1].first_offset + len(found[-1].records)
        self._reader.loop.start(self._read_ahead(aim, self._next))
        return found

    # In the client's thread -----------------------------------------------------------

    async def _read_ahead(self, aim: int, position: int) -> None:
        """Fetch from `position` on until another place is read, or the log cannot be read any more."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + BEGIN_EVERY_S
        is_away = False
        while aim == self._aim:
            try:
                batches = await self._reader.some(position, FETCH_BYTES)
                if not batches:
                    await self._reader.news(position, NEWS_S)
                self._end = max(self._end, await self._reader.end_here())
                if loop.time() > look_at:
                    look_at = loop.time() + BEGIN_EVERY_S
                    self._first = await self._reader.begin_here()
            except (KafkaUnreachable, KafkaError, OSError, TimeoutError) as problem:
                if not is_away and aim == self._aim:  # one that was closed has nothing to tell
                    log.warning("the log on Kafka cannot be read", cause=type(problem).__name__)
                is_away = True
                await asyncio.sleep(AGAIN_S)
                continue
            except LogError as problem:
                if isinstance(problem, OffsetGone):  # a fold that begins anew asks for both ends
                    self._first = max(self._first, problem.first_offset)
                    with suppress(LogError, KafkaError, OSError, TimeoutError):
                        self._end = max(self._end, await self._reader.end_here())
                self._give(aim, [], problem)
                return
            if is_away:
                is_away = False
                log.info("the log on Kafka is read again")
            if batches:
                position = batches[-1].first_offset + len(batches[-1].records)
                self._give(aim, batches, None)
                await self._until_room(aim)

    def _give(self, aim: int, batches: list[RecordBatch], problem: LogError | None) -> None:
        with self._lock:
            if aim != self._aim:
                return
            self._queue.extend(batches)
            self._queued_bytes += sum(len(record) for batch in batches for record in batch.records)
            self._problem = problem
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            with suppress(RuntimeError):  # a loop that was closed has nobody waiting
                waiter[0].call_soon_threadsafe(_wake, waiter[1])

    async def _until_room(self, aim: int) -> None:
        while self._queued_bytes > AHEAD_BYTES_MAX and aim == self._aim:
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(NEWS_S):
                    await self._room.wait()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
