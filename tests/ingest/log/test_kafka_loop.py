"""The client's own thread: results, errors as ours, and its end."""

from __future__ import annotations

import asyncio
import threading

import pytest
from aiokafka.errors import InvalidTopicError, KafkaTimeoutError, TopicAuthorizationFailedError

from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_settings import KafkaUnreachable, TopicRefused
from projections.events.ports import LogCorrupt, LogFailed


async def raising(problem: Exception) -> None:
    raise problem


async def named() -> str:
    return threading.current_thread().name


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_work_runs_in_a_thread_of_its_own_and_errors_are_ours() -> None:
    loop = KafkaLoop()
    assert loop.run(named()) == "kafka"
    for problem in (KafkaTimeoutError("x"), ConnectionError("broker:9092"), TimeoutError()):
        with pytest.raises(KafkaUnreachable) as told:
            loop.run(raising(problem))
        assert type(problem).__name__ in str(told.value) and "9092" not in str(told.value)
    with pytest.raises(KafkaUnreachable, match="may not use the topic"):
        loop.run(raising(TopicAuthorizationFailedError()))
    with pytest.raises(TopicRefused, match="no topic of that name"):
        loop.run(raising(InvalidTopicError()))
    with pytest.raises(LogCorrupt):
        loop.run(raising(LogCorrupt("as it is")))
    loop.close()


def test_closing_ends_what_still_runs() -> None:
    loop = KafkaLoop()
    waiting = loop.start(for_ever())
    blocked: list[BaseException] = []

    def wait() -> None:
        try:
            loop.run(for_ever())
        except LogFailed as problem:
            blocked.append(problem)

    thread = threading.Thread(target=wait)
    thread.start()
    while len(asyncio.all_tasks(loop._loop)) < 2:
        thread.join(0.01)
    loop.close()
    loop.close()
    thread.join(5)
    assert waiting.cancelled() and len(blocked) == 1
    with pytest.raises(LogFailed, match="was closed"):
        loop.run(named())
