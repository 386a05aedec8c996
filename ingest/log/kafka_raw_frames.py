"""Raw frames of an owner on Kafka: its writing side, which never waits and never grows.

What is put waits in a queue with two ceilings; a thread of its own sends it, one batch of the topic at a
time, and forgets it once that is acknowledged. What does not fit is dropped and counted: raw frames are the
first thing to go (decision 15). A batch whose fate is unclear is sent again, since twice does no harm:
readers take the first of equal offset. Brokers that are away, or a topic that will not do, cost frames and
a line in the process log, never the owner (decision 12).
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import NamedTuple

import structlog
from aiokafka.errors import KafkaError

from ingest.log.kafka_admin import BATCH_OVERHEAD_BYTES
from ingest.log.kafka_loop import KafkaLoop, told
from ingest.log.kafka_raw_topic import MESSAGE_BYTES_MIN, frame_header, prepare_raw
from ingest.log.kafka_send import KafkaSend, SendRefused, SendUnclear
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.raw_frames import RawSettings
from projections.bounds import KV_FRAME_BYTES_MAX, MIB
from projections.events.ports import LogError

QUEUE_BYTES_MAX = 16 * MIB  # some seconds of a large fleet
QUEUE_FRAMES_MAX = 32_768
BATCH_FRAMES_MAX = 8_192
FRAME_COST = 128  # bytes that a frame takes beside its own: its head in the batch, its place in the queue
BATCH_BYTES = KV_FRAME_BYTES_MAX + FRAME_COST  # of one batch of the topic: the largest frame fits alone
LINGER_S = 0.1  # frames gather for so long: nobody waits for them
PATIENCE_S = 30.0
AGAIN_S = 5.0  # until a topic that did not take frames is asked again
CHECK_S = 5.0  # of sending between two looks whether the topic will still do: it may be made anew
FLUSH_S = 2.0  # what the last frames may take at the end

log = structlog.get_logger("picklog.log")

assert BATCH_BYTES < QUEUE_BYTES_MAX
assert BATCH_BYTES < MESSAGE_BYTES_MIN - BATCH_OVERHEAD_BYTES


class _Waiting(NamedTuple):
    offset: int
    time: int
    frame: bytes

    @property
    def cost(self) -> int:
        return len(self.frame) + FRAME_COST


class KafkaRawFrames:
    """FrameKeeper over a topic. Calls are for one thread; the topic is reached in another one."""

    def __init__(self, place: KafkaPlace, log_id: bytes, settings: RawSettings) -> None:
        self._place = place
        self._log_id = log_id
        self._settings = settings
        self._queue: deque[_Waiting] = deque()
        # Each of these four is written by one thread alone: the first two by the caller's.
        self._bytes_put = 0
        self._refused = 0
        self._bytes_done = 0
        self._failed = 0
        self._is_idle = False
        self._is_closing = False
        self._wake = asyncio.Event()
        self._told: str | None = None
        self._loop = KafkaLoop()
        self._running: Future[None] = self._loop.start(self._run())
        self._running.add_done_callback(_on_end)

    @property
    def dropped(self) -> int:
        """See FrameKeeper."""
        return self._refused + self._failed

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are not acknowledged yet, with FRAME_COST for each. At most QUEUE_BYTES_MAX."""
        return self._bytes_put - self._bytes_done

    def put(self, offset: int, frame: bytes, at_us: int) -> None:
        """See FrameKeeper."""
        one = _Waiting(offset, at_us, frame)
        if (
            len(frame) > KV_FRAME_BYTES_MAX
            or self.waiting_bytes + one.cost > QUEUE_BYTES_MAX
            or len(self._queue) >= QUEUE_FRAMES_MAX
        ):
            self._refused += 1
            return
        self._bytes_put += one.cost
        self._queue.append(one)
        if self._is_idle:
            self._loop.call_soon(self._wake.set)

    def drop(self) -> None:
        """See FrameKeeper."""
        self._refused += 1

    def close(self) -> None:
        """See FrameKeeper. Waits a little for the last frames."""
        self._is_closing = True
        self._loop.call_soon(self._wake.set)
        with suppress(TimeoutError, CancelledError, LogError):
            self._running.result(FLUSH_S)
        self._running.cancel()
        with suppress(TimeoutError):
            self._loop.close()
        self._failed += len(self._queue)

    # In the client's thread ----------------------------------------------------------

    async def _run(self) -> None:
        """Reach the topic and send, again and again, until closed."""
        while self._queue or not self._is_closing:
            send: KafkaSend | None = None
            try:
                differences = await prepare_raw(self._place, self._settings)
                send = await KafkaSend.open(self._place, MESSAGE_BYTES_MIN, PATIENCE_S)
                self._say_kept(differences)
                await self._send_all(send)
            except (SendRefused, SendUnclear, LogError) as problem:
                self._say_lost(str(problem))
            except (KafkaError, OSError, TimeoutError) as problem:
                self._say_lost(str(told(problem)))
            finally:
                if send is not None:
                    await send.abandon()
            if self._is_closing:
                return
            await self._rest()

    async def _send_all(self, send: KafkaSend) -> None:
        """Until closed with nothing left. Raises SendRefused, SendUnclear, and what `prepare_raw` raises."""
        loop = asyncio.get_running_loop()
        checked_at = loop.time()
        while await self._something():
            if loop.time() - checked_at >= CHECK_S:
                await prepare_raw(self._place, self._settings)
                checked_at = loop.time()
            step = self._next()
            records = [
                (one.frame, frame_header(self._log_id, one.offset, one.time, one.frame)) for one in step
            ]
            try:
                await send.batches(records)
            except SendRefused:
                self._failed += len(step)
                self._forget(len(step))
                raise
            self._forget(len(step))

    async def _something(self) -> bool:
        """Wait for frames, and let some gather; False once closed with none left."""
        while not self._queue:
            if self._is_closing:
                return False
            self._wake.clear()
            self._is_idle = True
            if not self._queue and not self._is_closing:  # a `put` in between saw no idle thread
                await self._wake.wait()
            self._is_idle = False
            if not self._is_closing:
                await asyncio.sleep(LINGER_S)
        return True

    def _next(self) -> list[_Waiting]:
        """The oldest frames, as many as one batch takes; at least one."""
        step: list[_Waiting] = []
        size = 0
        for number in range(min(len(self._queue), BATCH_FRAMES_MAX)):
            one = self._queue[number]
            if step and size + one.cost > BATCH_BYTES:
                break
            step.append(one)
            size += one.cost
        return step

    def _forget(self, count: int) -> None:
        for _ in range(count):
            self._bytes_done += self._queue.popleft().cost

    async def _rest(self) -> None:
        """Before the topic is asked again, or until closed."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await self._wake.wait()

    def _say_kept(self, differences: list[str]) -> None:
        self._told = None
        log.info("raw frames go to a topic", topic=self._place.topic, age_us=self._settings.age_us)
        for what in differences:
            log.warning("the topic of raw frames keeps them otherwise than configured", detail=what)

    def _say_lost(self, cause: str) -> None:
        """Once for each cause in a row."""
        if cause != self._told:
            self._told = cause
            log.warning("the topic of raw frames does not take them", topic=self._place.topic, cause=cause)


def _on_end(running: Future[None]) -> None:
    problem = None if running.cancelled() else running.exception()
    if problem is not None:
        log.error("no more raw frames are kept: their thread ended by a fault", exc_info=problem)
