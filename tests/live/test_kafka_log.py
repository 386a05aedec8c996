"""The log on a real Apache Kafka: the suite of every log, and what only a broker can do to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingest.log.kafka_log import KafkaLog
from projections.events.ports import LogReader, LogStore
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.log_suite import LogSuite

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
