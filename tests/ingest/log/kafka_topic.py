"""A topic in memory, for tests of what reads and writes one: records with places, markers between."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ingest.log.kafka_fetch import Fetched, KafkaFetch, OutOfRange
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_records import Role, Told
from ingest.log.kafka_settings import KafkaPlace

LOG_ID = bytes(range(16))
PLACE = KafkaPlace(("broker:9092",), "picklog")


class Topic:
    """What the brokers hold. `records` by their offset in the topic; markers are offsets without one."""

    def __init__(self) -> None:
        self.begin = 0
        self.end = 0
        self.records: dict[int, Fetched] = {}

    def add(self, role: Role, number: int, value: bytes = b"x", log_id: bytes = LOG_ID) -> int:
        """One record at the end; its offset in the topic."""
        told = Told(role, log_id, number)
        self.records[self.end] = Fetched(self.end, told.offset(self.end), value, told)
        self.end += 1
        return self.end - 1

    def mark(self, markers: int = 1) -> None:
        """Markers of transactions."""
        self.end += markers

    def forget(self, begin: int) -> None:
        """Drop everything before an offset of the topic."""
        self.begin = begin
        self.records = {at: record for at, record in self.records.items() if at >= begin}


class FakeFetch(KafkaFetch):
    """KafkaFetch over such a topic. probes: seeks so far.

    An answer holds what the topic holds when it comes, as real ones do: also what was appended
    behind the end that the reader knew. on_answer: called before each answer is cut.
    """

    def __init__(self, topic: Topic, answer_records: int = 1_000) -> None:
        super().__init__(PLACE, None)
        self.topic = topic
        self.probes = 0
        self.on_answer: Callable[[], object] = lambda: None
        self._answer_records = answer_records
        self._at = 0

    async def begin(self) -> int:
        return self.topic.begin

    async def end(self) -> int:
        return self.topic.end

    def seek(self, position: int) -> None:
        self.probes += 1
        self._at = position

    async def position(self) -> int:
        return self._at

    async def some(self, stop: int, count: int | None = None, *, beyond_too: bool = False) -> list[Fetched]:
        self.on_answer()
        if self._at < self.topic.begin or self._at > self.topic.end:
            raise OutOfRange(PLACE.name)
        found: list[Fetched] = []
        while self._at < self.topic.end and len(found) < min(count or 1 << 60, self._answer_records):
            record = self.topic.records.get(self._at)
            self._at += 1
            if record is not None:
                found.append(record)
        return found if beyond_too else [record for record in found if record.kafka_offset < stop]

    async def news(self, timeout_s: float) -> list[Fetched]:
        return await self.some(self.topic.end, beyond_too=True)

    async def close(self) -> None:
        return None


class SameThread(KafkaLoop):
    """Runs coroutines of fakes, which never wait, where they are asked for."""

    def __init__(self) -> None:
        self.is_closed = False

    def run(self, work: Any) -> Any:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a fake waited")

    def start(self, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.run(work))
        return future

    def close(self) -> None:
        self.is_closed = True


def reader_of(topic: Topic, follows: bool = True, answer_records: int = 1_000) -> KafkaReader:
    """A reader of the topic as it stands."""
    loop = SameThread()
    reader = KafkaReader(loop, FakeFetch(topic, answer_records), follows)
    loop.run(reader.identify())
    return reader
