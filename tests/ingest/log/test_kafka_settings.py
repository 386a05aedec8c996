"""Where a log on Kafka is: defaults that lose nothing."""

from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable, TopicRefused
from projections.events.ports import LogError


def test_a_place_is_safe_unless_it_says_otherwise() -> None:
    place = KafkaPlace(("broker:9092",), "lane")
    assert (place.replication_factor, place.allow_unsafe, place.name) == (3, False, "topic lane")
    assert place.security.protocol == "PLAINTEXT"


def test_both_errors_are_errors_of_a_log() -> None:
    assert issubclass(KafkaUnreachable, LogError) and issubclass(TopicRefused, LogError)
