"""The log on a real Apache Kafka: the suite of every log, and what only a broker can do to one."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from structlog.testing import capture_logs

from ingest.log.appender import Receipt, Status
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaSecurity, KafkaUnreachable, TopicRefused
from ingest.log.log_writer import LogWriter
from projections.events.codec import decode_record, encode_record
from projections.events.control import CheckpointDue, Pinged, WriterContinued
from projections.events.ports import (
    CommitFailed,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReader,
    LogStore,
    OffsetGone,
)
from projections.fold import Fold
from tests.live.kafka_broker import PASSWORD, SCRAM, USER, KafkaBroker
from tests.live.kafka_topics import Topics
from tests.log_suite import LogSuite, number_of, read_all, record

pytestmark = pytest.mark.live("kafka")


class TestKafkaLog(LogSuite):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka: KafkaBroker) -> Iterator[None]:
        with Topics(kafka) as self.topics:
            yield

    def make(self) -> LogStore:
        return self.topics.log()

    def reader_of(self, log: LogStore) -> LogReader:
        assert isinstance(log, KafkaLog)
        return self.topics.reader(log)

    def forget(self, log: LogStore, offset: int) -> None:
        assert isinstance(log, KafkaLog)
        self.topics.forget(log, offset)


@pytest.fixture
def topics(kafka: KafkaBroker) -> Iterator[Topics]:
    with Topics(kafka) as opened:
        yield opened


def numbers(reader: LogReader, start: int = 0) -> list[tuple[int, int]]:
    """(offset, number) of every record."""
    return [(offset, number_of(data)) for offset, data in read_all(reader, start)]


def test_acknowledged_records_outlive_a_killed_broker_and_nothing_is_there_twice(
    kafka: KafkaBroker, topics: Topics
) -> None:
    log = topics.log()
    told: dict[int, int] = {}
    stopped = threading.Event()

    def append() -> None:
        while not stopped.is_set():
            number = len(told)
            told[number] = log.commit([record(number)])

    with ThreadPoolExecutor(1) as thread:
        appending = thread.submit(append)
        for _ in range(2):
            until_longer(told)
            kafka.kill()
            kafka.start()
        until_longer(told)
        stopped.set()
        appending.result()
    assert numbers(topics.reader(log)) == [(offset, number) for number, offset in told.items()]


async def test_a_writer_goes_on_after_an_append_that_stayed_unclear(
    kafka: KafkaBroker, topics: Topics
) -> None:
    log = await asyncio.to_thread(topics.log, None, patience_s=2.0)
    writer = await LogWriter.open(log)
    receipts: list[Receipt] = []
    writer.append(CheckpointDue("before"), on_done=receipts.append)
    await writer.flush()
    first_writer = writer.writer
    kafka.freeze()
    try:
        for number in range(5):
            writer.append(CheckpointDue(str(number)), on_done=receipts.append)
        await asyncio.sleep(4)
        assert len(receipts) == 1
    finally:
        kafka.thaw()
    async with asyncio.timeout(60):
        await writer.flush()
    writer.append(CheckpointDue("after"), on_done=receipts.append)
    await writer.flush()
    assert not writer.failure.done()
    await writer.close()
    assert writer.writer != first_writer
    found = {offset: decode_record(offset, data) for offset, data in read_all(topics.reader(log), 0)}
    assert [receipt.status for receipt in receipts] == [Status.ACKNOWLEDGED] * 7
    wanted = ["before", *map(str, range(5)), "after"]
    offsets = [receipt.offset for receipt in receipts if receipt.offset is not None]
    assert [found[offset].fact for offset in offsets] == [CheckpointDue(text) for text in wanted]
    fold = Fold()
    taken = [
        fact for offset, data in read_all(topics.reader(log), 0) if (fact := fold.apply(offset, data, []))
    ]
    # What was sent again may have arrived before the new claim: told twice, in the same order.
    assert [*dict.fromkeys(fact.cause for fact in taken if isinstance(fact, CheckpointDue))] == wanted
    assert first_writer in [fact.previous_writer for fact in taken if isinstance(fact, WriterContinued)]


def test_a_topic_that_was_recreated_is_not_written_and_not_read_on(topics: Topics) -> None:
    place = topics.place()
    log = topics.log(place, patience_s=3.0)
    log.commit([record(n) for n in range(10)])
    reader = topics.reader(place)
    assert len(numbers(reader)) == 10
    topics.delete(place.topic)
    topics.create(place.topic, max_message_bytes="9000000")
    with pytest.raises(LogFailed, match="recreated or lost records"):
        for_ever(lambda: log.commit([record(10)]))
    with pytest.raises(LogFailed):
        log.commit([record(11)])
    with pytest.raises(LogCorrupt, match=r"recreated|none of a log"):
        for_ever(lambda: reader.read(10, 1 << 20))


def test_a_topic_of_two_logs_is_refused(topics: Topics) -> None:
    place = topics.place()
    log = topics.log(place)
    log.commit([record(0)])
    reader = topics.reader(place)
    topics.produce(place.topic, b"somebody else's")
    for other in (reader, log):
        with pytest.raises(LogCorrupt, match="is none of a log"):
            numbers(other)


def test_topics_that_cannot_hold_a_log_are_refused_with_what_to_set(topics: Topics) -> None:
    wide = "9000000"
    topics.create("parts", 3, max_message_bytes=wide)
    topics.create("narrow", max_message_bytes="1000000")
    topics.create("compacted", cleanup_policy="compact", max_message_bytes=wide)
    topics.create("unclean", unclean_leader_election_enable="true", max_message_bytes=wide)
    topics.create("week", max_message_bytes=wide, retention_ms="604800000")  # as Kafka has it by default
    topics.create("sized", max_message_bytes=wide, retention_bytes="1000000000")
    for topic, words in (
        ("parts", "topic parts has 3 partitions, a log is one"),
        ("narrow", "topic narrow takes max.message.bytes=1000000, a record may have 4194304"),
        ("compacted", "topic compacted has cleanup.policy=compact, which drops records"),
        ("unclean", "topic unclean has unclean.leader.election.enable=true"),
        ("week", r"topic week has retention.ms=604800000, so brokers drop records .* at least 691200000"),
        ("sized", r"topic sized has retention.bytes=1000000000, .*log.retention.bytes \(no size\)"),
    ):
        with pytest.raises(TopicRefused, match=words):
            KafkaLog.open(topics.place(topic))
    with pytest.raises(TopicRefused, match="cannot be made with 3 replicas"):
        KafkaLog.open(topics.place(replication_factor=3))
    with pytest.raises(TopicRefused, match="there is no topic"):
        KafkaReader.open(topics.place())
    with pytest.raises(TopicRefused, match="topic parts has 3 partitions"):
        KafkaReader.open(topics.place("parts"))
    with pytest.raises(TopicRefused, match="holds no log yet"):
        KafkaReader.open(topics.place("unclean"))
    log = topics.log(topics.place("unclean", allow_unsafe=True))
    assert log.commit([record(0)]) == 0


def test_asking_for_a_topic_makes_none_and_one_that_was_removed_stays_away(topics: Topics) -> None:
    """The broker makes what is asked for, as Kafka comes, with a week's retention and small messages."""
    place = topics.place("asked-for")
    for _ in range(2):
        with pytest.raises(TopicRefused, match="there is no topic asked-for"):
            KafkaReader.open(place)
    log = topics.log(place, patience_s=5.0)
    log.commit([record(0)])
    topics.delete("asked-for")
    with pytest.raises(LogError):
        log.commit([record(1)])
    with pytest.raises(TopicRefused, match="there is no topic asked-for"):
        KafkaReader.open(place)
    assert "asked-for" not in topics.admin("list_topics")


def test_a_topic_that_might_be_better_is_taken_with_what_to_set(topics: Topics) -> None:
    topics.create("month", max_message_bytes="9000000", retention_ms="2592000000", min_insync_replicas="2")
    with capture_logs() as said:
        log = topics.log(topics.place("month", replication_factor=3))
    told = "\n".join(line["detail"] for line in said)
    for words in (
        "topic month has retention.ms=2592000000",
        "topic month has 1 copies, log.kafka.replication_factor says 3",
        "topic month has 1 copies and min.insync.replicas=2",
    ):
        assert words in told
    assert topics.reader(log).log_id == log.log_id


def test_a_topic_that_became_too_narrow_refuses_a_record_and_takes_the_next(topics: Topics) -> None:
    log = topics.log()
    log.commit([record(0)])
    resource = ConfigResource(ConfigResourceType.TOPIC, log.place.topic, {"max.message.bytes": "2000"})
    topics.admin("alter_configs", [resource])
    with pytest.raises(CommitFailed, match="the broker refused the batch"):
        log.commit([encode_record(1, bytes(16), 0, 1, Pinged(os.urandom(64_000), 1, -1))])
    with pytest.raises(CommitFailed, match="above the ceiling"):
        log.commit([bytes((4 << 20) + 1)])
    assert log.commit([record(1)]) == 1
    assert numbers(topics.reader(log)) == [(0, 0), (1, 1)]


def test_retention_that_overtakes_a_reader_is_told_with_the_oldest_kept(topics: Topics) -> None:
    log = topics.log()
    for start in range(0, 3_000, 100):
        log.commit([incompressible(n) for n in range(start, start + 100)])
    reader = topics.reader(log)
    (batch, *_) = reader.read(0, 1_000)
    assert batch.first_offset == 0
    topics.forget(log, 2_500)
    with pytest.raises(OffsetGone) as gone:
        read_all(reader, 1, 200_000)
    assert gone.value.first_offset == 2_500
    assert numbers(reader, 2_500) == [(n, n) for n in range(2_500, 3_000)]
    assert topics.reader(log, follows=False).first_offset() == 2_500


async def test_a_waiting_reader_hears_of_a_record_at_once(topics: Topics) -> None:
    log = await asyncio.to_thread(topics.log)
    log.commit([record(0)])
    reader = await asyncio.to_thread(topics.reader, log)
    assert numbers(reader) == [(0, 0)]
    for number in range(1, 6):
        waiting = asyncio.create_task(reader.wait(number, 30.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        log.commit([record(number)])
        async with asyncio.timeout(2):
            await waiting
        assert numbers(reader, number) == [(number, number)]
    frozen = await asyncio.to_thread(topics.reader, log, False)
    log.commit([record(6)])
    assert frozen.end_offset() == 6 and numbers(frozen, 5) == [(5, 5)]


def test_an_aborted_transaction_is_never_read(topics: Topics) -> None:
    log = topics.log()
    log.commit([record(0)])

    async def abort() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=topics.broker.address(), transactional_id="a test", enable_idempotence=True
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(log.place.topic, b"never", partition=0)
            await producer.abort_transaction()

    asyncio.run(abort())
    offset = log.commit([record(1)])
    assert offset >= 2  # behind what was aborted
    reader = topics.reader(log)
    until(lambda: numbers(reader) == [(0, 0), (offset, 1)])
    assert numbers(topics.reader(log, follows=False)) == [(0, 0), (offset, 1)]


def test_a_reader_says_that_the_broker_is_away(kafka: KafkaBroker, topics: Topics) -> None:
    log = topics.log()
    log.commit([record(0)])
    nowhere = log.place._replace(servers=("127.0.0.1:1",))
    with pytest.raises(KafkaUnreachable, match="cannot be reached"):
        KafkaReader.open(nowhere)
    reader = topics.reader(log)
    kafka.kill()
    try:
        with pytest.raises(KafkaUnreachable):
            reader.read(0, 1 << 20)
    finally:
        kafka.start()
    until(lambda: is_readable(reader))


def is_readable(reader: LogReader) -> bool:
    try:
        return numbers(reader) == [(0, 0)]
    except KafkaUnreachable:
        return False


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("SSL", None), ("SASL_PLAINTEXT", "PLAIN"), *(("SASL_SSL", mechanism) for mechanism in SCRAM)],
)
def test_tls_and_sasl_are_spoken(
    kafka: KafkaBroker, topics: Topics, protocol: str, mechanism: str | None
) -> None:
    security = KafkaSecurity(protocol)
    if protocol != "SASL_PLAINTEXT":
        security = security._replace(ca_cert=str(kafka.folder / "tls" / "ca.pem"))
    if protocol == "SSL":
        client = kafka.client
        security = security._replace(client_cert=str(client.certificate), client_key=str(client.key))
    else:
        security = security._replace(mechanism=mechanism, username=USER, password=PASSWORD)
    place = topics.place(security=security)._replace(servers=(kafka.address(protocol),))
    log = topics.log(place)
    assert log.commit([record(0)]) == 0
    assert numbers(topics.reader(place)) == [(0, 0)]
    wrong = security._replace(password="wrong")
    if protocol == "SSL":
        wrong = security._replace(ca_cert=None, client_cert=None, client_key=None)
    with pytest.raises(KafkaUnreachable) as refused:
        KafkaReader.open(place._replace(security=wrong))
    assert "wrong" not in str(refused.value)


def incompressible(number: int) -> bytes:
    """A record that no compression makes small."""
    return encode_record(number, bytes(16), 0, 1, Pinged(os.urandom(4_000), number, -1))


def until_longer(told: dict[int, int]) -> None:
    """Wait until fifty more are there."""
    wanted = len(told) + 50
    until(lambda: len(told) > wanted)


def for_ever(act: Callable[[], object], patience_s: float = 60.0) -> None:
    """Do it again until it raises."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        act()


def until(is_so: Callable[[], bool], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
