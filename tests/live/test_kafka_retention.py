"""A topic begins at one kept checkpoint after another; who was overtaken begins anew there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.fold_start import start_fold
from app.follower import Follower
from app.topic_retention import RetentionLimits, TopicRetention
from ingest.log.kafka_admin import delete_records, stored_bytes
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_tail import KafkaTail
from projections.checkpoint import checkpoint_records
from projections.events.control import CheckpointDue
from projections.events.ports import OffsetGone
from projections.fold import Fold
from replay.engine import records_of
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.replay.recorded_log import RecordedLog

pytestmark = pytest.mark.live("kafka")

DUE = 6
NO_AGE = 0
AGES = 10**15


class Site:
    """A log on a topic with DUE due checkpoints, all written to a folder."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.world = RecordedLog(3)
        self.log: KafkaLog = topics.log()
        self.topics = topics
        self.store = CheckpointFolder(folder / "checkpoints")
        self.due: list[int] = []
        fold, committed = Fold(), 0
        for number in range(DUE):
            for sample in range(50):
                self.world.sample(1 + sample % 3, sample)
            self.world.pass_time(1_000_000)
            self.due.append(self.world.say(CheckpointDue("time")))
            for offset, data in records_of(self.world.log, committed):
                fold.apply(offset, data, [])
                self.log.commit([data])
                committed = offset + 1
            mark, log_id = fold.mark, self.log.log_id
            self.store.write(log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, log_id))
            assert number == len(self.due) - 1
        self.now = fold.state.intake.stamp

    def retention(self, age_us: int, bytes_max: int | None = None, keep: int = 3) -> TopicRetention:
        limits = RetentionLimits(age_us, bytes_max, keep)
        return TopicRetention(self.log.place, self.store, limits, lambda: self.now)

    def first(self) -> int:
        return self.topics.reader(self.log).first_offset()


@pytest.fixture
def site(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    with Topics(kafka) as topics:
        yield Site(topics, tmp_path)


@pytest.mark.req("EVS-13")
def test_it_begins_at_the_oldest_of_the_newest_and_the_fold_is_the_same(site: Site) -> None:
    assert site.retention(AGES).step(site.now) is None and site.first() == 0
    assert site.retention(NO_AGE).step(site.now) == site.due[-3] == site.first()
    assert [info.offset for info in site.store.list()] == site.due[-3:]
    assert site.retention(NO_AGE).step(site.now) is None, "it is there already"
    reader = site.topics.reader(site.log)
    whole = Fold()
    for offset, data in records_of(site.world.log, 0):
        whole.apply(offset, data, [])
    for info in site.store.list():
        start = start_fold(reader, site.store, before=info.offset)
        assert start.checkpoint == info and not start.incomplete
        for offset, data in records_of(reader, start.next_offset):
            start.fold.apply(offset, data, [])
        assert start.fold.digests() == whole.digests()


def test_brokers_tell_what_the_topic_takes_and_it_counts(site: Site) -> None:
    reader = site.topics.reader(site.log)
    size = reader.loop.run(stored_bytes(site.log.place))
    assert size is not None and size > 1_000
    assert site.retention(AGES, size).step(site.now) is None
    moved = site.retention(AGES, size * 3 // 4).step(site.now)
    assert moved is not None and site.due[0] < moved <= site.due[-3]


def test_a_checkpoint_that_does_not_check_holds_everything(site: Site) -> None:
    path = site.store.path_of(site.store.list()[-1].name)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-9])
    assert site.retention(NO_AGE).step(site.now) is None
    assert site.first() == 0


async def test_a_reader_that_was_overtaken_says_so_and_a_fold_begins_at_the_checkpoint_behind_it(
    site: Site,
) -> None:
    tail = await asyncio.to_thread(KafkaTail.open, site.log.place)
    try:
        at = site.topics.reader(site.log).topic_offset(site.due[-1])
        assert at is not None
        await asyncio.to_thread(tail.source.loop.run, delete_records(site.log.place, at))
        with pytest.raises(OffsetGone) as gone:
            tail.read(5, 1 << 20)
        assert tail.first_offset() == gone.value.first_offset == site.due[-1]
        follower = Follower(tail, site.store)
        following = asyncio.create_task(follower.run())
        async with asyncio.timeout(20):
            while follower.tail is None or follower.tail.fold.mark.offset < site.due[-1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    finally:
        tail.close()
