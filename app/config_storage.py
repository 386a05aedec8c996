"""The sections about what is kept: the event log, checkpoints, the SQL record, the shadow picker.

Keys and defaults: contract, section 6. `log.kafka` is the topic of `ingest`, `router` and `audit` where
`log.kind` is kafka, and where offline commands find one (`kafka:FILE`).
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from app.config_sections import Name, Section, Text
from app.config_units import ByteSize, Duration, SizeOrShare, duration_within, size_within

TOPIC_CHARACTERS_MAX = 249  # of Kafka; what else a name may be: config_rules_topics
DATABASE_SCHEMES = ("sqlite", "sqlite+aiosqlite", "postgresql", "postgresql+asyncpg")

TopicName = Annotated[str, Field(min_length=1, max_length=TOPIC_CHARACTERS_MAX)]


class LogKind(StrEnum):
    SEGMENTS = "segments"
    KAFKA = "kafka"


class AuditTarget(StrEnum):
    SQL = "sql"
    STREAM = "stream"


class QuestionDetail(StrEnum):
    MATCHED = "matched"
    FULL = "full"


class FsyncSettings(Section):
    """Group commit: whichever comes first."""

    every_ms: int = Field(
        default=2, ge=0, le=1000, description="Longest wait of a group commit, ms. 0 to 1000."
    )
    every_bytes: Annotated[ByteSize, size_within("4KiB", "64MiB")] = Field(
        default=ByteSize(1 << 20), description="Bytes that end the wait. 4KiB to 64MiB."
    )


class RetentionSettings(Section):
    """How much of the log is kept: whichever is less."""

    age: Annotated[Duration, duration_within("1m", "3650d")] = Field(
        default=Duration(7 * 86_400_000_000), description="Log time kept. 1m to 3650d; under 24h warns."
    )
    bytes: SizeOrShare = Field(
        default=SizeOrShare(None, 25), description="A size, or a share of the file system such as 25%."
    )


class RawSettings(Section):
    """Frames as received, kept in `DIR/raw` or on `log.kafka.raw_topic`; never for raw vLLM events."""

    enabled: bool = Field(
        default=True, description="false keeps none; `whatif --redecode` then has nothing to read."
    )
    age: Annotated[Duration, duration_within("1s", "365d")] = Field(
        default=Duration(3_600_000_000), description="Log time kept. 1s to 365d."
    )
    bytes: SizeOrShare = Field(
        default=SizeOrShare(ByteSize(10 << 30), None),
        description="A size, or a share of the file system; on Kafka a share is no limit.",
    )


class KafkaSecuritySettings(Section):
    """Connection to Kafka."""

    protocol: Text = Field(default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    mechanism: Text | None = Field(default=None, description="SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    username: Text | None = Field(default=None, description="SASL user.")
    password: SecretStr | None = Field(default=None, description="SASL password. Masked.")
    ca_cert: Text | None = Field(default=None, description="PEM file of the authority.")
    client_cert: Text | None = Field(default=None, description="PEM file.")
    client_key: SecretStr | None = Field(default=None, description="PEM file. Masked.")


class KafkaSettings(Section):
    """A log on Kafka, and its topics."""

    bootstrap_servers: tuple[Text, ...] = Field(
        default=(), max_length=64, description="host:port of brokers."
    )
    topic: TopicName = Field(default="picklog", description="Topic of the lane, one partition.")
    raw_topic: TopicName = Field(
        default="picklog.raw", description="Topic of raw frames, one partition; see `log.raw`."
    )
    audit_topic: TopicName = Field(
        default="picklog.audit", description="Topic of audit messages, 8 partitions; see `audit.sink`."
    )
    rollups_topic: TopicName = Field(
        default="picklog.rollups", description="Compacted topic of roll-ups; see `audit.sink`."
    )
    replication_factor: int = Field(
        default=3, ge=1, le=100, description="Of topics that are created. 1 to 100."
    )
    spool_bytes: ByteSize = Field(
        default=ByteSize(4 << 30), description="What an owner keeps on disk while brokers are away."
    )
    allow_unsafe: bool = Field(default=False, description="true only warns about unsafe topic settings.")
    security: KafkaSecuritySettings = Field(default=KafkaSecuritySettings(), description="TLS and SASL.")


class LogSettings(Section):
    """The event log."""

    kind: LogKind = Field(
        default=LogKind.SEGMENTS,
        description="segments (embedded, `serve`), or kafka (`ingest`, `router`, `audit`).",
    )
    fsync: FsyncSettings = Field(default=FsyncSettings(), description="Group commit.")
    retention: RetentionSettings = Field(default=RetentionSettings(), description="What is kept.")
    raw: RawSettings = Field(default=RawSettings(), description="Raw frames.")
    questions: QuestionDetail = Field(
        default=QuestionDetail.MATCHED, description="matched, or full: all block hashes of each question."
    )
    kafka: KafkaSettings = Field(default=KafkaSettings(), description="Kafka.")


class CheckpointSettings(Section):
    """Fold state written aside, so that a start takes seconds."""

    every: Annotated[Duration, duration_within("1s", "1d")] = Field(
        default=Duration(60_000_000),
        description="Longest log time between checkpoints; a busy log has them sooner. 1s to 1d.",
    )
    keep: int = Field(
        default=3, ge=1, le=1000, description="Newest ones kept, besides one an hour and one a day."
    )
    bytes: SizeOrShare = Field(
        default=SizeOrShare(ByteSize(10 << 30), None), description="A size, or a share of the file system."
    )
    folder: Text | None = Field(
        default=None,
        description="Absolute; replicas of one log may share it, and no other log. Default: DIR/checkpoints.",
    )
    peers: tuple[Text, ...] = Field(
        default=(),
        max_length=64,
        description="http(s)://host:port of processes whose admin interface gives checkpoints.",
    )


def _database_address(value: SecretStr) -> SecretStr:
    """The message holds no input: an address may hold a password."""
    scheme, separator, _ = value.get_secret_value().partition("://")
    if separator and scheme not in DATABASE_SCHEMES:
        raise ValueError(f"is no address of a database: begin with {', '.join(DATABASE_SCHEMES)}")
    return value


class RollupSettings(Section):
    """What each minute of a model's picks came to, one row a minute."""

    enabled: bool = Field(default=True, description="false writes no roll-ups.")
    grace: Annotated[Duration, duration_within("0s", "1h")] = Field(
        default=Duration(30_000_000),
        description="Log time from a minute's end to its roll-up; later ends roll it up again. 0s to 1h.",
    )


class StreamSettings(Section):
    """Stream workers (`picklog audit stream`), which write audit messages into the database."""

    group: Name = Field(default="picklog-audit", description="Consumer group that the workers share.")
    web_bind: Text = Field(
        default="127.0.0.1", description="Address of a worker's web view; it asks nobody who they are."
    )
    web_port: int = Field(default=0, ge=0, le=65_535, description="Port of a worker's web view; 0 has none.")


class AuditSettings(Section):
    """The SQL record of picks."""

    enabled: bool = Field(default=True, description="false writes none; it can be rebuilt from the log.")
    url: Annotated[SecretStr, AfterValidator(_database_address)] = Field(
        default=SecretStr("sqlite+aiosqlite:///{data}/audit.sqlite"),
        description="SQLAlchemy address; may hold a password, so it is masked.",
    )
    retention: Annotated[Duration, duration_within("1m", "3650d")] = Field(
        default=Duration(30 * 86_400_000_000), description="Age of kept rows, log time. 1m to 3650d."
    )
    bytes: SizeOrShare = Field(
        default=SizeOrShare(ByteSize(10 << 30), None),
        description="Ceiling of a SQLite file, beyond which the oldest rows go; a size or a share.",
    )
    candidates: Annotated[int, Field(ge=0, le=65_536)] | Literal["all"] = Field(
        default=2, description="Candidate rows of each phase, winner included. 0 to 65536, or all."
    )
    sink: AuditTarget = Field(
        default=AuditTarget.SQL,
        description="Where the follower writes: sql, or stream: messages to `log.kafka.audit_topic`.",
    )
    rollups: RollupSettings = Field(default=RollupSettings(), description="Roll-ups by minute.")
    stream: StreamSettings = Field(default=StreamSettings(), description="Stream workers.")


class ShadowSettings(Section):
    """A second picker that decides and is written down beside the real one, never acts."""

    config: Text | None = Field(
        default=None, description="Configuration file of the shadow, beside this one or absolute."
    )
