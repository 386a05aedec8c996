"""Stream workers on a real Kafka and PostgreSQL: killed, rebalanced, replayed, the rows stay the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiokafka import AIOKafkaConsumer
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import URL

from app.audit_database import AuditError, upgrade, writing_engine
from app.audit_figures import AuditFigures, Failure
from app.audit_messages import decode, encode_mark
from app.audit_producer import AUDIT_TOPIC, MARK_KEY, PARTITIONS, AuditProducer
from app.audit_rows import AuditRows, SinkMark
from app.audit_sink import AuditSink
from app.exposition import CONTENT_TYPE
from app.log_places import open_log
from app.rollup_messages import VERSION
from app.rollup_writer import RollupWriter
from app.stream import BUFFER_MESSAGES
from app.stream_figures import WAIT_S
from app.stream_worker import Peer
from app.stream_writer import StreamWriter, Stretch
from deploy.demo.addresses import free_port
from ingest.log.kafka_keyed import Keyed, KeyedSend, KeyedSpans, prepare_keyed
from ingest.log.kafka_settings import KafkaPlace, KafkaSecurity, TopicRefused
from projections.audit.rollups import MINUTE_US
from projections.events.codec import check_word, decode_record
from projections.events.ports import LogReader
from replay.engine import records_of
from tests.app.audit_site import eventful, rows, sink_settings, sqlite_url
from tests.app.stream_site import LOG, Story, rolled_up, said, told, written_directly
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.postgresql import PostgresServer

pytestmark = pytest.mark.live("kafka")

GOLDEN = Path(__file__).parents[1] / "golden" / "run-kv-1.6.1"
ROWS_S_MAX = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def topics(kafka: KafkaBroker) -> Iterator[Topics]:
    with Topics(kafka) as opened:
        yield opened


class Site:
    """A topic, a database, and workers in processes of their own."""

    def __init__(self, place: KafkaPlace, url: URL, folder: Path) -> None:
        self.place = place
        self.url = url
        self.folder = folder
        self.web_port = 0
        self.workers: list[subprocess.Popen[bytes]] = []

    def configure(self, group: str = "first") -> None:
        security = {name: text for name, text in self.place.security._asdict().items() if text is not None}
        section = {
            "bootstrap_servers": list(self.place.servers),
            "security": security,
            "audit_topic": self.place.topic,
            "rollups_topic": f"{self.place.topic}.rollups",
            "replication_factor": 1,
        }
        audit = {
            "sink": "stream",
            "url": self.url.render_as_string(hide_password=False),
            "rollups": {"grace": "0s"},
            "stream": {"group": f"{self.place.topic}-{group}"},
        }
        settings = {"log": {"kafka": section}, "audit": audit}
        (self.folder / "config.json").write_text(json.dumps(settings))

    def start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "app", "audit", "stream", "-c", str(self.folder / "config.json")]
        argv += ["--web-port", str(self.web_port)]
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as told:
            worker = subprocess.Popen(argv, stderr=told, stdout=told)
        self.workers.append(worker)
        return worker

    def told(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("worker-*.log")))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> list[int]:
        """Ask all that run to end; how they ended."""
        running = [worker for worker in self.workers if worker.poll() is None]
        for worker in running:
            worker.terminate()
        return [worker.wait(30) for worker in running]

    async def position(self) -> int:
        """Messages that are written; 0 before there is a table."""
        try:
            found = await rows(self.url)
        except AuditError:
            return 0
        return sum(int(row["position"]) for row in found["stream_positions"])

    async def has_begun(self, worker: subprocess.Popen[bytes]) -> None:
        """Return when a worker takes part."""
        told = self.folder / f"worker-{self.workers.index(worker)}.log"
        deadline = time.monotonic() + ROWS_S_MAX
        while "the stream worker begins" not in told.read_text():
            assert time.monotonic() < deadline, self.told()
            await asyncio.sleep(0.1)

    async def figures(self) -> dict[str, float]:
        """The worker's `/metrics`, asked as Prometheus does: by name, with the only label behind it."""
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.web_port}/metrics"
            async with session.get(url, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
                text = await answer.text()
        return {
            ":".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def figures_when(self, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """The first ones for which something holds."""
        deadline = time.monotonic() + ROWS_S_MAX
        while not holds(figures := await self.figures()):
            assert time.monotonic() < deadline, (figures, self.told())
            await asyncio.sleep(0.5)
        return figures

    @staticmethod
    def lags(figures: dict[str, float]) -> list[float]:
        """Of each partition of which it is known."""
        return [value for name, value in figures.items() if name.startswith("picklog_stream_lag_messages:")]

    @staticmethod
    def away(figures: dict[str, float]) -> dict[str, float]:
        return {peer.value: figures[f"picklog_stream_away:{peer.value}"] for peer in Peer}

    async def until(self, position: int) -> None:
        deadline = time.monotonic() + ROWS_S_MAX
        while await self.position() < position:
            assert time.monotonic() < deadline, self.told()
            await asyncio.sleep(0.3)


@pytest.fixture
def site(topics: Topics, server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    place = topics.place()
    found = Site(place._replace(topic=f"{place.topic}.audit"), server.url(), tmp_path)
    found.configure()
    yield found
    for worker in found.workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


async def shipped(place: KafkaPlace, reader: LogReader, until: int | None = None) -> None:
    """As the follower does, from its mark on."""
    store = AuditProducer(place, reader.log_id)
    sink = AuditSink(reader, None, sink_settings(sqlite_url(Path())), store=store, patient=False)
    try:
        await sink.follow(reader.end_offset() if until is None else until)
    finally:
        await sink.close()


async def messages(place: KafkaPlace) -> int:
    spans = await KeyedSpans.open(place, PARTITIONS)
    try:
        return sum(end for _, end in await spans.ends())
    finally:
        await spans.close()


async def directly(reader: LogReader, folder: Path) -> URL:
    """The embedded sink's rows of the same log."""
    url = sqlite_url(folder, "straight.sqlite")
    sink = AuditSink(reader, None, sink_settings(url, rollup_grace_us=0), patient=False)
    await sink.follow(reader.end_offset())
    await sink.close()
    return url


async def everything_rolled_up(url: URL) -> None:
    """Close the minutes that the log's own time has not closed yet."""
    engine = writing_engine(url)
    await rolled_up(RollupWriter(engine, 0))
    await engine.dispose()


@pytest.mark.req("EVS-09")
@pytest.mark.field("B-136")
async def test_killed_and_rebalanced_workers_write_the_rows_of_the_embedded_sink(
    site: Site, tmp_path: Path
) -> None:
    with open_log(GOLDEN) as opened:
        reader = opened.reader
        straight = await directly(reader, tmp_path)
        half = reader.end_offset() // 2
        await shipped(site.place, reader, half)
        first, second = site.start(), site.start()
        await site.until(1)
        site.kill(first)
        third = site.start()
        await shipped(site.place, reader)
        await site.has_begun(third)
        await site.until(await messages(site.place))
        assert second.poll() is None
        await everything_rolled_up(straight)
        await minutes_went_by(site.place, reader)
        rolled = await told_rollups(site.place, len((await rows(straight))["rollups"]))
        assert await said(site.url) == await said(straight)
        assert site.stop() == [0, 0]

        site.configure("second")  # a group that has read nothing: from the beginning, up to new marks
        await shipped(site.place, reader)
        again = site.start()
        await site.until(await messages(site.place))
        assert again.poll() is None
        assert await said(site.url) == await said(straight)
        assert site.stop() == [0]
        assert await told_rollups(site.place, len(rolled)) == rolled == (await rows(site.url))["rollups"]


async def minutes_went_by(place: KafkaPlace, reader: LogReader) -> None:
    """Log time goes on without a pick, as marks say: workers roll up all that was before."""
    ((offset, data),) = records_of(reader, reader.end_offset() - 1)
    at = decode_record(offset, data).time + 2 * MINUTE_US
    mark = encode_mark(SinkMark(offset, check_word(data), reader.log_id), at)
    send = await KeyedSend.open(place, ROWS_S_MAX)
    try:
        await send.messages([Keyed(MARK_KEY, mark, partition) for partition in range(PARTITIONS)])
    finally:
        await send.close()


async def told_rollups(place: KafkaPlace, count: int) -> list[dict[str, Any]]:
    """What the compacted topic holds of each minute and model, in order; waits until it is so many."""
    newest: dict[bytes, dict[str, Any]] = {}
    async with AIOKafkaConsumer(
        f"{place.topic}.rollups", bootstrap_servers=place.servers, group_id=None, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(ROWS_S_MAX):
            while (found := await consumer.getmany(timeout_ms=1_000)) or len(newest) < count:
                for record in (one for some in found.values() for one in some):
                    row = orjson.loads(record.value)
                    assert (row.pop("version"), row.pop("table")) == (VERSION, "rollups")
                    if row["to_offset"] >= newest.get(record.key, row)["to_offset"]:
                        newest[record.key] = row
    assert count > 0
    return sorted(newest.values(), key=lambda row: (row["minute"], row["model"]))


async def test_a_database_that_is_new_is_filled_from_the_topic_by_any_group(
    site: Site, server: PostgresServer, tmp_path: Path
) -> None:
    """A group far ahead cannot hide what a database has not: it asks the topic itself."""
    log = eventful().log
    await shipped(site.place, log)
    site.start()
    await site.until(await messages(site.place))
    site.stop()
    site.url = server.url()
    site.configure()
    await shipped_again(site.place, log)
    site.start()
    await site.until(await messages(site.place))
    straight = await directly(log, tmp_path)
    for url in (site.url, straight):
        await everything_rolled_up(url)
    assert await said(site.url) == await said(straight)
    assert site.stop() == [0]


async def shipped_again(place: KafkaPlace, world: LogReader) -> None:
    """Everything once more, as a follower that has forgotten its mark would."""
    store = AuditProducer(place, world.log_id)
    sink = AuditSink(world, None, sink_settings(sqlite_url(Path())), store=Forgetful(store), patient=False)
    await sink.follow(world.end_offset())
    await sink.close()


class Forgetful:
    """A row store that knows no mark."""

    def __init__(self, store: AuditProducer) -> None:
        self._store = store
        self.name = store.name

    async def prepare(self) -> None:
        await self._store.prepare()

    async def mark(self) -> None:
        return None

    async def write(self, found: AuditRows) -> int:
        return await self._store.write(found)

    async def keep_up(self, found: AuditRows) -> None:
        await self._store.keep_up(found)

    async def close(self) -> None:
        await self._store.close()


async def test_roll_ups_are_told_in_the_compacted_topic_by_a_worker_that_speaks_tls(
    site: Site, kafka: KafkaBroker
) -> None:
    authority, client = kafka.folder / "tls" / "ca.pem", kafka.client
    files = {"ca_cert": authority, "client_cert": client.certificate, "client_key": client.key}
    security = KafkaSecurity("SSL", **{name: str(file) for name, file in files.items()})
    plain = site.place
    site.place = plain._replace(servers=(kafka.address("SSL"),), security=security)
    site.web_port = free_port()
    site.configure()
    story = Story(50, 80)
    story.rows.at += 3_600_000_000
    producer = AuditProducer(site.place, LOG)
    await producer.prepare()
    await producer.write(story.rows)
    await producer.close()
    site.start()
    wanted = {(pick.asked_at // 60_000_000, pick.model) for pick in story.rows.picks}
    heard: dict[bytes, dict[str, int]] = {}
    await site.until(await messages(site.place))
    topic = f"{site.place.topic}.rollups"
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=plain.servers, group_id=None, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(ROWS_S_MAX):
            while len(heard) < len(wanted):
                record = await consumer.getone()
                heard[record.key] = orjson.loads(record.value)
    assert sum(row["picks"] for row in heard.values()) == len(story.rows.picks)
    assert listening(site.web_port) == ["127.0.0.1"]
    url = f"http://127.0.0.1:{site.web_port}/progress/"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        progress = await answer.json()
    assert progress["partitions"] == list(range(PARTITIONS))
    assert progress["messages_written"] == await messages(plain._replace(topic=site.place.topic))
    assert (progress["messages_refused"], progress["rows"]) == (0, story.rows.count)
    figures = await site.figures()
    assert figures["picklog_stream_partitions"] == len(progress["partitions"])
    for name in ("messages_written", "messages_refused", "messages_fetched", "rows"):
        assert figures[f"picklog_stream_{name}_total"] == progress[name], name
    assert site.lags(figures) == [0] * PARTITIONS
    assert site.stop() == [0]


async def test_metrics_say_what_waits_in_the_topic_while_the_database_is_away(
    site: Site, server: PostgresServer
) -> None:
    """Also more than the library reads ahead: the ends of the partitions are asked of the brokers."""
    site.web_port = free_port()
    site.configure()
    producer = AuditProducer(site.place, LOG)
    await producer.prepare()
    await producer.write(Story(51, 60).rows)
    site.start()
    await site.until(await messages(site.place))
    figures = await site.figures_when(lambda found: sum(site.lags(found)) == 0)
    assert site.lags(figures) == [0] * PARTITIONS
    assert site.away(figures) == {"database": 0, "brokers": 0}
    written = figures["picklog_stream_messages_written_total"]
    server.kill()
    await producer.write(Story(52, 60).rows)
    figures = await site.figures_when(lambda found: site.away(found)["database"] == 1)
    before = await messages(site.place)
    await marks_sent(site.place, BUFFER_MESSAGES // PARTITIONS + 200)
    waiting = await messages(site.place) - int(written)
    assert waiting > BUFFER_MESSAGES > before
    figures = await site.figures_when(lambda found: sum(site.lags(found)) == waiting)
    assert figures["picklog_stream_messages_written_total"] == written
    assert site.away(figures) == {"database": 1, "brokers": 0}
    age_s = figures["picklog_stream_batch_age_seconds"]
    server.start()
    figures = await site.figures_when(lambda found: sum(site.lags(found)) == 0)
    assert figures["picklog_stream_messages_written_total"] == written + waiting
    assert figures["picklog_stream_batch_age_seconds"] < age_s
    assert site.away(figures) == {"database": 0, "brokers": 0}
    await producer.close()
    assert site.stop() == [0]


async def test_brokers_that_do_not_answer_are_told_and_hold_no_scrape_up(
    site: Site, kafka: KafkaBroker
) -> None:
    site.web_port = free_port()
    site.configure()
    producer = AuditProducer(site.place, LOG)
    await producer.prepare()
    await producer.write(Story(53, 60).rows)
    await producer.close()
    site.start()
    await site.until(await messages(site.place))
    await site.figures_when(lambda found: site.lags(found) == [0] * PARTITIONS)
    kafka.freeze()
    try:
        figures = await site.figures_when(lambda found: site.away(found)["brokers"] == 1)
        began = time.monotonic()
        assert site.lags(await site.figures()) == site.lags(figures) == [0] * PARTITIONS
        assert time.monotonic() - began < 2 * WAIT_S
    finally:
        kafka.thaw()
    await site.figures_when(lambda found: site.away(found) == {"database": 0, "brokers": 0})
    assert site.stop() == [0]


async def marks_sent(place: KafkaPlace, times: int) -> None:
    """So many marks to every partition, as of a follower that goes on."""
    marks = [
        Keyed(MARK_KEY, encode_mark(SinkMark(number, 1, LOG), number), partition)
        for number in range(times)
        for partition in range(PARTITIONS)
    ]
    send = await KeyedSend.open(place, ROWS_S_MAX)
    try:
        await send.messages(marks)
    finally:
        await send.close()


def listening(port: int) -> list[str]:
    """Addresses of this machine on which somebody listens at a port, of IPv4 and IPv6."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, number = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(number, 16) == port:
            found.append(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        address, number = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(number, 16) == port:
            found.append(f"IPv6 {address}")
    return found


async def test_the_follower_goes_on_from_the_newest_mark_of_the_topic(topics: Topics) -> None:
    place = topics.place()
    log = eventful().log
    await shipped(place, log, 20)
    producer = AuditProducer(place, log.log_id)
    mark = await producer.mark()
    assert mark is not None and mark.offset == 19
    await shipped(place, log)
    spans = await KeyedSpans.open(place, PARTITIONS)
    offsets: list[int] = []
    for partition, (begin, end) in enumerate(await spans.ends()):
        async for stretch in spans.read(partition, begin, end):
            decoded = [decode(found.value) for found in stretch]
            offsets += [message.offset for message in decoded if message.check is None and message.rows]
    await spans.close()
    assert len([offset for offset in offsets if offset < 20]) == len({o for o in offsets if o < 20})
    newest = await producer.mark()
    assert newest is not None and newest.offset == log.end_offset() - 1


async def test_a_topic_with_other_partitions_is_refused_before_anything_is_sent(topics: Topics) -> None:
    place = topics.place()
    await asyncio.to_thread(topics.create, place.topic, 3, max_message_bytes="9437184")
    with pytest.raises(TopicRefused, match="has 3 partitions and needs 8"):
        await prepare_keyed(place, AUDIT_TOPIC)


async def test_names_that_brokers_never_take_are_refused_and_not_waited_for(topics: Topics) -> None:
    other = topics.place()
    await asyncio.to_thread(topics.create, f"{other.topic}_x", 8)
    with pytest.raises(TopicRefused, match=r"collides with existing topic"):
        await prepare_keyed(other._replace(topic=f"{other.topic}.x"), AUDIT_TOPIC)
    for name in ("two words", "."):
        with pytest.raises(TopicRefused, match="takes no topic of that name"):
            await prepare_keyed(other._replace(topic=name), AUDIT_TOPIC)
        with pytest.raises(TopicRefused, match="takes no topic of that name"):
            await asyncio.to_thread(topics.log, other._replace(topic=name))


async def test_a_follower_and_a_worker_say_that_their_topic_is_refused(
    topics: Topics, tmp_path: Path
) -> None:
    place = topics.place()
    await asyncio.to_thread(topics.create, f"{place.topic}_x", 8)
    place = place._replace(topic=f"{place.topic}.x")
    site = Site(place, sqlite_url(tmp_path), tmp_path)
    site.configure()
    worker = site.start()
    assert await asyncio.to_thread(worker.wait, 60) == 2, "bad usage: it ends"
    assert "collides with existing topic" in site.told().splitlines()[-1]
    log, figures = eventful().log, AuditFigures()
    store = AuditProducer(place, log.log_id)
    sink = AuditSink(log, None, sink_settings(site.url), store=store, figures=figures, pause_s_min=0.01)
    following = asyncio.create_task(sink.run())
    try:
        async with asyncio.timeout(30):
            while figures.failures[Failure.REFUSED] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await sink.close()
    assert figures.failures[Failure.AWAY] == 0 and figures.offset == -1


@pytest.mark.parametrize("seed", [60, 61])
async def test_messages_in_any_order_write_the_same_rows_in_postgresql(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:

    story = Story(seed, 150)
    straight, url = sqlite_url(tmp_path), server.url()
    engine = writing_engine(straight)
    await upgrade(engine)
    await written_directly(engine, story.rows)
    await engine.dispose()
    engine = writing_engine(url)
    await upgrade(engine)
    rollups = RollupWriter(engine, 0)
    writers = [StreamWriter(engine, "audit", rollups) for _ in range(3)]
    found = sorted(told(story.rows), key=lambda message: (message.offset * 7919) % 101)
    stretches = [
        Stretch(n % 8, n + 1, found[first : first + 5]) for n, first in enumerate(range(0, len(found), 5))
    ]
    for first in range(0, len(stretches), 3):  # three workers at the same time
        some = stretches[first : first + 3]
        await asyncio.gather(*(writer.write(one) for writer, one in zip(writers, some, strict=False)))
    await rolled_up(rollups)
    await engine.dispose()
    assert await said(url) == await said(straight)
