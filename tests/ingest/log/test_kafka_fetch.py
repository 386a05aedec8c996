"""What becomes of the records and errors that the client library hands out. Real ones: tests/live."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from ingest.log import kafka_fetch
from ingest.log.kafka_fetch import KafkaFetch, OutOfRange
from ingest.log.kafka_records import Role, place_header
from ingest.log.kafka_settings import KafkaUnreachable
from projections.bounds import RECORD_BYTES_MAX
from projections.events.ports import LogCorrupt
from tests.ingest.log.kafka_topic import LOG_ID, PLACE

PARTITION = TopicPartition(PLACE.topic, 0)


class Answer(NamedTuple):
    offset: int
    value: bytes | None = b"x"
    headers: tuple[tuple[str, bytes], ...] = (place_header(Role.APPENDED, LOG_ID, -1),)


class Consumer:
    """Answers from a list, as the library's consumer does: records, nothing, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.at = 0
        self.is_paused = False

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at = offset

    def pause(self, partition: TopicPartition) -> None:
        self.is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        self.is_paused = False

    async def position(self, partition: TopicPartition) -> int:
        return self.at

    async def getmany(
        self, partition: TopicPartition, timeout_ms: int, max_records: int | None
    ) -> dict[TopicPartition, list[Answer]]:
        assert not self.is_paused
        await asyncio.sleep(0)
        answer = self.answers.popleft() if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):  # markers alone
            self.at, answer = answer, []
        if answer:
            self.at = answer[-1].offset + 1
        return {PARTITION: answer} if answer else {}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PARTITION: 3}

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {PARTITION: 9}


def fetch_of(*answers: Any) -> KafkaFetch:
    fetch = KafkaFetch(PLACE, Consumer(*answers))
    fetch.log_id = LOG_ID
    return fetch


async def test_records_come_with_their_place_up_to_where_one_may_read() -> None:
    fetch = fetch_of([Answer(0), Answer(1)], [], [Answer(2), Answer(3)], 9)
    assert await fetch.ends() == (3, 9)
    assert [(one.kafka_offset, one.offset) for one in await fetch.some(9)] == [(0, -1), (1, 0)]
    assert [one.kafka_offset for one in await fetch.some(3)] == [2]
    assert await fetch.some(9) == []


async def test_what_an_answer_holds_beyond_the_known_end_is_kept_where_it_is_asked_for() -> None:
    fetch = fetch_of([Answer(2), Answer(3), Answer(4)])
    found = await fetch.some(3, beyond_too=True)
    assert [one.kafka_offset for one in found] == [2, 3, 4]
    assert await fetch.position() == 5, "what was passed over here would never be read"


async def test_first_and_last_pass_over_markers() -> None:
    fetch = fetch_of(5, [Answer(5)])
    found = await fetch.first_from(2, 9)
    assert found is not None and found.kafka_offset == 5
    assert await fetch.first_from(9, 9) is None
    fetch = fetch_of([Answer(5), Answer(6)], [Answer(7)], 9)
    last = await fetch.last_between(5, 9)
    assert last is not None and last.kafka_offset == 7


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(4, b"x", ()), "record 4 is none of a log"),
        (Answer(4, None), "record 4 is none of a log"),
        (Answer(4, b"x", (place_header(Role.COPIED, bytes(16), 1),)), "record 4 is of another log"),
        (Answer(4, bytes(RECORD_BYTES_MAX + 1)), "above the ceiling"),
    ],
)
async def test_what_is_no_record_of_this_log_is_corrupt(answer: Answer, words: str) -> None:
    with pytest.raises(LogCorrupt, match=words):
        await fetch_of([answer]).some(9)


async def test_another_origin_of_a_race_is_passed_on_to_be_passed_over() -> None:
    (found,) = await fetch_of([Answer(1, b"x", (place_header(Role.ORIGIN, bytes(16), 0),))]).some(9)
    assert found.place.role is Role.ORIGIN


async def test_errors_are_ours_or_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfRange):
        await fetch_of(OffsetOutOfRangeError()).some(9)
    with pytest.raises(TopicAuthorizationFailedError):
        await fetch_of(TopicAuthorizationFailedError()).some(9)
    assert len(await fetch_of(KafkaConnectionError(), [Answer(0)]).some(9)) == 1
    monkeypatch.setattr(kafka_fetch, "REQUEST_S", 0.0)
    with pytest.raises(KafkaUnreachable, match="sends nothing"):
        await fetch_of().some(9)


async def test_news_are_waited_for_only_so_long() -> None:
    fetch = fetch_of([Answer(0)])
    assert len(await fetch.news(1.0)) == 1
    assert await fetch.news(0.0) == []


class Clinging:
    """A consumer whose `stop` ends as the library's does where a fetch is not answered, or never ends."""

    def __init__(self, *, ends: bool) -> None:
        self._client = self
        self._ends = ends
        self.is_closed = False

    async def stop(self) -> None:
        if not self._ends:
            await asyncio.Event().wait()
        pending = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        pending.cancel()
        await pending

    async def close(self) -> None:
        self.is_closed = True


async def test_brokers_that_do_not_answer_are_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_fetch, "CLOSE_S", 0.05)
    consumer = Clinging(ends=True)
    await KafkaFetch(PLACE, consumer).close()
    assert consumer.is_closed, "its connections too"
    await KafkaFetch(PLACE, Clinging(ends=False)).close()


async def test_a_close_can_be_cancelled() -> None:
    closing = asyncio.create_task(KafkaFetch(PLACE, Clinging(ends=False)).close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
