"""Which topics will do for raw frames, and how messages look. Real ones: tests/live/test_kafka_raw.py."""

from __future__ import annotations

import asyncio

import pytest

from ingest.log.kafka_admin import TopicFacts
from ingest.log.kafka_raw_topic import (
    HEADER,
    MESSAGE_BYTES_MIN,
    FramePlace,
    frame_header,
    prepare_raw,
    raw_differences,
    raw_faults,
    read_header,
    topic_settings,
)
from ingest.log.kafka_settings import KafkaPlace, TopicRefused
from ingest.log.raw_frames import BYTES_UNLIMITED, RawSettings, raw_digest
from projections.bounds import GIB, SECOND_US
from tests.ingest.log.test_kafka_admin import Cluster

LOG = bytes(range(16))
PLACE = KafkaPlace(("broker:9092",), "raw", 1)
HOUR = RawSettings(age_us=3600 * SECOND_US, bytes_max=10 * GIB)


def facts(partitions: int = 1, **configs: str) -> TopicFacts:
    made = topic_settings(HOUR) | {name.replace("_", "."): text for name, text in configs.items()}
    return TopicFacts(partitions, 1, made)


@pytest.mark.req("EVS-02")
def test_a_header_tells_log_offset_time_and_digest() -> None:
    name, value = frame_header(LOG, 1 << 40, 77, b"frame")
    assert (name, value[:16], value[16:24]) == (HEADER, LOG, (1 << 40).to_bytes(8, "big"))
    assert read_header([("other", b""), (name, value)]) == FramePlace(LOG, 1 << 40, 77, raw_digest(b"frame"))


@pytest.mark.parametrize("headers", [[], [("picklog.shift", bytes(40))], [(HEADER, bytes(39))]])
def test_what_is_no_frame_of_ours_tells_nothing(headers: list[tuple[str, bytes]]) -> None:
    assert read_header(headers) is None


def test_a_topic_is_made_with_the_ceilings_of_the_configuration() -> None:
    made = topic_settings(RawSettings(age_us=90 * SECOND_US, bytes_max=5 * GIB))
    assert (made["retention.ms"], made["retention.bytes"]) == ("90000", str(5 * GIB))
    assert int(made["segment.bytes"]) * 20 < 5 * GIB, "Kafka drops whole files"
    assert topic_settings(RawSettings(bytes_max=BYTES_UNLIMITED))["retention.bytes"] == "-1"
    assert raw_faults("topic x", facts()) == []
    assert raw_differences("topic x", facts(), HOUR) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (facts(3), "3 partitions"),
        (facts(max_message_bytes=str(MESSAGE_BYTES_MIN - 1)), "set at least"),
        (facts(cleanup_policy="compact,delete"), "cleanup.policy=compact,delete"),
        (facts(retention_ms="-1", retention_bytes="-1"), "as the topic of a log"),
    ],
)
def test_a_topic_that_loses_frames_or_keeps_them_for_ever_is_refused(found: TopicFacts, said: str) -> None:
    (fault,) = raw_faults("topic x", found)
    assert fault.startswith("topic x ") and said in fault


def test_one_limit_is_enough() -> None:
    assert raw_faults("topic x", facts(retention_bytes="-1")) == []
    assert raw_faults("topic x", facts(retention_ms="-1")) == []


def test_what_a_topic_keeps_otherwise_is_told_and_not_changed() -> None:
    found = raw_differences("topic x", facts(retention_ms="1000", retention_bytes="-1"), HOUR)
    assert [text.split(":")[0] for text in found] == [
        "topic x has retention.ms=1000, log.raw.age says 3600000",
        f"topic x has retention.bytes=-1, log.raw.bytes says {10 * GIB}",
    ]


def prepared(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> list[str]:
    cluster.stand_in(monkeypatch)
    return asyncio.run(prepare_raw(PLACE, HOUR))


def test_a_missing_topic_is_made_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(None, TopicFacts(1, 1, topic_settings(HOUR)))
    assert prepared(monkeypatch, cluster) == []
    assert cluster.made == [(1, topic_settings(HOUR))]


def test_a_topic_that_is_there_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(prepared(monkeypatch, Cluster(facts(retention_ms="1")))) == 1
    with pytest.raises(TopicRefused, match="2 partitions"):
        prepared(monkeypatch, Cluster(facts(2)))
