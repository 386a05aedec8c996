"""Which topics are no place for a log. Making and describing them: tests/live/test_kafka_log.py."""

from __future__ import annotations

import pytest

from ingest.log.kafka_admin import MESSAGE_BYTES_CREATED, MESSAGE_BYTES_MIN, TopicFacts, topic_faults
from projections.bounds import COMMIT_BATCH_BYTES_MAX, RECORD_BYTES_MAX

GOOD = {
    "max.message.bytes": str(MESSAGE_BYTES_MIN),
    "cleanup.policy": "delete",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}


def faults(partitions: int = 1, replication: int = 3, **configs: str) -> tuple[list[str], list[str]]:
    changed = {name.replace("_", "."): text for name, text in configs.items()}
    found = topic_faults("topic x", TopicFacts(partitions, replication, GOOD | changed))
    return found.impossible, found.unsafe


def test_a_topic_as_it_is_made_has_no_fault() -> None:
    assert faults() == ([], [])
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
