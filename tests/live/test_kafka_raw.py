"""Raw frames on a real topic: those of real publishers are there, and say what they say on segments.

Site and publishers are those of `test_spool`: a file store, two workers, libzmq.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.kafka_places import kafka_config, raw_place_of
from ingest.log.kafka_admin import TopicFacts, describe_topic
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_raw_frames import KafkaRawFrames
from ingest.log.kafka_raw_reader import KafkaKeptFrames
from ingest.log.kafka_raw_topic import prepare_raw, topic_settings
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace, TopicRefused
from ingest.log.raw_frames import Lost, RawFrames, RawSettings, raw_digest
from projections.bounds import KV_FRAME_BYTES_MAX, SECOND_US
from projections.events.codec import decode_record
from projections.events.signals import KvBatchReceived, SampleReceived
from replay.engine import records_of
from tests.live.hostile_peers import MODEL
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import picklog, until
from tests.live.test_spool import Site, missing

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(240)]
LOG = bytes(range(16))
SHED_RAW = 'picklog_shed_total{importance="raw"}'


class RawSite(Site):
    """The same one, which keeps raw frames."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        super().__init__(topics, folder)
        for process in (self.ingest, self.router):
            process.config["log"]["raw"] = {"enabled": True}
            process.config["log"]["kafka"]["raw_topic"] = f"{self.place.topic}.raw"
            process.write(process.config)

    @property
    def where(self) -> str:
        """How commands name its log."""
        return f"kafka:{self.router.file}"

    @property
    def raw_place(self) -> KafkaPlace:
        return raw_place_of(kafka_config(Path(self.where)).log.kafka)

    def redecoded(self, where: str) -> dict[str, Any]:
        """What the other decoder, which is the same, says of a log."""
        said = picklog("replay", "whatif", "--redecode", "--json", "--log", where)
        assert said.returncode == 0, (said.stdout, said.stderr)
        found: dict[str, Any] = json.loads(said.stdout)
        return found

    def with_digest(self) -> dict[int, int]:
        """Digests of frames by the offsets of their records."""
        reader = KafkaReader.open(self.place)
        try:
            facts = {offset: decode_record(offset, data).fact for offset, data in records_of(reader, 0)}
        finally:
            reader.close()
        return {
            offset: fact.raw_digest
            for offset, fact in facts.items()
            if isinstance(fact, SampleReceived | KvBatchReceived) and fact.raw_digest is not None
        }


@pytest.fixture
def topics(kafka: KafkaBroker) -> Iterator[Topics]:
    with Topics(kafka) as topics:
        yield topics


@pytest.fixture
def site(topics: Topics, tmp_path: Path) -> Iterator[RawSite]:
    made = RawSite(topics, tmp_path)
    try:
        yield made
    finally:
        made.close()


def described(place: KafkaPlace) -> TopicFacts:
    loop = KafkaLoop()
    try:
        facts = loop.run(describe_topic(place))
    finally:
        loop.close()
    assert facts is not None
    return facts


@pytest.mark.req("EVS-02", "EVS-08")
def test_frames_of_a_fleet_are_on_the_topic_and_say_the_same_as_on_segments(
    site: RawSite, tmp_path: Path
) -> None:
    talkers = site.begin()
    with talkers[0], talkers[1]:
        assert [site.router.chat(f"chat-{n}", MODEL).status for n in range(5)] == [200] * 5
    until(lambda: missing(site, talkers) == [], lambda: str(missing(site, talkers)))
    assert site.ingest.stop() == 0
    assert site.router.stop() == 0
    assert site.ingest.log_lines("raw frames go to a topic", site.raw_place.topic)

    data = tmp_path / "copied"
    assert picklog("log", "copy", site.where, str(data)).returncode == 0
    digests = site.with_digest()
    log_id = bytes.fromhex(json.loads(picklog("log", "stat", "--json", "--log", str(data)).stdout)["log_id"])
    on_topic = KafkaKeptFrames.open(site.raw_place, log_id)
    on_segments = RawFrames(data, log_id, RawSettings())
    try:
        for offset, digest in digests.items():
            frame = on_topic.get(offset, digest)
            assert isinstance(frame, bytes), (offset, frame)
            on_segments.put(offset, frame, 1)
    finally:
        on_topic.close()
        on_segments.close()

    found = site.redecoded(site.where)
    assert found["redecoded"] == {
        "same": len(digests),
        "changed": 0,
        "refused": 0,
        "not_kept": 0,
        "damaged": 0,
    }
    assert (found["picks"], found["moved"]) == (5, 0)
    assert site.redecoded(str(data)) == found


@pytest.mark.req("EVS-02", "EVS-17")
def test_brokers_that_are_away_cost_frames_that_are_counted_and_nothing_of_the_log(
    site: RawSite, kafka: KafkaBroker
) -> None:
    talkers = site.begin()
    with talkers[0], talkers[1]:
        assert site.router.chat("before", MODEL).status == 200
        kafka.kill()
        try:
            until(lambda: site.ingest.metrics()[SHED_RAW] > 100, site.ingest.log_tail, patience_s=90)
        finally:
            kafka.start()
        until(lambda: site.ingest.log_lines("the spool is empty again"), site.ingest.log_tail)
        assert site.router.chat("behind", MODEL).status == 200
    until(lambda: missing(site, talkers) == [], lambda: str(missing(site, talkers)), patience_s=60)
    figures = site.ingest.metrics()
    shed = {name: n for name, n in figures.items() if name.startswith("picklog_shed_total") and n}
    assert shed.keys() == {SHED_RAW}
    assert site.ingest.stop() == 0
    assert site.router.stop() == 0
    found = site.redecoded(site.where)["redecoded"]
    assert found["not_kept"] == shed[SHED_RAW]
    assert found["same"] + found["not_kept"] == len(site.with_digest())
    assert found["changed"] == found["refused"] == found["damaged"] == 0


def test_a_topic_is_made_as_the_configuration_says(topics: Topics) -> None:
    place = topics.place("made.raw")
    settings = RawSettings(age_us=600 * SECOND_US, bytes_max=1 << 30)
    raw = KafkaRawFrames(place, LOG, settings)
    frames = {number: number.to_bytes(4, "big") * 50 for number in range(1, 20_000)}
    for number in (0, *frames, 20_000):
        raw.put(number, frames.get(number, bytes([number % 7]) * KV_FRAME_BYTES_MAX), number)
    raw.close()
    assert raw.dropped == 0
    facts = described(place)
    assert facts.partitions == 1
    assert {key: facts.configs[key] for key in topic_settings(settings)} == topic_settings(settings)
    kept = KafkaKeptFrames.open(place, LOG)
    try:
        assert kept.first_offset() == 0
        for number in (*frames, *frames):  # as a fold behind its scout
            assert kept.get(number, raw_digest(frames[number])) == frames[number]
        assert kept.get(20_000, 0) is Lost.DAMAGED
        assert kept.get(20_001, 0) is Lost.GONE
    finally:
        kept.close()


def test_a_topic_of_something_else_is_left_alone(topics: Topics) -> None:
    log = topics.log()
    topics.create("three", 3)
    for place in (log.place, topics.place("three")):
        raw = KafkaRawFrames(place, LOG, RawSettings())
        raw.put(1, b"frame", 1)
        raw.close()
        assert raw.dropped == 1
    assert log.commit([b"record"]) == 0, "its log is whole"
    loop = KafkaLoop()
    try:
        with pytest.raises(TopicRefused, match="as the topic of a log"):
            loop.run(prepare_raw(log.place, RawSettings()))
    finally:
        loop.close()


def test_frames_of_a_topic_that_is_not_there_are_gone(topics: Topics) -> None:
    kept = KafkaKeptFrames.open(topics.place("nowhere.raw"), LOG)
    try:
        assert kept.first_offset() is None
    finally:
        kept.close()
