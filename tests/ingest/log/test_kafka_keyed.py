"""Which keyed topics cannot be used. Making, writing and reading them: tests/live/test_stream.py."""

from __future__ import annotations

import pytest

from ingest.log.kafka_admin import MESSAGE_BYTES_CREATED, TopicFacts
from ingest.log.kafka_keyed import MESSAGE_BYTES_MIN, KeyedTopic, keyed_doubts, keyed_faults
from ingest.log.kafka_settings import KafkaPlace

EVENTS = KeyedTopic(8, is_compacted=False, retention_ms=1000)
NEWEST = KeyedTopic(8, is_compacted=True, retention_ms=-1)


def facts(partitions: int = 8, policy: str = "delete", size: int = MESSAGE_BYTES_MIN) -> TopicFacts:
    return TopicFacts(partitions, 1, {"cleanup.policy": policy, "max.message.bytes": str(size)})


def test_a_topic_as_it_is_made_has_no_fault() -> None:
    assert keyed_faults("topic x", facts(size=MESSAGE_BYTES_CREATED), EVENTS) == []
    assert keyed_faults("topic x", facts(policy="compact"), NEWEST) == []


@pytest.mark.parametrize("partitions", [1, 7, 9])
def test_another_number_of_partitions_is_refused(partitions: int) -> None:
    (said,) = keyed_faults("topic x", facts(partitions), EVENTS)
    assert said.startswith(f"topic x has {partitions} partitions and needs 8: name another topic")


def test_a_policy_that_keeps_too_little_or_too_much_is_refused() -> None:
    assert keyed_faults("topic x", facts(policy="compact,delete"), EVENTS) == [
        "topic x has cleanup.policy=compact,delete: set delete"
    ]
    assert keyed_faults("topic x", facts(policy="delete"), NEWEST) == [
        "topic x has cleanup.policy=delete: set compact"
    ]


def test_the_largest_message_must_fit() -> None:
    (said,) = keyed_faults("topic x", facts(size=MESSAGE_BYTES_MIN - 1), EVENTS)
    assert said.endswith(f"set at least {MESSAGE_BYTES_MIN}")


PLACE = KafkaPlace(("broker:9092",), "x", replication_factor=3)


def test_what_may_be_lost_without_a_word_is_doubtful() -> None:
    configs = {"cleanup.policy": "delete", "retention.ms": "999", "min.insync.replicas": "2"}
    assert keyed_doubts(PLACE, TopicFacts(8, 2, configs), EVENTS) == [
        "topic x has 2 copies, log.kafka.replication_factor says 3: add some with "
        "kafka-reassign-partitions.sh, or correct the key",
        "topic x has 2 copies and min.insync.replicas=2, so one broker's end stops every write: set 1, or "
        "add copies",
        "topic x has retention.ms=999: what nobody has written into the database by then is gone: set 1000",
    ]
    both = TopicFacts(8, 3, {"cleanup.policy": "compact,delete", "retention.ms": "999"})
    assert keyed_doubts(PLACE, both, NEWEST) == [
        "topic x has cleanup.policy=compact,delete, which drops the newest of a key too: set compact"
    ]


@pytest.mark.parametrize("age_ms", ["-1", "1000", "5000"])
def test_a_topic_that_keeps_as_long_as_one_that_is_made_has_no_doubt(age_ms: str) -> None:
    configs = {"cleanup.policy": "delete", "retention.ms": age_ms, "min.insync.replicas": "2"}
    assert keyed_doubts(PLACE, TopicFacts(8, 3, configs), EVENTS) == []
    # What a compacted topic keeps by age does not count.
    configs = {"cleanup.policy": "compact", "retention.ms": "5", "min.insync.replicas": "2"}
    assert keyed_doubts(PLACE, TopicFacts(8, 3, configs), NEWEST) == []
