"""The reading side of a log on Kafka: the topic's one partition, by offset, without a consumer group.

Only committed records are read, markers of transactions are no records, and every record tells
its own place in the log (`kafka_records`): the topic's numbering may differ from the log's, and
both may jump. Where a read does not go on from the one before, the place in the topic is
searched; told numbers grow with the topic's, so a few probes find it.

A reader that was opened to the end sees the log as it stood then and grows no more; one that
follows sees what is appended meanwhile. A topic that was recreated, cut, or is used for anything
else is LogCorrupt. For one thread, like every reader; a call waits for the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from ingest.log.kafka_fetch import Fetched, KafkaFetch, OutOfRange
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_records import Role
from ingest.log.kafka_settings import KafkaPlace, TopicRefused, TopicReplaced
from projections.events.ports import LogCorrupt, OffsetGone, RecordBatch

READ_ON_RECORDS = 2_048  # nearer than that, reading on is quicker than another probe
PROBES_MAX = 128
LAST_STEPS = (1, 8, 64, 512, 4_096, 65_536, 1 << 62)  # back from the end, until a record is met
_OF_THE_LOG = (Role.COPIED, Role.APPENDED)


class KafkaReader:
    """LogReader over a topic. Use `open`, and `close` afterwards."""

    def __init__(self, loop: KafkaLoop, fetch: KafkaFetch, follows: bool) -> None:
        self.loop = loop
        self._fetch = fetch
        self._follows = follows
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._log_id = b""
        self._begin = 0  # the topic's oldest offset when it was looked at, and the log's there
        self._first = 0
        self._stop = 0  # the topic's offset behind what may be read
        self._end_at_opening = 0
        self._next = -1  # the log's offset that the buffer, or else the next fetch, goes on with
        self._buffer: deque[Fetched] = deque()
        self._shift: int | None = None  # of appended records, once one was seen
        self._newest: tuple[int, Fetched | None] = (-1, None)  # the last record before a `_stop`

    @classmethod
    def open(cls, place: KafkaPlace, follows: bool = False) -> KafkaReader:
        """Read the log of a topic. Raises TopicRefused, KafkaUnreachable, LogCorrupt."""
        loop = KafkaLoop()
        try:
            return loop.run(cls._opened(loop, place, follows))
        except BaseException:
            loop.close()
            raise

    @classmethod
    async def _opened(cls, loop: KafkaLoop, place: KafkaPlace, follows: bool) -> KafkaReader:
        fetch = await KafkaFetch.open(place)
        try:
            reader = cls(loop, fetch, follows)
            await reader.identify()
            return reader
        except BaseException:
            await fetch.close()
            raise

    # LogReader -----------------------------------------------------------------------

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    @property
    def place(self) -> KafkaPlace:
        """The topic that is read."""
        return self._fetch.place

    def first_offset(self) -> int:
        """See LogReader."""
        return self.loop.run(self._first_now()) if self._follows else self._first

    def end_offset(self) -> int:
        """See LogReader."""
        return self.loop.run(self._end_now()) if self._follows else self._end_at_opening

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader. Also raises KafkaUnreachable."""
        return self.loop.run(self._read(start, bytes_max))

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader."""
        await asyncio.wrap_future(self.loop.start(self._wait(offset, timeout_s)))

    def close(self) -> None:
        """Leave the cluster; once more is nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.loop.run(self._fetch.close())
        finally:
            self.loop.close()

    # For copies ----------------------------------------------------------------------

    def base(self) -> list[bytes]:
        """The records of the checkpoint that this log begins with; [] for a log without one."""
        return self.loop.run(self._base())

    def newest(self) -> Fetched | None:
        """The topic's newest record of any role; None in an empty topic."""
        return self.loop.run(self._newest_now())

    def topic_offset(self, offset: int) -> int | None:
        """The topic's own offset of the first record at or behind one of the log; None at its end."""
        return self.loop.run(self._topic_offset(offset))

    # In the client's thread ----------------------------------------------------------

    async def some(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """As `read`."""
        return await self._read(start, bytes_max)

    async def news(self, offset: int, timeout_s: float) -> None:
        """As `wait`."""
        await self._wait(offset, timeout_s)

    async def end_here(self) -> int:
        """The end as far as this reader has looked."""
        async with self._lock:
            return await self._end()

    async def begin_here(self) -> int:
        """As `first_offset`."""
        return await self._first_now()

    async def identify(self) -> None:
        """Learn which log the topic holds, and both its ends. Raises TopicRefused, LogCorrupt."""
        name = self._fetch.place.name
        self._begin, self._stop = await self._fetch.ends()
        told = await self._fetch.first_from(self._begin, self._stop)
        if told is None and self._begin:
            raise LogCorrupt(f"{name}: every record is gone, by retention: remove the topic")
        if told is None:
            raise TopicRefused(f"{name} holds no log yet: copy one into it with `picklog log copy`")
        self._log_id = self._fetch.log_id = told.place.log_id
        self._first = await self._first_at(self._begin)
        self._end_at_opening = await self._end()

    async def _first_now(self) -> int:
        async with self._lock:
            await self._look_at_begin()
            return self._first

    async def _end_now(self) -> int:
        async with self._lock:
            await self._look_at_end()
            return await self._end()

    async def _newest_now(self) -> Fetched | None:
        async with self._lock:
            await self._look_at_end()
            return await self._last_record()

    async def _look_at_begin(self) -> None:
        begin = await self._fetch.begin()
        if begin != self._begin:
            if begin > self._stop:  # all that this reader knew of is gone
                await self._look_at_end()
            self._begin, self._first = begin, await self._first_at(begin)

    async def _look_at_end(self) -> None:
        if not self._follows:
            return
        end = await self._fetch.end()
        if end < self._stop:
            raise TopicReplaced(
                f"{self._fetch.place.name} ended at its offset {self._stop} and ends at {end} now: it was "
                "recreated, or lost acknowledged records"
            )
        self._stop = end

    async def _first_at(self, begin: int) -> int:
        """The log's offset of the first record at or behind an offset of the topic."""
        self._forget_place()
        position = begin
        while (found := await self._fetch.first_from(position, self._stop)) is not None:
            if found.place.role in _OF_THE_LOG:
                return found.offset
            if found.place.role is Role.ORIGIN and position == begin:
                return found.place.number
            position = found.kafka_offset + 1
        return self._first if self._shift is None else max(self._first, begin + self._shift)

    async def _end(self) -> int:
        if self._shift is None:
            newest = await self._last_record()
            if self._shift is None:
                is_of_log = newest is not None and newest.place.role is Role.COPIED
                return newest.offset + 1 if newest is not None and is_of_log else self._first
        return max(self._stop + self._shift, self._first)

    async def _last_record(self) -> Fetched | None:
        """The last one before `_stop`; behind it there may be markers of transactions."""
        if self._newest[0] != self._stop:
            self._forget_place()
            newest = None
            for back in LAST_STEPS:
                start = max(self._begin, self._stop - back)
                newest = await self._fetch.last_between(start, self._stop)
                is_found = newest is not None and newest.place.role is not Role.ORIGIN
                if is_found or start == self._begin:
                    break
            if newest is not None and newest.place.role is Role.APPENDED:
                self._shift = newest.place.number
            self._newest = self._stop, newest
        return self._newest[1]

    # Reading on ----------------------------------------------------------------------

    async def _read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        async with self._lock:
            for _ in range(2):
                if start < self._first:
                    raise OffsetGone(start, self._first)
                try:
                    if start == self._next or await self._go_to(start):
                        await self._fill()
                    return self._take(bytes_max)
                except OutOfRange:  # retention passed by, or the topic is another one
                    await self._look_at_end()
                    await self._look_at_begin()
            raise OffsetGone(start, max(self._first, start + 1))

    def _take(self, bytes_max: int) -> list[RecordBatch]:
        """What is buffered, about `bytes_max` of it, in runs of following offsets."""
        batches: list[RecordBatch] = []
        records: list[bytes] = []
        size = first = 0
        while self._buffer and (size < bytes_max or not size):
            record = self._buffer.popleft()
            if records and record.offset != self._next:
                batches.append(RecordBatch(first, records))
                records = []
            if not records:
                first = record.offset
            records.append(record.value)
            size += len(record.value)
            self._next = record.offset + 1
        if records:
            batches.append(RecordBatch(first, records))
        return batches

    async def _fill(self) -> None:
        """Fetch until something is buffered or the end is reached."""
        while not self._buffer:
            if await self._fetch.position() >= self._stop:
                await self._look_at_end()
                if await self._fetch.position() >= self._stop:
                    return
            self._admit(await self._fetch.some(self._stop, beyond_too=self._follows))
            if self._follows:
                self._stop = max(self._stop, await self._fetch.position())

    def _admit(self, records: list[Fetched]) -> None:
        """Buffer what is of the log; what was read already, a repeated copy, is passed over."""
        due = self._buffer[-1].offset + 1 if self._buffer else self._next
        for record in records:
            if record.place.role not in _OF_THE_LOG:
                continue
            if record.place.role is Role.APPENDED:
                self._shift = record.place.number
            if record.offset >= due:
                self._buffer.append(record)
                due = record.offset + 1

    async def _wait(self, offset: int, timeout_s: float) -> None:
        async with self._lock:
            if self._buffer:
                return
            if offset != self._next:
                await self._look_at_end()
                if offset < await self._end():
                    return
                self._fetch.seek(self._stop)
                self._next = offset
            if self._follows:
                with suppress(OutOfRange):  # the next read tells it
                    self._admit(await self._fetch.news(timeout_s))
                self._stop = max(self._stop, await self._fetch.position())
                return
        await asyncio.sleep(timeout_s)

    # Finding a place -----------------------------------------------------------------

    def _forget_place(self) -> None:
        self._buffer.clear()
        self._next = -1

    async def _go_to(self, start: int) -> bool:
        """Let the next fetch give the first record at or behind `start`; False at the end."""
        self._forget_place()
        await self._look_at_end()
        newest = await self._last_record()
        if newest is None or newest.place.role not in _OF_THE_LOG or newest.offset < start:
            return False
        self._fetch.seek(await self._search(start, newest.kafka_offset))
        self._next = start
        return True

    async def _topic_offset(self, offset: int) -> int | None:
        async with self._lock:
            if not await self._go_to(offset):
                return None
            while not self._buffer:
                self._admit(await self._fetch.some(self._stop))
            found = self._buffer[0].kafka_offset
            self._forget_place()
            return found

    async def _search(self, start: int, high: int) -> int:
        """An offset of the topic at or a little before the record of `start`, which is at most at `high`."""
        low, low_offset = self._begin, self._first
        for probe in range(PROBES_MAX):
            if high - low <= READ_ON_RECORDS:
                break
            guess = (low + high) // 2
            if self._shift is not None and probe == 0:
                guess = start - self._shift
            elif probe % 2 == 0:
                guess = low + start - low_offset
            guess = min(max(guess, low + 1), high)
            found = await self._fetch.first_from(guess, self._stop)
            if found is not None and found.place.role in _OF_THE_LOG and found.offset > start:
                high = guess
            elif found is None:
                break
            elif found.offset == start and found.place.role in _OF_THE_LOG:
                return found.kafka_offset
            else:
                low, low_offset = found.kafka_offset, max(low_offset, found.offset)
        return low

    async def _base(self) -> list[bytes]:
        async with self._lock:
            self._forget_place()
            self._fetch.seek(self._begin)
            found: list[bytes] = []
            while await self._fetch.position() < self._stop:
                for record in await self._fetch.some(self._stop):
                    if record.place.role is Role.BASE:
                        found.append(record.value)
                    elif record.place.role is not Role.ORIGIN:
                        return found
            return found
