"""Topics of a test broker: each test takes new ones and leaves nothing open."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from tests.live.kafka_broker import KafkaBroker

_NUMBERS = itertools.count()


class Topics:
    """Opens logs on topics that no other test has, and closes what it opened."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._opened.close()

    def place(self, topic: str | None = None, **settings: Any) -> KafkaPlace:
        """A new topic's place; one replica, since there is one broker."""
        name = topic if topic is not None else f"log-{next(_NUMBERS)}"
        return KafkaPlace((self.broker.address(),), name, **{"replication_factor": 1, **settings})

    def log(self, place: KafkaPlace | None = None, **settings: Any) -> KafkaLog:
        """A log on a topic, a new one unless it is named."""
        log = KafkaLog.open(place or self.place(), **settings)
        self._opened.callback(log.close)
        return log

    def reader(self, of: KafkaLog | KafkaPlace, follows: bool = True) -> KafkaReader:
        """A reader with a connection of its own."""
        reader = KafkaReader.open(of if isinstance(of, KafkaPlace) else of.place, follows)
        self._opened.callback(reader.close)
        return reader

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic as somebody else would make it, who keeps everything unless told otherwise."""
        settings = {"retention.ms": "-1"} | {name.replace("_", "."): text for name, text in configs.items()}
        new = NewTopic(topic, partitions, 1, topic_configs=settings)
        answer = self.admin("create_topics", [new])
        assert answer.topic_errors[0][1] == 0, answer

    def delete(self, topic: str) -> None:
        """Remove a topic with all its records."""
        self.admin("delete_topics", [topic])

    def forget(self, log: KafkaLog, offset: int) -> None:
        """Drop everything before an offset of a log, as retention would."""
        kafka_offset = offset - log.shift
        partition = TopicPartition(log.place.topic, 0)
        self.admin("delete_records", {partition: RecordsToDelete(kafka_offset)})

    def produce(self, topic: str, *values: bytes) -> None:
        """Records of somebody else."""

        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.broker.address()) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value, partition=0)

        asyncio.run(send())

    def admin(self, call: str, *arguments: Any) -> Any:
        """One call of the library's own admin client."""

        async def ask() -> Any:
            client = AIOKafkaAdminClient(bootstrap_servers=self.broker.address())
            await client.start()
            try:
                return await getattr(client, call)(*arguments)
            finally:
                await client.close()

        return asyncio.run(ask())
