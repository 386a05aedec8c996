"""Which topics are no place for a log. Making and describing them: tests/live/test_kafka_log.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    BrokerResponseError,
    InvalidReplicationFactorError,
    NotControllerError,
    PolicyViolationError,
    RequestTimedOutError,
)

from ingest.log import kafka_admin
from ingest.log.kafka_admin import (
    MESSAGE_BYTES_CREATED,
    MESSAGE_BYTES_MIN,
    TopicFacts,
    TopicFaults,
    prepare_topic,
    topic_faults,
    topic_made,
)
from ingest.log.kafka_settings import KafkaPlace, Keeps, TopicRefused
from projections.bounds import COMMIT_BATCH_BYTES_MAX, RECORD_BYTES_MAX

GOOD = {
    "max.message.bytes": str(MESSAGE_BYTES_MIN),
    "cleanup.policy": "delete",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
PLACE = KafkaPlace(("broker:9092",), "x")
WEEK = Keeps()
DAY_MS = 86_400_000
GB = 1_000_000_000


def judged(
    replication: int = 3, wanted: int = 3, keeps: Keeps = WEEK, partitions: int = 1, **configs: str
) -> TopicFaults:
    changed = {name.replace("_", "."): text for name, text in configs.items()}
    place = PLACE._replace(replication_factor=wanted, keeps=keeps)
    return topic_faults(place, TopicFacts(partitions, replication, GOOD | changed))


def faults(partitions: int = 1, replication: int = 3, **configs: str) -> tuple[list[str], list[str]]:
    found = judged(replication, 3, WEEK, partitions, **configs)
    return found.impossible, found.unsafe


def test_a_topic_as_it_is_made_has_no_fault() -> None:
    assert judged() == ([], [], [])
    assert faults(max_message_bytes=str(MESSAGE_BYTES_CREATED)) == ([], [])
    assert MESSAGE_BYTES_CREATED > COMMIT_BATCH_BYTES_MAX and MESSAGE_BYTES_MIN > RECORD_BYTES_MAX


@pytest.mark.parametrize("partitions", [0, 2, 100])
def test_a_log_is_one_partition(partitions: int) -> None:
    (said,), unsafe = faults(partitions=partitions)
    assert f"has {partitions} partitions, a log is one" in said and unsafe == []


@pytest.mark.parametrize("size", ["1048588", str(RECORD_BYTES_MAX), str(MESSAGE_BYTES_MIN - 1)])
def test_the_largest_record_must_fit(size: str) -> None:
    (said,), _ = faults(max_message_bytes=size)
    assert f"max.message.bytes={size}" in said and f"set at least {MESSAGE_BYTES_MIN}" in said


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compaction_drops_records(policy: str) -> None:
    (said,), _ = faults(cleanup_policy=policy)
    assert f"cleanup.policy={policy}" in said


def test_what_may_lose_acknowledged_records_is_unsafe_not_impossible() -> None:
    impossible, unsafe = faults(unclean_leader_election_enable="true", min_insync_replicas="1")
    assert impossible == [] and len(unsafe) == 2
    assert "unclean.leader.election.enable=true" in unsafe[0]
    assert "3 replicas and min.insync.replicas=1" in unsafe[1]


@pytest.mark.parametrize("replication", [1, 2])
def test_fewer_than_three_replicas_are_the_site_s_own_choice(replication: int) -> None:
    assert faults(replication=replication, min_insync_replicas="1") == ([], [])


@pytest.mark.parametrize("age_ms", ["604800000", str(8 * DAY_MS - 1), "0"])
def test_brokers_that_drop_by_age_what_the_log_still_keeps_are_refused_with_what_to_set(age_ms: str) -> None:
    found = judged(retention_ms=age_ms)
    (said,) = found.unsafe
    assert f"retention.ms={age_ms}," in said and "log.retention.age (604800000 ms)" in said
    assert "set -1" in said and f"at least {8 * DAY_MS}" in said and "log.kafka.allow_unsafe" in said
    assert found.impossible == found.doubtful == []


def test_brokers_that_keep_longer_than_the_log_are_warned_of() -> None:
    found = judged(retention_ms=str(8 * DAY_MS))
    assert found.impossible == found.unsafe == []
    (said,) = found.doubtful
    assert f"retention.ms={8 * DAY_MS}" in said and "set -1" in said
    found = judged(retention_ms=str(2 * DAY_MS), keeps=Keeps(DAY_MS * 1000))
    assert found.unsafe == [] and len(found.doubtful) == 1, "the log's own age counts"
    assert len(judged(retention_ms=str(8 * DAY_MS), keeps=Keeps(30 * DAY_MS * 1000)).unsafe) == 1


def test_brokers_that_drop_by_size_what_the_log_still_keeps_are_refused() -> None:
    (said,) = judged(retention_bytes=str(GB)).unsafe
    assert f"retention.bytes={GB}," in said and "log.retention.bytes (no size)" in said and "set -1" in said
    (said,) = judged(retention_bytes=str(2 * GB - 1), keeps=Keeps(bytes_max=GB)).unsafe
    assert f"log.retention.bytes ({GB})" in said and f"at least {2 * GB}" in said
    found = judged(retention_bytes=str(2 * GB), keeps=Keeps(bytes_max=GB))
    (said,) = found.doubtful
    assert f"retention.bytes={2 * GB}," in said and found.unsafe == []


@pytest.mark.parametrize("copies", [1, 2])
def test_fewer_copies_than_configured_are_warned_of_with_both_figures(copies: int) -> None:
    (said,) = judged(copies, min_insync_replicas="1").doubtful
    assert f"has {copies} copies, log.kafka.replication_factor says 3: add some" in said
    assert judged(copies, wanted=copies, min_insync_replicas="1") == ([], [], [])
    assert judged(copies, wanted=1, min_insync_replicas="1") == ([], [], [])


@pytest.mark.parametrize(
    ("copies", "insync", "words"),
    [
        (3, 3, "has 3 copies and min.insync.replicas=3, so one broker's end stops every write: set 2"),
        (2, 2, "so one broker's end stops every write: set 1"),
        (3, 4, "has 3 copies and min.insync.replicas=4, so brokers may refuse every write: set 2"),
        (1, 2, "so brokers may refuse every write: set 1"),
    ],
)
def test_writes_that_need_every_copy_are_warned_of(copies: int, insync: int, words: str) -> None:
    found = judged(copies, wanted=copies, min_insync_replicas=str(insync))
    (said,) = found.doubtful
    assert words in said and found.impossible == found.unsafe == []


class Cluster:
    """A topic as the brokers tell it, look by look; the last telling stands."""

    def __init__(self, *told: TopicFacts | None) -> None:
        self.told = list(told)
        self.made: list[tuple[int, Mapping[str, str]]] = []

    async def describe(self, _: KafkaPlace) -> TopicFacts | None:
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    async def create(self, _: KafkaPlace, partitions: int, other: Mapping[str, str] | None) -> bool:
        self.made.append((partitions, other or {}))
        return True

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka_admin, "describe_topic", self.describe)
        monkeypatch.setattr(kafka_admin, "create_topic", self.create)


THERE = TopicFacts(1, 3, GOOD)
UNHEARD_OF = TopicFacts(0, 0, GOOD)  # a broker knows its name and no partition


@pytest.mark.parametrize(
    ("told", "is_made"),
    [
        ([THERE], False),
        ([None, THERE], True),
        ([None, None, UNHEARD_OF, THERE], True),
        ([UNHEARD_OF, None, UNHEARD_OF, THERE], False),
    ],
    ids=["there", "missing", "missing and slowly heard of", "being made by another process"],
)
async def test_a_topic_is_made_where_it_is_missing_and_judged_once_brokers_know_of_it(
    told: list[TopicFacts | None], is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_admin, "LOOK_S", 0.0)
    cluster = Cluster(*told)
    cluster.stand_in(monkeypatch)
    assert await prepare_topic(PLACE) == (THERE, ([], [], []))
    assert bool(cluster.made) is is_made and len(cluster.told) == 1


async def test_a_topic_that_brokers_never_hear_of_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "LEADER_S", 0.02)
    monkeypatch.setattr(kafka_admin, "LOOK_S", 0.0)
    Cluster(UNHEARD_OF).stand_in(monkeypatch)
    with pytest.raises(TimeoutError):
        await topic_made(PLACE)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (NotControllerError, NotControllerError),
        (RequestTimedOutError, RequestTimedOutError),
        (InvalidReplicationFactorError, TopicRefused),
        (PolicyViolationError, TopicRefused),
    ],
)
async def test_what_passes_is_tried_again_and_what_brokers_never_take_is_refused(
    code: type[BrokerResponseError], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        async def create_topics(self, topics: list[Any]) -> Any:
            return SimpleNamespace(topic_errors=[(topics[0].name, code.errno, "not now")])

        async def close(self) -> None:
            pass

    async def client(_: KafkaPlace) -> Client:
        return Client()

    monkeypatch.setattr(kafka_admin, "_client", client)
    with pytest.raises(raised, match="not now"):
        await kafka_admin.create_topic(PLACE)
