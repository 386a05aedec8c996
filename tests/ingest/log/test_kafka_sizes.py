"""What a broker says of its disks. Real answers: tests/live/test_kafka_retention.py."""

from __future__ import annotations

from ingest.log.kafka_sizes import DescribeLogDirs, stored_bytes_of

DISK_FAILED = 56


def answer(size: int, error_code: int = 0, is_future: bool = False) -> tuple[object, ...]:
    return error_code, "/data", [("other", [(0, 9, 0, False)]), ("log", [(0, size, 0, is_future)])]


def test_the_topic_s_own_bytes_are_taken() -> None:
    assert stored_bytes_of([answer(7)], "log") == 7
    assert stored_bytes_of([answer(7, is_future=True), answer(5)], "log") == 5


def test_a_disk_that_failed_and_a_broker_without_the_topic_tell_nothing() -> None:
    assert stored_bytes_of([answer(7, DISK_FAILED)], "log") is None
    assert stored_bytes_of([answer(7)], "elsewhere") is None
    assert stored_bytes_of([], "log") is None


def test_the_question_names_one_partition_of_one_topic() -> None:
    question = DescribeLogDirs("log", 0).prepare({35: (1, 4)})
    assert question.to_object()["topics"] == [{"topic": "log", "partitions": [0]}]
