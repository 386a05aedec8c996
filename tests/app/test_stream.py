"""How Faust is set up; what it does with messages: tests/live/test_stream.py."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from app.config_findings import ConfigError
from app.config_load import check_data
from app.config_storage import StreamSettings
from app.stream import SAID_EVERY_S, Reminder, Seldom, credentials, faust_app
from ingest.log.kafka_settings import KafkaPlace, KafkaSecurity, TopicRefused
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
