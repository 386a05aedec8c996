"""A topic read ahead in the client's thread: the fold takes what is there and waits for nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.log import kafka_tail
from ingest.log.kafka_fetch import Fetched
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_records import Role
from ingest.log.kafka_settings import KafkaUnreachable
from ingest.log.kafka_tail import KafkaTail
from projections.events.ports import LogCorrupt, OffsetGone, RecordBatch
from tests.ingest.log.kafka_topic import FakeFetch, Topic

BATCH = 1 << 20


class PatientFetch(FakeFetch):
    """Waits a moment for news, as a broker does, and may be away."""

    def __init__(self, topic: Topic, answer_records: int) -> None:
        super().__init__(topic, answer_records)
        self.is_away = False
        self.answers = 0

    async def end(self) -> int:
        self._answer()
        return await super().end()

    async def some(self, stop: int, count: int | None = None, *, beyond_too: bool = False) -> list[Fetched]:
        self._answer()
        self.answers += 1
        return await super().some(stop, count, beyond_too=beyond_too)

    async def news(self, timeout_s: float) -> list[Fetched]:
        self._answer()
        if self._at >= self.topic.end:
            await asyncio.sleep(0.001)
        return await super().news(timeout_s)

    def _answer(self) -> None:
        if self.is_away:
            raise KafkaUnreachable("nobody answers")


class Ahead:
    """A tail over a topic in memory."""

    def __init__(self, appended: int = 0, answer_records: int = 1_000) -> None:
        self.topic = Topic()
        self.topic.add(Role.ORIGIN, 0)
        self.append(appended)
        self.fetch = PatientFetch(self.topic, answer_records)
        reader = KafkaReader(KafkaLoop(), self.fetch, follows=True)
        reader.loop.run(reader.identify())
        self.tail = KafkaTail(reader)

    def append(self, count: int = 1, value: bytes = b"x") -> None:
        for _ in range(count):
            self.topic.add(Role.APPENDED, -1, value)

    @property
    def end(self) -> int:
        """The log's offset behind the last record."""
        return self.topic.end - 1


@contextmanager
def ahead(appended: int = 0, answer_records: int = 1_000) -> Iterator[Ahead]:
    one = Ahead(appended, answer_records)
    try:
        yield one
    finally:
        one.tail.close()


def offsets(batches: list[RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset, _ in enumerate(batch.records, batch.first_offset)]


def read_to(one: Ahead, start: int, end: int, bytes_max: int = BATCH) -> list[int]:
    """Read on until the record before `end` was read."""
    found: list[int] = []
    give_up_at = time.monotonic() + 20
    while (found[-1] + 1 if found else start) < end:
        assert time.monotonic() < give_up_at, found[-5:]
        found += offsets(one.tail.read(found[-1] + 1 if found else start, bytes_max))
    return found


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # the client's thread tells nobody
            await asyncio.sleep(0.001)


@pytest.mark.req("EVS-20")
@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["append", "read", "mark", "back"]), st.integers(1, 30)), max_size=12),
    st.integers(1, 7),
    st.integers(1, 8),
)
def test_every_record_is_read_once_and_in_order_however_it_comes(
    moves: list[tuple[str, int]], answer_records: int, bytes_max: int
) -> None:
    with ahead(3, answer_records) as one:
        found = offsets(one.tail.read(0, bytes_max))
        for move, count in moves:
            match move:
                case "append":
                    one.append(count)
                case "mark":
                    one.topic.mark(count)
                    one.append()
                case "read":
                    found += offsets(one.tail.read(found[-1] + 1, bytes_max))
                case "back":
                    del found[max(1, len(found) - count) :]
        wanted = [at - 1 for at in sorted(one.topic.records)][1:]
        found += read_to(one, found[-1] + 1, one.end, bytes_max)
        assert found == wanted


async def test_who_waits_is_woken_by_a_record_and_by_nothing_else() -> None:
    with ahead(2) as one:
        assert offsets(one.tail.read(0, BATCH)) == [0, 1]
        waiting = asyncio.create_task(one.tail.wait(2, 60.0))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        one.append()
        async with asyncio.timeout(5):
            await waiting
        assert offsets(one.tail.read(2, BATCH)) == [2]
        await one.tail.wait(3, 0.005)
        assert one.tail.read(3, BATCH) == []


async def test_a_read_that_goes_on_never_asks_the_brokers() -> None:
    with ahead(2) as one:
        one.tail.read(0, BATCH)
        one.fetch.is_away = True
        assert one.tail.read(2, BATCH) == []
        with pytest.raises(KafkaUnreachable):
            one.tail.read(0, BATCH)  # another place is asked for


@pytest.mark.req("EVS-17")
async def test_brokers_that_are_away_are_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "AGAIN_S", 0.002)
    with ahead(1) as one:
        one.tail.read(0, BATCH)
        for offset in (1, 2):
            one.fetch.is_away = True
            await asyncio.sleep(0.02)
            one.append()
            assert one.tail.read(offset, BATCH) == []
            one.fetch.is_away = False
            async with asyncio.timeout(5):
                await one.tail.wait(offset, 60.0)
            assert offsets(one.tail.read(offset, BATCH)) == [offset]


async def test_retention_that_passed_by_is_told_at_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "AHEAD_BYTES_MAX", 10)
    with ahead(150, answer_records=5) as one:
        found = offsets(one.tail.read(0, 1))
        one.append(50)
        one.topic.forget(100)
        with pytest.raises(OffsetGone) as gone:
            read_to(one, found[-1] + 1, one.end)
        assert gone.value.first_offset == 99
        assert (one.tail.first_offset(), one.tail.end_offset()) == (99, 200), "a fold that begins anew asks"
        with pytest.raises(OffsetGone):
            one.tail.read(gone.value.offset, BATCH)
        assert read_to(one, 99, one.end) == list(range(99, 200))
        assert one.tail.first_offset() == 99


async def test_a_topic_that_is_another_one_ends_the_reading() -> None:
    with ahead(3) as one:
        one.tail.read(0, BATCH)
        one.topic.add(Role.APPENDED, -1, log_id=bytes(16))
        one.topic.end = 2
        await until(lambda: one.tail._problem is not None)
        with pytest.raises(LogCorrupt):
            one.tail.read(3, BATCH)


async def test_no_more_is_fetched_than_a_slow_fold_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "AHEAD_BYTES_MAX", 5_000)
    monkeypatch.setattr(kafka_tail, "FETCH_BYTES", 1_000)
    with ahead(answer_records=10) as one:
        one.append(1_000, bytes(100))
        one.tail.read(0, 1)
        await until(lambda: one.tail._queued_bytes > 5_000)
        answers = one.fetch.answers
        await asyncio.sleep(0.05)
        assert one.tail._queued_bytes <= 6_000
        assert one.fetch.answers <= answers + 1
        assert one.tail.read(1, 1)
        assert len(read_to(one, one.tail._next, one.end)) > 900


async def test_the_end_and_the_beginning_are_told_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_tail, "BEGIN_EVERY_S", 0.0)
    with ahead(5) as one:
        assert (one.tail.first_offset(), one.tail.end_offset()) == (0, 5)
        assert one.tail.log_id == one.tail.source.log_id
        one.tail.read(0, BATCH)
        one.append(2)
        await until(lambda: one.tail.end_offset() == 7)
        one.topic.forget(4)
        await until(lambda: one.tail.first_offset() == 3)
        assert read_to(one, 5, 7) == [5, 6]
