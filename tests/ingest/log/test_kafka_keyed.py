"""Which keyed topics cannot be used. Making, writing and reading them: tests/live/test_stream.py."""

from __future__ import annotations

import pytest

from ingest.log.kafka_admin import MESSAGE_BYTES_CREATED, TopicFacts
from ingest.log.kafka_keyed import MESSAGE_BYTES_MIN, KeyedTopic, keyed_faults

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
