"""A stream worker's figures: what it wrote, how far it is behind, and whom it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.ext.asyncio import AsyncEngine

from app.audit_database import AuditAway, BrokersAway, upgrade, writing_engine
from app.stream_figures import ASK_EVERY_S, WAIT_S, StreamFigures
from app.stream_worker import Peer, StreamWorker
from app.stream_writer import StreamWriter
from ingest.log.kafka_keyed import Found
from tests.app.audit_site import sqlite_url
from tests.app.stream_site import PARTITIONS, Story, Topic

Series = dict[tuple[str, str], float]


class Brokers:
    """What the group's consumer knows of a topic. asked: partitions of each question."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.owned = list(range(PARTITIONS))
        self.asked: list[Sequence[int]] = []
        self.trouble: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def ends(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.asked.append(partitions)
        await self.answers.wait()
        if self.trouble is not None:
            raise self.trouble
        ends = await self.topic.ends()
        return {partition: ends[partition][1] for partition in partitions}


class Known(StreamWriter):
    """A database whose positions cannot be asked for while it is away."""

    is_away = False

    async def positions(self) -> dict[int, int]:
        if self.is_away:
            raise AuditAway("connection refused")
        return await super().positions()


class Site:
    """A topic with a story, a worker that was given nothing of it yet, and its figures."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.now = 1_000.0
        self.topic = Topic()
        self.topic.send(Story(70).rows)
        self.brokers = Brokers(self.topic)
        self.writer = Known(engine, "audit")
        self.worker = self.another_worker()
        self.figures = StreamFigures(
            self.worker, lambda: self.brokers.owned, self.brokers.ends, lambda: self.now
        )

    def another_worker(self) -> StreamWorker:
        return StreamWorker(self.writer, self.topic.open, pause_s_min=0.001, now=lambda: self.now)

    async def series(self) -> Series:
        """(name, value of the only label or nothing) -> value, of the families of stream workers."""
        found = {}
        for family in text_string_to_metric_families((await self.figures.text()).decode()):
            for sample in family.samples:
                if sample.name.startswith("picklog_stream"):
                    found[sample.name, "".join(sample.labels.values())] = sample.value
        return found

    async def lags(self) -> dict[int, float]:
        series = await self.series()
        return {
            int(label): value
            for (name, label), value in series.items()
            if name == "picklog_stream_lag_messages"
        }

    def all(self) -> dict[int, float]:
        return {partition: len(values) for partition, values in enumerate(self.topic.partitions)}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    found = Site(engine)
    yield found
    await found.figures.close()
    await engine.dispose()


async def test_counters_stand_at_0_and_all_of_the_topic_is_behind_before_the_first_batch(site: Site) -> None:
    series = await site.series()
    for name in ("messages_written", "messages_fetched", "messages_refused", "rows"):
        assert series[f"picklog_stream_{name}_total", ""] == 0
    assert series["picklog_stream_partitions", ""] == PARTITIONS
    assert {series["picklog_stream_away", peer.value] for peer in Peer} == {0}
    assert await site.lags() == site.all()


async def test_what_was_written_is_told_and_nothing_is_behind(site: Site) -> None:
    site.topic.partitions[2].append(b"somebody else's")
    delivered = site.topic.all()
    await site.worker.take(delivered[1:])
    series = await site.series()
    assert series["picklog_stream_messages_written_total", ""] == len(delivered)
    assert series["picklog_stream_messages_fetched_total", ""] == 1
    assert series["picklog_stream_messages_refused_total", ""] == 1
    assert series["picklog_stream_rows_total", ""] == Story(70).rows.count
    assert await site.lags() == dict.fromkeys(range(PARTITIONS), 0)


async def test_the_age_of_the_newest_batch_counts_from_the_begin_of_the_worker_at_first(site: Site) -> None:
    name = ("picklog_stream_batch_age_seconds", "")
    site.now += 7
    assert (await site.series())[name] == 7
    await site.worker.take(site.topic.all())
    assert (await site.series())[name] == 0
    site.now += 3
    await site.worker.take(site.topic.all())
    assert (await site.series())[name] == 3, "everything was there already: nothing was written"


async def test_only_partitions_that_the_worker_has_make_series(site: Site) -> None:
    site.brokers.owned = [1, 5]
    assert set(await site.lags()) == {1, 5}
    site.brokers.owned = []
    series = await site.series()
    assert series["picklog_stream_partitions", ""] == 0
    assert not [name for name, _ in series if name == "picklog_stream_lag_messages"]


async def test_brokers_are_asked_once_in_a_while_whatever_the_number_of_scrapes(site: Site) -> None:
    await asyncio.gather(*(site.figures.text() for _ in range(9)))
    await site.lags()
    assert len(site.brokers.asked) == 1
    site.topic.send(Story(71).rows)
    site.now += ASK_EVERY_S - 0.1
    before = await site.lags()
    assert len(site.brokers.asked) == 1
    site.now += 0.1
    assert await site.lags() == site.all() != before
    assert len(site.brokers.asked) == 2


async def test_a_partition_that_is_new_here_is_asked_for_at_once(site: Site) -> None:
    """Another worker has written it, and the group gives it to this one: it is not behind."""
    site.brokers.owned = [0]
    await site.worker.take([Found(0, offset, value) for offset, value in enumerate(site.topic.partitions[0])])
    assert await site.lags() == {0: 0}
    await site.another_worker().take(site.topic.all())
    site.brokers.owned = [0, 1]
    assert await site.lags() == {0: 0, 1: 0}


async def test_while_the_database_is_away_the_lag_grows_and_the_figure_says_so(site: Site) -> None:
    await site.worker.take(site.topic.all())
    assert set((await site.lags()).values()) == {0}
    site.writer.is_away = True
    site.topic.send(Story(72).rows)
    taking = asyncio.create_task(site.worker.take(site.topic.all()))
    while not site.worker.away:  # noqa: ASYNC110  # it tells nobody
        await asyncio.sleep(0)
    site.now += ASK_EVERY_S
    behind = await site.lags()
    assert behind and all(messages > 0 for messages in behind.values())
    series = await site.series()
    assert series["picklog_stream_away", "database"] == 1
    assert series["picklog_stream_away", "brokers"] == 0
    site.writer.is_away = False
    await taking
    assert set((await site.lags()).values()) == {0}
    assert (await site.series())["picklog_stream_away", "database"] == 0


async def test_a_database_that_is_away_before_the_first_batch_is_told_and_asked_again(site: Site) -> None:
    site.writer.is_away = True
    series = await site.series()
    assert series["picklog_stream_away", "database"] == 1
    assert await site.lags() == {}, "nobody knows how far the partitions are written"
    site.writer.is_away = False
    assert await site.lags() == site.all()
    assert (await site.series())["picklog_stream_away", "database"] == 0


async def test_brokers_that_refuse_leave_what_was_known_and_are_told(site: Site) -> None:
    before = await site.lags()
    site.brokers.trouble = BrokersAway("ConsumerNotStarted")
    site.now += ASK_EVERY_S
    series = await site.series()
    assert series["picklog_stream_away", "brokers"] == 1
    assert series["picklog_stream_away", "database"] == 0
    assert await site.lags() == before
    site.brokers.trouble = None
    site.now += ASK_EVERY_S
    assert (await site.series())["picklog_stream_away", "brokers"] == 0


@pytest.mark.looptime
async def test_brokers_that_do_not_answer_hold_no_scrape_up_and_are_asked_one_question(site: Site) -> None:
    await site.lags()
    site.brokers.answers.clear()
    site.now += ASK_EVERY_S
    loop = asyncio.get_running_loop()
    began = loop.time()
    series = await site.series()
    assert loop.time() - began == pytest.approx(WAIT_S, abs=0.5)
    assert series["picklog_stream_away", "brokers"] == 1
    site.now += 10 * ASK_EVERY_S
    await site.figures.text()
    assert len(site.brokers.asked) == 2, "the second question is still under way"
    site.brokers.answers.set()
    assert (await site.series())["picklog_stream_away", "brokers"] == 0


async def test_trouble_that_nobody_foresaw_fails_the_scrape(site: Site) -> None:
    site.brokers.trouble = KeyError("a bug")
    with pytest.raises(KeyError):
        await site.figures.text()
