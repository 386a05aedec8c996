"""Topics of a log: made right, and checked before anything is read or written.

One partition, since a log is one lane; no compaction, since no record stands for another; room
for the largest record; and settings that do not lose acknowledged records: no unclean leader
election, at least two copies before an acknowledgement where there are three, and no retention of
the brokers that drops what `log.retention` still keeps. The last three are refused unless the site
says that it knows (`allow_unsafe`).

Created topics keep everything (`retention.ms=-1`): a log can only be folded from its beginning
or from a checkpoint, and what Kafka drops by age nobody has checkpointed. Retention of brokers that
reaches further back than the log's own, fewer copies than configured, and writes that need every
copy are warned of.

Source: contract, section 6, `log.kafka`; decisions 11, 44.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from ingest.log.kafka_client import client_options
from ingest.log.kafka_settings import (
    PARTITION,
    REQUEST_S,
    KafkaPlace,
    KafkaUnreachable,
    Keeps,
    TopicRefused,
)
from ingest.log.kafka_sizes import DescribeLogDirs, stored_bytes_of
from projections.bounds import COMMIT_BATCH_BYTES_MAX, KIB, MIB, RECORD_BYTES_MAX

BATCH_OVERHEAD_BYTES = 4 * KIB  # head of a batch, and place and length of one record, generously
MESSAGE_BYTES_MIN = RECORD_BYTES_MAX + BATCH_OVERHEAD_BYTES
MESSAGE_BYTES_CREATED = COMMIT_BATCH_BYTES_MAX + MIB  # a commit batch is one batch of the topic

KEEPS_ALL = -1  # `retention.ms` and `retention.bytes` of a topic that drops nothing
AGE_MARGIN_US = 86_400_000_000  # beyond the log's age: checkpoints may be a day apart
BYTES_MARGIN = 2  # times `log.retention.bytes`: it is looked at every few minutes, and keeps checkpoints

LEADER_S = 10.0  # that a new topic may take to be there for all
LOOK_S = 0.05


class TopicFacts(NamedTuple):
    """What is known of a topic. replication: copies of its first partition."""

    partitions: int
    replication: int
    configs: Mapping[str, str]

    @property
    def message_bytes_max(self) -> int:
        """Largest batch, compressed, that the topic takes."""
        return int(self.configs.get("max.message.bytes", 0))

    def kept(self, key: str) -> int:
        """`retention.ms` or `retention.bytes`; KEEPS_ALL for none."""
        return max(KEEPS_ALL, int(self.configs.get(key, KEEPS_ALL)))


class TopicFaults(NamedTuple):
    """What is wrong with a topic: it cannot work, may lose acknowledged records, should be otherwise."""

    impossible: list[str]
    unsafe: list[str]
    doubtful: list[str]


def topic_faults(place: KafkaPlace, facts: TopicFacts) -> TopicFaults:
    """Every reason for which the topic is no place for a log, or a poor one, each with what to do."""
    name = place.name
    faults = TopicFaults([], [], copy_doubts(place, facts))
    configs = facts.configs
    if facts.partitions != 1:
        faults.impossible.append(
            f"{name} has {facts.partitions} partitions, a log is one: name a topic with one partition"
        )
    if facts.message_bytes_max < MESSAGE_BYTES_MIN:
        faults.impossible.append(
            f"{name} takes max.message.bytes={facts.message_bytes_max}, a record may have "
            f"{RECORD_BYTES_MAX} and its head: set at least {MESSAGE_BYTES_MIN}"
        )
    if "compact" in configs.get("cleanup.policy", "delete"):
        faults.impossible.append(
            f"{name} has cleanup.policy={configs['cleanup.policy']}, which drops records of a log: set delete"
        )
    if configs.get("unclean.leader.election.enable", "false") == "true":
        faults.unsafe.append(
            f"{name} has unclean.leader.election.enable=true, which takes acknowledged records back: "
            "set false, or log.kafka.allow_unsafe"
        )
    insync = int(configs.get("min.insync.replicas", "1"))
    if facts.replication >= 3 and insync < 2:
        faults.unsafe.append(
            f"{name} has {facts.replication} replicas and min.insync.replicas={insync}, so one broker's "
            "end may lose acknowledged records: set 2, or log.kafka.allow_unsafe"
        )
    _judge_retention(name, facts, place.keeps, faults)
    return faults


def copy_doubts(place: KafkaPlace, facts: TopicFacts) -> list[str]:
    """Fewer copies than configured, and writes that need all of them, each with what to do."""
    name, copies = place.name, facts.replication
    doubts = []
    if copies < place.replication_factor:
        doubts.append(
            f"{name} has {copies} copies, log.kafka.replication_factor says {place.replication_factor}: "
            "add some with kafka-reassign-partitions.sh, or correct the key"
        )
    insync = int(facts.configs.get("min.insync.replicas", "1"))
    if insync > copies:
        doubts.append(
            f"{name} has {copies} copies and min.insync.replicas={insync}, so brokers may refuse every "
            f"write: set {max(1, copies - 1)}, or add copies"
        )
    elif insync == copies > 1:
        doubts.append(
            f"{name} has {copies} copies and min.insync.replicas={insync}, so one broker's end stops every "
            f"write: set {copies - 1}, or add copies"
        )
    return doubts


def _judge_retention(name: str, facts: TopicFacts, keeps: Keeps, faults: TopicFaults) -> None:
    """Brokers know of no checkpoint: what they drop that the log still keeps, nobody can fold any more."""
    age_ms, size = facts.kept("retention.ms"), facts.kept("retention.bytes")
    needed_ms = (keeps.age_us + AGE_MARGIN_US) // 1000
    needed_bytes = None if keeps.bytes_max is None else keeps.bytes_max * BYTES_MARGIN
    picklog_does_it = "set -1 (`picklog audit` lets the topic begin later)"
    if KEEPS_ALL < age_ms < needed_ms:
        faults.unsafe.append(
            f"{name} has retention.ms={age_ms}, so brokers drop records that log.retention.age "
            f"({keeps.age_us // 1000} ms) or a kept checkpoint needs: {picklog_does_it}, "
            f"at least {needed_ms}, or log.kafka.allow_unsafe"
        )
    elif age_ms != KEEPS_ALL:
        faults.doubtful.append(
            f"{name} has retention.ms={age_ms}, so brokers drop a log that stands still for so long, "
            f"checkpoint or not: {picklog_does_it}"
        )
    if size == KEEPS_ALL:
        return
    if needed_bytes is None or size < needed_bytes:
        at_least = "" if needed_bytes is None else f", at least {needed_bytes}"
        limit = "no size" if keeps.bytes_max is None else str(keeps.bytes_max)
        faults.unsafe.append(
            f"{name} has retention.bytes={size}, so brokers drop records that log.retention.bytes ({limit}) "
            f"or a kept checkpoint needs: {picklog_does_it}{at_least}, or log.kafka.allow_unsafe"
        )
    else:
        faults.doubtful.append(
            f"{name} has retention.bytes={size}, so brokers drop what is beyond it, checkpoint or not: "
            f"{picklog_does_it}"
        )


async def describe_topic(place: KafkaPlace) -> TopicFacts | None:
    """The topic as the cluster tells it; None where there is none. Raises KafkaUnreachable, KafkaError."""
    client = await _client(place)
    try:
        (topic,) = await client.describe_topics([place.topic])
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            return None
        if error is not NoError:
            raise error
        partitions = topic["partitions"]
        configs = await _configs(client, place.topic)
        replication = len(partitions[0]["replicas"]) if partitions else 0
        return TopicFacts(len(partitions), replication, configs)
    finally:
        await client.close()


async def create_topic(
    place: KafkaPlace, partitions: int = 1, other: Mapping[str, str] | None = None
) -> bool:
    """Make the topic unless it is there; whether it was made.

    other: configuration that differs from a log's.
    Raises TopicRefused for what another try would not change, KafkaError.
    """
    copies = place.replication_factor
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MESSAGE_BYTES_CREATED),
        "min.insync.replicas": "2" if copies >= 3 else "1",
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",  # by the brokers' clock: those of clients may be off
        **(other or {}),
    }
    client = await _client(place)
    try:
        answer = await client.create_topics(
            [NewTopic(place.topic, partitions, copies, topic_configs=configs)]
        )
        (_, code, text, *_), *_ = answer.topic_errors
        error = for_code(code)
        if error is TopicAlreadyExistsError:
            return False
        if error is not NoError:
            detail = text or error.__name__
            if error.retriable:  # a controller that is being elected, for one
                raise error(detail)
            raise TopicRefused(f"{place.name} cannot be made with {copies} replicas: {detail}")
        return True
    finally:
        await client.close()


async def topic_made(
    place: KafkaPlace, partitions: int = 1, other: Mapping[str, str] | None = None
) -> TopicFacts:
    """The topic, made where it was missing, once the brokers know of it. Raises as `create_topic` does.

    Brokers hear of a topic one after another. Until then it is not there, or has no partition: also
    for a process that comes while another one has it made.
    """
    facts = await describe_topic(place)
    if facts is None:
        await create_topic(place, partitions, other)
    async with asyncio.timeout(LEADER_S):
        while facts is None or not facts.partitions:
            await asyncio.sleep(LOOK_S)
            facts = await describe_topic(place)
    return facts


async def prepare_topic(place: KafkaPlace) -> tuple[TopicFacts, TopicFaults]:
    """The topic, made where it was missing, and what is to be warned of: unsafe or doubtful.

    Raises TopicRefused for a topic that is no place for a log; KafkaUnreachable, KafkaError.
    """
    facts = await topic_made(place)
    faults = topic_faults(place, facts)
    refused = faults.impossible + ([] if place.allow_unsafe else faults.unsafe)
    if refused:
        raise TopicRefused("; ".join(refused))
    return facts, faults


async def delete_records(place: KafkaPlace, kafka_offset: int) -> int:
    """Let the topic begin at an offset of its own; where it begins now. Raises KafkaError."""
    partition = TopicPartition(place.topic, PARTITION)
    client = await _client(place)
    try:
        answer: dict[TopicPartition, int] = await client.delete_records(
            {partition: RecordsToDelete(kafka_offset)}, timeout_ms=int(REQUEST_S * 1000)
        )
        return answer[partition]
    finally:
        await client.close()


async def stored_bytes(place: KafkaPlace) -> int | None:
    """Bytes that the fullest copy of the topic has on a broker's disks; None where no broker tells."""
    client = await _client(place)
    try:
        brokers = [broker["node_id"] for broker in (await client.describe_cluster())["brokers"]]
        sizes: list[int] = []
        for broker in brokers:
            answer = await client._send_request_to_node(broker, DescribeLogDirs(place.topic, PARTITION))
            size = stored_bytes_of(answer.results, place.topic)
            if size is not None:
                sizes.append(size)
        return max(sizes, default=None)
    finally:
        await client.close()


async def _configs(client: Any, topic: str) -> dict[str, str]:
    answers = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    found: dict[str, str] = {}
    for answer in answers:
        for code, _, _, _, entries in answer.resources:
            if for_code(code) is not NoError:
                raise KafkaUnreachable(
                    "Kafka: the topic's configuration cannot be read: grant DescribeConfigs"
                )
            found |= {name: value for name, value, *_ in entries if value is not None}
    return found


async def _client(place: KafkaPlace) -> Any:
    client = AIOKafkaAdminClient(**client_options(place))
    try:
        await client.start()
    except BaseException:
        await client.close()
        raise
    return client
