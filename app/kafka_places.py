"""`kafka:FILE`: the topic that the section `log.kafka` of a configuration names, for offline commands.

FILE may say `log.kind: kafka` or not: what `serve` writes to is its business. The client library
is the extra `kafka`; without it the command says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail, one_line
from app.config_findings import ConfigError, ConfigUnreadable
from app.config_load import LoadedConfig, installed_extras, load_config
from app.config_model import Config
from app.config_storage import KafkaSettings, LogKind
from ingest.log.kafka_settings import (
    KafkaDenied,
    KafkaPlace,
    KafkaSecurity,
    KafkaUnreachable,
    Keeps,
    TopicRefused,
)

KAFKA_PREFIX = "kafka:"


def is_kafka(where: Path | None) -> bool:
    """Whether a command was given `kafka:FILE`."""
    return where is not None and str(where).startswith(KAFKA_PREFIX)


def kafka_place(where: Path) -> KafkaPlace:
    """The topic that `kafka:FILE` names. Ends the command with status 2, or 3 for a file not there."""
    return lane_place(kafka_config(where))


def kafka_config(where: Path) -> Config:
    """The configuration in the file, which names a topic. Ends the command as `kafka_place`."""
    file = str(where).removeprefix(KAFKA_PREFIX)
    if not file:
        fail(EXIT_USAGE, "kafka: names no file", "write kafka:FILE, a configuration with log.kafka")
    if "kafka" not in installed_extras():
        fail(EXIT_USAGE, "the Kafka client is not installed", "pip install 'picklog[kafka]'")
    try:
        loaded = load_config(file, overrides={"log.kind": LogKind.SEGMENTS.value})
    except ConfigError as problem:
        is_away = isinstance(problem, ConfigUnreadable)
        fail(EXIT_UNREACHABLE if is_away else EXIT_USAGE, one_line(str(problem)))
    if not loaded.config.log.kafka.bootstrap_servers:
        fail(EXIT_USAGE, f"{file}: log.kafka.bootstrap_servers is empty", "name host:port of a broker")
    return loaded.config


@contextmanager
def brokers_told(where: Path) -> Iterator[None]:
    """Turn brokers that cannot be reached into one line: what, by which key of which file, what to do."""
    try:
        yield
    except KafkaDenied:
        raise  # they were reached, and it says what to grant
    except KafkaUnreachable as problem:
        _tell(problem, str(where).removeprefix(KAFKA_PREFIX), kafka_place(where))


@contextmanager
def own_brokers_told(loaded: LoadedConfig) -> Iterator[None]:
    """The same for a process, whose configuration may come from the environment alone."""
    try:
        yield
    except KafkaDenied:
        raise
    except KafkaUnreachable as problem:
        file = str(loaded.path) if loaded.path is not None else "the environment"
        _tell(problem, file, place_of(loaded.config.log.kafka))


def _tell(problem: KafkaUnreachable, file: str, place: KafkaPlace) -> NoReturn:
    remedy = "start the brokers, or correct this key or log.kafka.security"
    servers = ", ".join(place.servers)
    fail(EXIT_UNREACHABLE, f"{problem}: {file}: log.kafka.bootstrap_servers: {servers}", remedy)


def lane_place(config: Config) -> KafkaPlace:
    """The topic of the log, with what `log.retention` keeps of it."""
    retention = config.log.retention
    size = retention.bytes.size
    keeps = Keeps(retention.age.us, None if size is None else size.count)
    return place_of(config.log.kafka)._replace(keeps=keeps)


def place_of(settings: KafkaSettings) -> KafkaPlace:
    """The section as the log takes it."""
    security = settings.security
    return KafkaPlace(
        settings.bootstrap_servers,
        settings.topic,
        settings.replication_factor,
        settings.allow_unsafe,
        KafkaSecurity(
            security.protocol,
            security.mechanism,
            security.username,
            None if security.password is None else security.password.get_secret_value(),
            security.ca_cert,
            security.client_cert,
            None if security.client_key is None else security.client_key.get_secret_value(),
        ),
    )


def raw_place_of(settings: KafkaSettings) -> KafkaPlace:
    """The topic of raw frames beside it."""
    return place_of(settings)._replace(topic=settings.raw_topic)


@contextmanager
def topics_told() -> Iterator[None]:
    """Turn a topic that cannot hold a log into one line and the status of bad usage."""
    try:
        yield
    except TopicRefused as problem:
        fail(EXIT_USAGE, str(problem))
