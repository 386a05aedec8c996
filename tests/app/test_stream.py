"""How Faust is set up; what it does with messages: tests/live/test_stream.py."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from faust.exceptions import ConsumerNotStarted
from faust.types import TP

from app.audit_database import upgrade
from app.config_findings import ConfigError
from app.config_load import check_data
from app.config_storage import StreamSettings
from app.exposition import CONTENT_TYPE
from app.stream import SAID_EVERY_S, Reminder, Seldom, StreamProcess, credentials, faust_app
from ingest.log.kafka_settings import KafkaPlace, KafkaSecurity, TopicRefused
from tests.app.audit_site import sink_settings, sqlite_url
from tests.live.certificates import Authority

PLACE = KafkaPlace(("a:9092", "b:9093"), "picklog.audit")


def secured(**security: str) -> KafkaPlace:
    return PLACE._replace(security=KafkaSecurity(**security))


async def test_the_application_reads_from_the_beginning_and_makes_no_topics(tmp_path: Path) -> None:
    conf: Any = faust_app(PLACE, StreamSettings(), tmp_path).conf
    assert [str(url) for url in conf.broker] == ["aiokafka://a:9092", "aiokafka://b:9093"]
    assert conf.id == "picklog-audit"
    assert (conf.consumer_auto_offset_reset, conf.topic_allow_declare, conf.topic_disable_leader) == (
        "earliest",
        False,
        True,
    )
    assert conf.autodiscover is False


async def test_the_web_view_is_off_and_on_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    conf = faust_app(PLACE, StreamSettings(), tmp_path).conf
    assert (conf.web_enabled, conf.web_bind) == (False, "127.0.0.1")
    conf = faust_app(PLACE, StreamSettings(web_port=7_000), tmp_path).conf
    assert (conf.web_enabled, conf.web_bind, conf.web_port) == (True, "127.0.0.1", 7_000)
    conf = faust_app(PLACE, StreamSettings(web_port=7_000, web_bind="0.0.0.0"), tmp_path).conf
    assert conf.web_bind == "0.0.0.0"


class Consumer:
    """The library's consumer: what it was given, and where partitions end. None: it has not started."""

    ends: dict[TP, int] | None = None
    is_away = False

    def assignment(self) -> set[TP]:
        if self.ends is None:
            raise ConsumerNotStarted("Consumer thread not yet started")
        return set(self.ends)

    async def highwaters(self, *places: TP) -> dict[TP, int]:
        if self.ends is None or self.is_away:
            raise OSError("no brokers")
        return {place: self.ends[place] for place in places}


@pytest.fixture
async def process(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[StreamProcess]:
    tells_metrics = getattr(request, "param", True)
    sink = sink_settings(sqlite_url(tmp_path))
    made = StreamProcess(PLACE, "rollups", sink, StreamSettings(web_port=7_000), tmp_path, tells_metrics)
    made.app.consumer = Consumer()  # type: ignore[assignment]
    await upgrade(made._engine)
    yield made
    await made.close()


def consumer_of(process: StreamProcess) -> Consumer:
    consumer: Any = process.app.consumer
    assert isinstance(consumer, Consumer)
    return consumer


@pytest.mark.parametrize(("process", "status"), [(True, 200), (False, 404)], indirect=["process"])
async def test_the_web_view_answers_scrapes_with_and_without_a_slash_unless_metrics_are_off(
    process: StreamProcess, status: int
) -> None:
    """As Prometheus asks, before the worker has begun; and only where `metrics.enabled`."""
    async with TestClient(TestServer(await process.app.web.wsgi())) as client:
        for path in ("/metrics", "/metrics/"):
            answer = await client.get(path, allow_redirects=False)
            assert answer.status == status
            if status == 200:
                assert answer.headers["Content-Type"] == CONTENT_TYPE
                assert "picklog_stream_partitions 0.0" in (await answer.text()).splitlines()
                assert (await client.head(path)).status == 200
        progress = await client.get("/progress/")
        assert (await progress.json())["partitions"] == []


async def test_of_what_the_consumer_has_the_messages_topic_alone_is_told(process: StreamProcess) -> None:
    ends = {TP("picklog.audit", 4): 70, TP("picklog.audit", 1): 9, TP("other", 0): 5}
    consumer_of(process).ends = ends
    await process.worker.look()
    text = (await process.figures.text()).decode().splitlines()
    assert "picklog_stream_partitions 2.0" in text
    assert [line for line in text if line.startswith("picklog_stream_lag_messages")] == [
        'picklog_stream_lag_messages{partition="1"} 9.0',
        'picklog_stream_lag_messages{partition="4"} 70.0',
    ]
    assert 'picklog_stream_away{peer="brokers"} 0.0' in text


async def test_whatever_the_library_raises_means_that_brokers_are_away(process: StreamProcess) -> None:
    consumer_of(process).ends = {TP("picklog.audit", 4): 70}
    consumer_of(process).is_away = True
    text = (await process.figures.text()).decode().splitlines()
    assert 'picklog_stream_away{peer="brokers"} 1.0' in text


def test_security_is_mapped_as_for_the_log(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert credentials(PLACE) is None
    sasl = credentials(
        secured(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            username="u",
            password="p",
            ca_cert=str(authority.ca),
        )
    )
    assert (sasl.protocol.value, sasl.mechanism.value) == ("SASL_SSL", "SCRAM-SHA-512")  # type: ignore[union-attr]
    plain = credentials(secured(protocol="SASL_PLAINTEXT", username="u", password="p"))
    assert (plain.protocol.value, plain.mechanism.value) == ("SASL_PLAINTEXT", "PLAIN")  # type: ignore[union-attr]
    tls = credentials(secured(protocol="SSL", ca_cert=str(authority.ca)))
    assert tls is not None and tls.protocol.value == "SSL"
    with pytest.raises(TopicRefused, match="is none of"):
        credentials(secured(protocol="PLAIN"))


def test_a_stream_without_brokers_is_refused_and_an_open_web_view_is_warned_of() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers: is empty, and audit\.sink is stream"):
        check_data({"audit": {"sink": "stream"}}, extras=frozenset())
    data = {
        "audit": {"sink": "stream", "stream": {"web_port": 7000, "web_bind": "0.0.0.0"}},
        "log": {"kafka": {"bootstrap_servers": ["k:9092"]}},
    }
    _, report = check_data(data, extras=frozenset())
    assert report.errors == ()
    told = [finding.message for finding in report.warnings]
    assert "lets other machines see a worker's web view" in told
    assert not [text for text in told if "not in this release" in text]


def test_of_the_client_library_one_line_is_let_through_now_and_then() -> None:
    now = [100.0]
    seldom = Seldom("aiokafka", lambda: now[0])

    def passes(name: str) -> bool:
        return seldom.filter(logging.LogRecord(name, logging.ERROR, "", 0, "x", None, None))

    assert [passes("aiokafka"), passes("aiokafka.consumer.fetcher"), passes("faust")] == [True, False, True]
    now[0] += SAID_EVERY_S
    assert [passes("aiokafka.consumer.fetcher"), passes("aiokafka"), passes("aiokafkaish")] == [
        True,
        False,
        True,
    ]


def test_what_keeps_a_worker_from_beginning_is_said_when_it_changes_and_seldom_else() -> None:
    now = [0.0]
    reminder = Reminder(lambda: now[0])
    said = []
    for cause in ("no database", "no database", "old schema", "old schema", "no database"):
        now[0] += 2.0
        said.append(reminder.is_due(cause))
    assert said == [True, False, True, False, True]
    now[0] += SAID_EVERY_S
    assert reminder.is_due("no database") and not reminder.is_due("no database")
