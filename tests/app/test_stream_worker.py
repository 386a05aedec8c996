"""A worker trusts no delivery: repeated, torn, missing or overtaking messages end in the same rows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from app.audit_database import AuditAway, AuditRefused, upgrade, writing_engine
from app.rollup_writer import RollupWriter
from app.stream_worker import Peer, StreamWorker
from app.stream_writer import StreamWriter, Stretch
from ingest.log.kafka_keyed import Found
from ingest.log.kafka_settings import KafkaUnreachable
from tests.app.audit_site import rows, sqlite_url
from tests.app.stream_site import PARTITIONS, Story, Topic, said, written_directly


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    yield engine
    await engine.dispose()


def worker_on(engine: AsyncEngine, topic: Topic, writer: StreamWriter | None = None) -> StreamWorker:
    return StreamWorker(writer or StreamWriter(engine, "audit"), topic.open, pause_s_min=0.001)


async def expect_rows_of(story: Story, tmp_path: Path, *but: str) -> None:
    straight = sqlite_url(tmp_path, "straight.sqlite")
    engine = writing_engine(straight)
    await upgrade(engine)
    await written_directly(engine, story.rows)
    await engine.dispose()
    found = await said(sqlite_url(tmp_path), ("rollups", *but))
    assert found == await said(straight, ("rollups", *but))


@pytest.mark.field("B-136")
async def test_whatever_is_delivered_all_of_the_topic_is_written_once(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """B-136: behind a rebalance the first message has a much higher offset; the ones before are fetched."""
    story, topic, chance = Story(8, 120), Topic(), random.Random(8)
    topic.send(story.rows)
    delivered = [message for message in topic.all() if chance.random() < 0.5]
    delivered += [
        Found(number, len(values) - 1, values[-1]) for number, values in enumerate(topic.partitions)
    ]
    worker = worker_on(engine, topic)
    for first in range(0, len(delivered), 7):
        await worker.take(delivered[first : first + 7])
        await worker.take(delivered[max(0, first - 9) : first])
    assert worker.written == len(topic.all())
    assert worker.fetched > 0
    await expect_rows_of(story, tmp_path)


async def test_a_replay_from_the_beginning_writes_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    story, topic = Story(9), Topic()
    topic.send(story.rows)
    await worker_on(engine, topic).take(topic.all())
    before = await rows(sqlite_url(tmp_path))
    again = worker_on(engine, topic)
    await again.take(topic.all())
    assert (again.written, again.rows, again.fetched) == (0, 0, 0)
    assert await rows(sqlite_url(tmp_path)) == before


async def test_a_new_database_is_filled_though_the_group_is_far_ahead(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    story, topic = Story(10), Topic()
    topic.send(story.rows)
    await worker_on(engine, topic).take([Found(n, len(v) - 1, v[-1]) for n, v in enumerate(topic.partitions)])
    await expect_rows_of(story, tmp_path)


async def test_two_workers_that_both_believe_in_their_partitions_write_everything_once(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    story, topic, chance = Story(11, 120), Topic(), random.Random(11)
    topic.send(story.rows)
    workers = [worker_on(engine, topic), worker_on(engine, topic)]
    everything = topic.all()
    for _ in range(12):
        first = chance.randrange(len(everything))
        await chance.choice(workers).take(everything[first : first + 20])
    await workers[0].take(everything)
    await expect_rows_of(story, tmp_path)


async def test_messages_that_retention_took_are_a_gap_and_the_rest_is_written(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    topic = Topic()
    topic.send(Story(12).rows)
    worker = worker_on(engine, topic)
    await worker.take([Found(0, 0, topic.partitions[0][0])])
    topic.begins[0] = 3
    with capture_logs() as lines:
        await worker.take([Found(0, len(topic.partitions[0]) - 1, topic.partitions[0][-1])])
    assert [line["event"] for line in lines] == ["messages were gone before they were written"]
    (gap,) = [row for row in (await rows(sqlite_url(tmp_path)))["sink_gaps"] if row["sink"] == "audit-0"]
    assert (gap["from_offset"], gap["to_offset"]) == (1, 2)


async def test_an_unreadable_message_is_counted_and_passed_over(engine: AsyncEngine) -> None:
    topic = Topic()
    topic.send(Story(13).rows)
    topic.partitions[2].insert(0, b"somebody else's")
    worker = worker_on(engine, topic)
    with capture_logs() as lines:
        await worker.take(topic.all())
    assert worker.refused == 1
    assert [(line["event"], line["place"]) for line in lines] == [("a message is passed over", "2:0")]


async def test_a_message_of_a_later_release_ends_the_worker(engine: AsyncEngine) -> None:
    newer = orjson.dumps({"version": 2})
    topic = Topic()
    with pytest.raises(AuditRefused, match="update it"):
        await worker_on(engine, topic).take([Found(0, 0, newer)])


class Away(StreamWriter):
    """A database that is away for the first attempts."""

    failures = 3

    async def write(self, stretch: Stretch) -> int:
        if self.failures:
            self.failures -= 1
            raise AuditAway("database is locked")
        return await super().write(stretch)


async def test_a_database_that_is_away_is_waited_for(engine: AsyncEngine, tmp_path: Path) -> None:
    story, topic = Story(14), Topic()
    topic.send(story.rows)
    with capture_logs() as lines:
        await worker_on(engine, topic, Away(engine, "audit")).take(topic.all())
    assert [line["event"] for line in lines] == ["rows wait in the topic", "rows are written again"]
    await expect_rows_of(story, tmp_path)


class Unreachable(Topic):
    """A topic whose brokers do not answer the first questions."""

    failures = 2

    async def open(self) -> Topic:
        if self.failures:
            self.failures -= 1
            raise KafkaUnreachable("Kafka cannot be reached")
        return self


@pytest.mark.parametrize("peer", Peer)
async def test_whoever_is_away_is_named_until_a_batch_is_written(engine: AsyncEngine, peer: Peer) -> None:
    topic = Unreachable() if peer is Peer.BROKERS else Topic()
    topic.send(Story(16).rows)
    writer = Away(engine, "audit") if peer is Peer.DATABASE else StreamWriter(engine, "audit")
    worker, named = worker_on(engine, topic, writer), []
    with capture_logs() as lines:
        taking = asyncio.create_task(worker.take(topic.all()[1:]))
        while not taking.done():
            named.append(frozenset(worker.away))
            await asyncio.sleep(0)
    assert set(named) == {frozenset(), frozenset({peer})}
    assert worker.away == set()
    assert [line["event"] for line in lines] == ["rows wait in the topic", "rows are written again"]


async def test_a_worker_knows_how_far_each_partition_is_written(engine: AsyncEngine) -> None:
    topic, clock = Topic(), [5.0]
    topic.send(Story(17).rows)
    worker = StreamWorker(StreamWriter(engine, "audit"), topic.open, now=lambda: clock[0])
    assert (worker.positions, worker.written_at) == ({}, 5.0)
    clock[0] = 6.0
    await worker.take([Found(2, 0, topic.partitions[2][0])])
    assert worker.positions == {**dict.fromkeys(range(PARTITIONS), 0), 2: 1}
    assert worker.written_at == 6.0
    await worker_on(engine, topic).take(topic.all())
    await worker.look()
    assert worker.positions == {number: len(values) for number, values in enumerate(topic.partitions)}
    assert worker.written_at == 6.0, "others wrote that"


async def test_minutes_are_rolled_up_by_the_time_of_the_marks(engine: AsyncEngine, tmp_path: Path) -> None:
    story, topic = Story(15), Topic()
    story.rows.at += 3_600_000_000
    topic.send(story.rows)
    rollups = RollupWriter(engine, 0)
    worker = StreamWorker(StreamWriter(engine, "audit", rollups), topic.open, rollups)
    await worker.roll_up()
    await worker.take(topic.all())
    assert (await rows(sqlite_url(tmp_path)))["rollups"] == []
    await worker.roll_up()
    found = await rows(sqlite_url(tmp_path))
    assert sum(row["picks"] for row in found["rollups"]) == len(story.rows.picks)
    assert found["rollup_windows"] == []
    assert len(topic.partitions) == PARTITIONS
