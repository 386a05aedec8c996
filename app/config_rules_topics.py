"""Rules of the names in `log.kafka`: what brokers would refuse, or give to two topics at the same time.

A topic beside the log is first asked for when there is something to send, so brokers would refuse its name
long after the start. It is refused where it is written.

Source: Apache Kafka, `org.apache.kafka.common.internals.Topic` (legal characters, collision of names).
"""

import re
from collections.abc import Iterator
from itertools import combinations

from app.config_findings import Finding, KeyPath
from app.config_model import Config

TOPIC_KEYS = ("topic", "audit_topic", "rollups_topic", "raw_topic")

_LEGAL = re.compile(r"[a-zA-Z0-9._-]*")


def topic_names_are_legal(config: Config) -> Iterator[Finding]:
    """Lengths are the model's."""
    for key, name in _topics(config):
        if name in (".", ".."):
            yield Finding(_keys(key), "is . or .., which no topic of Kafka is called", "choose another name")
        elif not _LEGAL.fullmatch(name):
            yield Finding(
                _keys(key),
                "has characters that no topic of Kafka has",
                "write letters a to z, digits, `.`, `_` and `-`",
            )


def topics_stand_apart(config: Config) -> Iterator[Finding]:
    """A log with anything else in its topic is no log any more. At most one finding for each topic."""
    told: set[str] = set()
    for (first, one), (second, other) in combinations(_topics(config), 2):
        if second in told or _metric_name(one) != _metric_name(other):
            continue
        told.add(second)
        if one == other:
            yield Finding(_keys(second), "is the topic of something else too", "give each a topic of its own")
        else:
            yield Finding(
                _keys(second),
                f"differs from log.kafka.{first} in `.` and `_` alone, and Kafka takes one of the two",
                "choose another name",
            )


def _topics(config: Config) -> list[tuple[str, str]]:
    return [(key, getattr(config.log.kafka, key)) for key in TOPIC_KEYS]


def _keys(key: str) -> KeyPath:
    return ("log", "kafka", key)


def _metric_name(topic: str) -> str:
    """Brokers name a topic's metrics so; two topics that share one collide."""
    return topic.replace(".", "_")
