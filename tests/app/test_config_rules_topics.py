"""Names of topics that brokers refuse, or that mean one topic twice, are refused where they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.config_findings import ConfigError
from app.config_load import check_data, load_config
from app.config_rules_topics import TOPIC_KEYS
from app.config_storage import TOPIC_CHARACTERS_MAX, KafkaSettings


def errors(**kafka: Any) -> list[str]:
    """What is said of these keys of `log.kafka`, as `key: message`; empty where they are taken."""
    try:
        check_data({"log": {"kafka": kafka}})
    except ConfigError as problem:
        return [f"{found.path}: {found.message}" for found in problem.findings]
    return []


@pytest.mark.parametrize("key", TOPIC_KEYS)
@pytest.mark.parametrize("name", ["a", "Fleet-7_b.raw", "...", "-", "x" * TOPIC_CHARACTERS_MAX])
def test_names_that_kafka_takes_are_taken(key: str, name: str) -> None:
    assert errors(**{key: name}) == []


@pytest.mark.parametrize("key", TOPIC_KEYS)
@pytest.mark.parametrize(
    "name", ["my topic", "a/b", "a:b", "über", "a\n", "\n", "a\0b", "a,b", "picklog.audit!", "٣"]
)
def test_characters_that_no_topic_has_are_refused_under_their_key(key: str, name: str) -> None:
    assert errors(**{key: name}) == [f"log.kafka.{key}: has characters that no topic of Kafka has"]


@pytest.mark.parametrize("key", TOPIC_KEYS)
@pytest.mark.parametrize("name", [".", ".."])
def test_names_of_folders_are_refused(key: str, name: str) -> None:
    assert errors(**{key: name}) == [f"log.kafka.{key}: is . or .., which no topic of Kafka is called"]


@pytest.mark.parametrize("key", TOPIC_KEYS)
@pytest.mark.parametrize("name", ["", "x" * (TOPIC_CHARACTERS_MAX + 1)])
def test_names_that_are_too_short_or_too_long_are_refused(key: str, name: str) -> None:
    (told,) = errors(**{key: name})
    assert told.startswith(f"log.kafka.{key}: ")


@pytest.mark.parametrize(
    ("kafka", "key", "first"),
    [
        ({"topic": "picklog_audit"}, "audit_topic", "topic"),
        ({"topic": "a.b_c", "raw_topic": "a_b.c"}, "raw_topic", "topic"),
        ({"audit_topic": "x.y", "rollups_topic": "x_y"}, "rollups_topic", "audit_topic"),
        ({"rollups_topic": "x.y", "raw_topic": "x_y"}, "raw_topic", "rollups_topic"),
    ],
)
def test_names_that_collide_at_the_brokers_are_refused(kafka: dict[str, str], key: str, first: str) -> None:
    (told,) = errors(**kafka)
    assert told.startswith(f"log.kafka.{key}: differs from log.kafka.{first} in `.` and `_` alone")


@pytest.mark.parametrize("key", TOPIC_KEYS[1:])
def test_one_topic_for_two_things_is_refused_once(key: str) -> None:
    assert errors(**{key: KafkaSettings().topic}) == [f"log.kafka.{key}: is the topic of something else too"]


def test_four_of_one_name_are_told_of_each_beyond_the_first() -> None:
    found = errors(**dict.fromkeys(TOPIC_KEYS, "same"))
    assert [text.partition(":")[0] for text in found] == [f"log.kafka.{key}" for key in TOPIC_KEYS[1:]]


def test_file_line_key_and_what_to_do_are_told(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("log:\n  kafka:\n    audit_topic: my topic\n")
    with pytest.raises(ConfigError) as told:
        load_config(file)
    assert str(told.value) == (
        f"{file}:3: log.kafka.audit_topic: has characters that no topic of Kafka has;"
        " write letters a to z, digits, `.`, `_` and `-`"
    )
