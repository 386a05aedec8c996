"""Stream workers (`picklog audit stream`): Faust reads `picklog.audit`, its partitions divided among them.

Faust does what it is good at: it divides the partitions among the workers, moves them when one comes or
goes, and hands messages over. It is trusted with nothing else: no tables, no commits that matter. What is
written, and how far, is in the database (`app.stream_worker`). Messages are acknowledged behind the
transaction that holds them.

The worker of partition 0 rolls minutes up, into the database and the compacted topic of roll-ups. Both
topics are made and checked before Faust starts, since a topic with another partition count makes it crash
and start again for ever. Its web view is off unless a port is set, and then on loopback unless told
otherwise.

The door of the library `faust`. Source: decision 48.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import faust
import structlog
from faust.auth import Credentials, SASLCredentials, SSLCredentials
from faust.exceptions import ConsumerNotStarted
from faust.types import TP
from yarl import URL as Address

from app.audit_database import AuditAway, BrokersAway, upgrade, writing_engine
from app.audit_producer import AUDIT_TOPIC, PARTITIONS, ROLLUPS_TOPIC, kafka_told
from app.audit_retention import Retention
from app.audit_settings import sink_settings
from app.config_model import Config
from app.config_storage import StreamSettings
from app.exposition import CONTENT_TYPE
from app.kafka_places import place_of
from app.processes import on_stop_signals, run_to_end
from app.rollup_messages import rollup_message
from app.rollup_writer import RollupWriter
from app.sql_rows import SinkSettings
from app.stream_figures import StreamFigures
from app.stream_worker import StreamWorker
from app.stream_writer import StreamWriter
from ingest.log.kafka_client import client_options
from ingest.log.kafka_keyed import Found, KeyedSpans, prepare_keyed
from ingest.log.kafka_settings import KafkaPlace
from projections.audit.rollups import RollupRow

log = structlog.get_logger("picklog.stream")

MESSAGES_AT_ONCE = 500
WITHIN_S = 0.25
SESSION_S = 10.0  # a worker that is silent for so long has lost its partitions
HEARTBEAT_S = 2.0
PREPARE_PAUSE_S = 2.0
ROLL_UP_EVERY_S = 1.0
STOP_S_MAX = 10.0
SAID_EVERY_S = 30.0
BUFFER_MESSAGES = 4_096  # read ahead, of all partitions


class Reminder:
    """Says a cause when it changed, and again every SAID_EVERY_S while it stays."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._cause: str | None = None
        self._said_at = 0.0

    def is_due(self, cause: str) -> bool:
        """Whether it is to be said now; then it counts as said."""
        now = self._now()
        if cause == self._cause and now - self._said_at < SAID_EVERY_S:
            return False
        self._cause, self._said_at = cause, now
        return True


class Seldom(logging.Filter):
    """Lets one line of a library through in SAID_EVERY_S: it tells each of its retries, many a second."""

    def __init__(self, library: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._library = library
        self._now = now
        self._said_at: float | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        if record.name.partition(".")[0] != self._library:
            return True
        now = self._now()
        if self._said_at is not None and now - self._said_at < SAID_EVERY_S:
            return False
        self._said_at = now
        return True


class StreamProcess:
    """One worker. place: of the topic of audit messages. rollups: the topic of roll-ups.

    tells_metrics: whether its web view, where it has one, has `/metrics`.
    """

    def __init__(
        self,
        place: KafkaPlace,
        rollups: str,
        sink: SinkSettings,
        settings: StreamSettings,
        folder: Path,
        tells_metrics: bool,
    ) -> None:
        self._place = place
        self._rollups_topic = rollups
        self._engine = writing_engine(sink.url)
        self._retention = Retention(self._engine, sink.retention_us, sink.bytes_max)
        self.app = faust_app(place, settings, folder)
        self._rollups_channel = self.app.topic(
            rollups, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        rolled = None
        if sink.rollup_grace_us is not None:
            rolled = RollupWriter(self._engine, sink.rollup_grace_us, self._publish)
        writer = StreamWriter(self._engine, place.topic, rolled)
        self.worker = StreamWorker(writer, lambda: KeyedSpans.open(place, PARTITIONS), rolled)
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        source = self.app.topic(
            place.topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )
        self.app.agent(source, name="picklog.audit")(self._write)
        self.figures = StreamFigures(self.worker, self._owned, self._ends)
        self._show_pages(tells_metrics)
        self.app.timer(ROLL_UP_EVERY_S, on_leader=False, name="picklog.rollups")(self._roll_up)

    async def prepare(self) -> None:
        """Make and check both topics and the schema. Raises AuditRefused, AuditAway."""
        with kafka_told():
            await prepare_keyed(self._place, AUDIT_TOPIC)
            await prepare_keyed(self._place._replace(topic=self._rollups_topic), ROLLUPS_TOPIC)
        await upgrade(self._engine)

    async def run(self, stopped: asyncio.Event) -> None:
        """Work until told to stop. Raises AuditRefused, and what ended the library."""
        self.app.in_worker = True
        await self.app.start()
        log.info("the stream worker begins", topic=self._place.topic, group=self.app.conf.id)
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self.failure),
            asyncio.create_task(stopped.wait()),
            asyncio.create_task(self.app.wait_until_stopped()),
        ]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
            if self.app.crash_reason is not None:
                raise self.app.crash_reason
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait([asyncio.create_task(self.app.stop())], timeout=STOP_S_MAX)

    async def close(self) -> None:
        """Let go of the database."""
        await self.figures.close()
        await self._engine.dispose()

    def _show_pages(self, tells_metrics: bool) -> None:
        async def progress(web: Any, _request: Any) -> Any:  # the library binds it to a view of its own
            return await self._show_progress(web)

        async def metrics(web: Any, _request: Any) -> Any:
            return web.bytes(await self.figures.text(), headers={"Content-Type": CONTENT_TYPE})

        self.app.page("/progress/", name="picklog.progress")(progress)
        if tells_metrics:  # the path that Prometheus asks for, and that of the library's own pages
            self.app.page("/metrics", name="picklog.metrics")(metrics)
            self.app.page("/metrics/", name="picklog.metrics.slash")(metrics)

    def _owned(self) -> list[int]:
        """Partitions of the topic that the group gives this worker, none before it has begun."""
        try:
            places = self.app.consumer.assignment()
        except ConsumerNotStarted:
            return []
        return sorted(place.partition for place in places if place.topic == self._place.topic)

    async def _ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """See StreamFigures."""
        try:
            found = await self.app.consumer.highwaters(*(TP(self._place.topic, one) for one in partitions))
        except Exception as problem:  # whatever the library makes of a broker that is away
            raise BrokersAway(type(problem).__name__) from problem
        return {place.partition: int(end) for place, end in found.items()}

    async def _write(self, stream: Any) -> None:
        """The agent: whole batches, acknowledged behind their transaction; never raises, which would skip."""
        events: Sequence[Any]
        async for events in _batches(stream):
            found = [Found(event.message.partition, event.message.offset, event.value) for event in events]
            try:
                await self.worker.take(found)
            except Exception as problem:
                if not self.failure.done():
                    self.failure.set_exception(problem)
                await asyncio.Event().wait()  # the process ends; nothing more is acknowledged
            for event in events:
                await stream.ack(event)
            await self._retention.due(0)

    async def _roll_up(self) -> None:
        if 0 in self._owned():
            await self.worker.roll_up()

    async def _show_progress(self, web: Any) -> Any:
        """What this worker has done since it began, as JSON."""
        worker = self.worker
        return web.json(
            {
                "partitions": self._owned(),
                "messages_written": worker.written,
                "messages_refused": worker.refused,
                "messages_fetched": worker.fetched,
                "rows": worker.rows,
            }
        )

    async def _publish(self, rows: Sequence[RollupRow]) -> None:
        """Send rows to the compacted topic, each acknowledged. Raises BrokersAway."""
        try:
            sent = []
            for row in rows:
                key, value = rollup_message(row)
                sent.append(await self._rollups_channel.send(key=key, value=value))
            await asyncio.gather(*sent)
        except Exception as problem:  # whatever the library makes of a broker that is away
            raise BrokersAway(f"roll-ups cannot be sent ({type(problem).__name__})") from problem


def faust_app(place: KafkaPlace, settings: StreamSettings, folder: Path) -> faust.App:
    """The library's application, with every option that matters. folder: where it may write, and does not."""
    return faust.App(
        settings.group,
        broker=[Address(f"aiokafka://{server}") for server in place.servers],
        broker_credentials=credentials(place),
        broker_client_id="picklog",
        broker_session_timeout=SESSION_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_commit_interval=1.0,
        consumer_auto_offset_reset="earliest",
        stream_buffer_maxsize=BUFFER_MESSAGES,
        stream_wait_empty=False,
        processing_guarantee="at_least_once",
        autodiscover=False,
        store="memory://",
        datadir=str(folder),
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=PARTITIONS,
        producer_acks=-1,
        producer_compression_type="zstd",
        web_enabled=bool(settings.web_port),
        web_bind=settings.web_bind,
        web_host=settings.web_bind,
        web_port=settings.web_port or 6066,
        version=1,
    )


def credentials(place: KafkaPlace) -> Credentials | None:
    """`log.kafka.security` as the library takes it. Raises TopicRefused for what is not mapped."""
    options = client_options(place)
    context: ssl.SSLContext | None = options.get("ssl_context")
    if "sasl_mechanism" in options:
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=options["sasl_mechanism"],
        )
    return None if context is None else SSLCredentials(context)


def stream_worker(config: Config, data: Path, web_port: int | None) -> int:
    """Run one worker until it is told to stop; its exit status. Raises AuditRefused.

    data: stands for `{data}` in `audit.url`. web_port: instead of the configured one.
    """
    os.umask(0o077)
    file_system = os.statvfs(data if data.is_dir() else Path())
    sink = sink_settings(config.audit, data, file_system.f_blocks * file_system.f_frsize)
    settings = config.audit.stream
    if web_port is not None:
        settings = settings.model_copy(update={"web_port": web_port})
    place = place_of(config.log.kafka)._replace(topic=config.log.kafka.audit_topic)
    rollups = config.log.kafka.rollups_topic
    return run_to_end(_work(place, rollups, sink, settings, config.metrics.enabled))


async def _work(
    place: KafkaPlace, rollups: str, sink: SinkSettings, settings: StreamSettings, tells_metrics: bool
) -> int:
    for handler in logging.getLogger().handlers:
        handler.addFilter(Seldom("aiokafka"))
    stopped = asyncio.Event()
    on_stop_signals(stopped.set)
    with tempfile.TemporaryDirectory(prefix="picklog-stream-") as folder:
        with kafka_told():
            process = StreamProcess(place, rollups, sink, settings, Path(folder), tells_metrics)
        reminder = Reminder()
        try:
            while not stopped.is_set():
                try:
                    await process.prepare()
                    break
                except AuditAway as problem:
                    cause = str(problem)
                    if reminder.is_due(cause):
                        log.error("the stream worker cannot begin", cause=cause, again_s=PREPARE_PAUSE_S)
                    await asyncio.wait([asyncio.create_task(stopped.wait())], timeout=PREPARE_PAUSE_S)
            if not stopped.is_set():
                await process.run(stopped)
        finally:
            await process.close()
    return 0


def _batches(stream: Any) -> AsyncIterator[Sequence[Any]]:
    found: AsyncIterator[Sequence[Any]] = stream.noack_take(MESSAGES_AT_ONCE, within=WITHIN_S)
    return found
