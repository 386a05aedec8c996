"""A thread with an event loop of its own for the Kafka client, which only speaks asyncio.

The log's ports are plain calls: commands have no event loop, and a process that has one may not
share it with a client that needs it to be quick. Foreign exceptions are translated here, the
one door: what can be tried again later is KafkaUnreachable, what brokers never take TopicRefused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from aiokafka.errors import InvalidTopicError, KafkaError, TopicAuthorizationFailedError

from ingest.log.kafka_settings import KafkaDenied, KafkaUnreachable, TopicRefused
from projections.events.ports import LogFailed

CLOSE_S = 5.0

T = TypeVar("T")


class KafkaLoop:
    """Runs coroutines of the client in its own thread."""

    def __init__(self) -> None:
        # The library logs every retry by names of its own; what matters arrives as an exception.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_on_stray)
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; its result as it comes."""
        return asyncio.run_coroutine_threadsafe(_translated(work), self._loop)

    def call_soon(self, act: Callable[[], object]) -> None:
        """Call something in the client's thread."""
        with suppress(RuntimeError):  # it was closed
            self._loop.call_soon_threadsafe(act)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Raises LogError."""
        if self._loop.is_closed():
            work.close()
            raise LogFailed("the log on Kafka was closed")
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise LogFailed("the log on Kafka was closed") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread; what still runs in it is cancelled."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()


def told(problem: BaseException) -> KafkaUnreachable | TopicRefused:
    """A foreign exception as ours, without addresses."""
    if isinstance(problem, TopicAuthorizationFailedError):
        return KafkaDenied("Kafka: this user may not use the topic: grant it Describe, Read and Write")
    if isinstance(problem, InvalidTopicError):
        return TopicRefused("Kafka takes no topic of that name: correct it in log.kafka")
    return KafkaUnreachable(f"Kafka cannot be reached or does not answer ({type(problem).__name__})")


async def _translated(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (KafkaError, OSError, TimeoutError) as problem:
        raise told(problem) from problem


def _on_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The library tells one failure through several futures; ours heard of it through the call."""
    if not isinstance(context.get("exception"), KafkaError):
        loop.default_exception_handler(context)


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
