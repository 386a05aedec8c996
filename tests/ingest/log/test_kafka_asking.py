"""No question of ours makes a topic, on brokers as Kafka comes: also tests/live/test_kafka_log.py."""

from __future__ import annotations

from typing import Any

import aiokafka.admin.client
import aiokafka.client
import pytest
from aiokafka.protocol import metadata

from ingest.log import kafka_asking
from ingest.log.kafka_asking import ask_only
from ingest.log.kafka_client import client_options
from ingest.log.kafka_settings import KafkaPlace

MODULES: tuple[Any, ...] = (aiokafka.client, aiokafka.admin.client)
FIRST_WITH_THE_FLAG = 4


@pytest.mark.parametrize("module", MODULES, ids=["client", "admin"])
@pytest.mark.parametrize("topics", [None, [], ["log"]])
def test_what_a_client_asks_brokers_of_topics_makes_none(module: Any, topics: list[str] | None) -> None:
    client_options(KafkaPlace(("a:1",), "log"))
    assert ask_only(), "and once more changes nothing"
    for name, version in vars(metadata).items():
        if name.startswith("MetadataRequest_v") and version.API_VERSION >= FIRST_WITH_THE_FLAG:
            assert module.MetadataRequest(topics).build(version).allow_auto_topic_creation is False


@pytest.mark.parametrize("other", [[1, 2], object, lambda topics: topics])
def test_another_library_is_left_as_it_is_and_said(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_asking, "MetadataRequest", other)
    for module in MODULES:
        monkeypatch.setattr(module, "MetadataRequest", other)
    assert not ask_only()
    assert all(module.MetadataRequest is other for module in MODULES)
