"""Three real brokers on loopback, each its own controller: for what happens when one of them goes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from deploy.demo.addresses import free_port
from tests.live.kafka_broker import KafkaBroker, Seat, cluster_id

NODES = (1, 2, 3)
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
}


class KafkaCluster:
    """brokers: by node id. Every call blocks."""

    def __init__(self, folder: Path) -> None:
        controllers: dict[int, int] = {}
        for node in NODES:
            controllers[node] = free_port(set(controllers.values()))
        cluster = cluster_id()
        self.brokers = {
            node: KafkaBroker(folder / f"kafka-{node}", seat=Seat(node, cluster, controllers, SETTINGS))
            for node in NODES
        }

    def start(self) -> KafkaCluster:
        """Start all and wait until they take connections."""
        for broker in self.brokers.values():
            broker.begin()
        for broker in self.brokers.values():
            broker.wait()
        return self

    def addresses(self) -> tuple[str, ...]:
        """Of all brokers."""
        return tuple(broker.address() for broker in self.brokers.values())

    def leader(self, topic: str) -> int:
        """The node that leads the topic's one partition, -1 while nobody does."""

        async def ask() -> int:
            running = [broker.address() for broker in self.brokers.values() if broker.is_running]
            client = AIOKafkaAdminClient(bootstrap_servers=running)
            await client.start()
            try:
                (told,) = await client.describe_topics([topic])
                return int(told["partitions"][0]["leader"])
            finally:
                await client.close()

        try:
            return asyncio.run(ask())
        except KafkaError:  # it asked a broker that is gone
            return -1

    def close(self) -> None:
        """Kill all."""
        for broker in self.brokers.values():
            broker.close()
