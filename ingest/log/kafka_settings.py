"""Where a log on Kafka is: values, and the errors that every part of it may raise.

One topic with one partition is one log (decision 1). Nothing here needs the client library.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.events.ports import LogCorrupt, LogError

PARTITION = 0
REQUEST_S = 10.0  # one request to a broker; also how long a bootstrap may take


class KafkaUnreachable(LogError):
    """No broker answered in time, or it refused what every client needs. Nothing is known of the log."""


class KafkaDenied(KafkaUnreachable):
    """A broker answered that this user may not do it; says which rights are missing."""


class TopicReplaced(LogCorrupt):
    """The topic is not the one that was read before: recreated, or it lost its end."""


class TopicRefused(LogError):
    """The topic, or its configuration, cannot hold this log; says what to change."""


class KafkaSecurity(NamedTuple):
    """`log.kafka.security`: PEM files by path, names and passwords as text."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None
    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


class Keeps(NamedTuple):
    """How much of a log `log.retention` keeps. age_us: log time. bytes_max: None for no limit by size."""

    age_us: int = 7 * 86_400_000_000
    bytes_max: int | None = None


class KafkaPlace(NamedTuple):
    """A topic of a cluster, and how topics are made there.

    servers: `host:port` of brokers to begin with. replication_factor: of topics that are created.
    allow_unsafe: settings that may lose acknowledged records are warned of, not refused.
    keeps: of the log there, which brokers must not drop before.
    """

    servers: tuple[str, ...]
    topic: str
    replication_factor: int = 3
    allow_unsafe: bool = False
    security: KafkaSecurity = KafkaSecurity()
    keeps: Keeps = Keeps()

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"topic {self.topic}"
