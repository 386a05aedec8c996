"""How a process reaches its log on Kafka; brokers are stood in for, real ones are in tests/live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app import kafka_access
from app.config_model import Config
from app.kafka_access import KafkaAccess
from ingest.log.appends import Entry, Importance
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable
from ingest.log.raw_frames import RawSettings
from projections.bounds import GIB
from tests.ingest.log.facts import sample
from tests.ingest.log.kafka_topic import LOG_ID, Topic, reader_of
from tests.ingest.log.test_kafka_reader import topic_of

CONFIG = Config.model_validate(
    {
        "log": {"kind": "kafka", "kafka": {"bootstrap_servers": ["h:1"], "topic": "lane"}},
        "checkpoints": {"bytes": "16MiB"},
    }
)


class Opened:
    """In the place of a store or a tail; notes where it was opened and that it was closed."""

    def __init__(self, topic: Topic, order: list[str], name: str) -> None:
        self.source = reader_of(topic)
        self.places: list[KafkaPlace] = []
        self.closed = 0
        self._order, self._name = order, name

    def open(self, place: KafkaPlace, **_: Any) -> Opened:
        self.places.append(place)
        return self

    def close(self) -> None:
        self.closed += 1
        self._order.append(self._name)


class Cluster:
    """What the access opens. order: names in the order in which they were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        topic, _ = topic_of([], 0, 3)
        self.order: list[str] = []
        self.store = Opened(topic, self.order, "store")
        self.tail = Opened(topic, self.order, "tail")
        self.reader = Opened(topic, self.order, "reader")
        for name, one in (("KafkaLog", self.store), ("KafkaTail", self.tail), ("KafkaReader", self.reader)):
            monkeypatch.setattr(kafka_access, name, one)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.mark.req("EVS-20")
def test_all_connections_go_to_the_topic_of_the_configuration(cluster: Cluster, tmp_path: Path) -> None:
    access = KafkaAccess(tmp_path / "data", CONFIG)
    access.open_reader()
    (place,) = {*cluster.store.places, *cluster.tail.places, *cluster.reader.places}
    assert (place.servers, place.topic) == (("h:1",), "lane")
    assert access.data.stat().st_mode & 0o077 == 0
    assert access.checkpoints.list() == []
    assert (access.figures(), access.room) == (None, None), "the brokers keep them"
    access.upkeep()
    access.close()
    assert cluster.order == ["tail", "store"]


@pytest.mark.req("EVS-17")
def test_an_owner_s_spool_lies_in_the_data_directory_and_keeps_to_its_ceiling(
    cluster: Cluster, tmp_path: Path
) -> None:
    kafka = {"bootstrap_servers": ["h:1"], "topic": "lane", "spool_bytes": "64KiB"}
    config = Config.model_validate({"log": {"kind": "kafka", "kafka": kafka}})
    spool = KafkaAccess(tmp_path, config).spool()
    assert spool is not None
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    for number in range(100_000):
        entry = Entry(sample(number), Importance.SAMPLE, None, None, 0)
        spool.sketch(entry)
        spool.append(entry)
    assert spool.disk_bytes <= 64 << 10
    assert spool.discard() == 100_000


def test_raw_frames_go_to_a_topic_of_their_own(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[KafkaPlace, bytes, RawSettings]] = []
    monkeypatch.setattr(kafka_access, "KafkaRawFrames", lambda *words: made.append(words))
    monkeypatch.setattr(cluster.store, "log_id", LOG_ID, raising=False)
    KafkaAccess(tmp_path, CONFIG).raw_frames(CONFIG)
    ((place, log_id, settings),) = made
    assert (place.servers, place.topic, log_id) == (("h:1",), "picklog.raw", LOG_ID)
    assert (settings.age_us, settings.bytes_max) == (3_600_000_000, 10 * GIB)


def test_a_store_that_was_given_up_is_not_closed_again(cluster: Cluster, tmp_path: Path) -> None:
    access = KafkaAccess(tmp_path, CONFIG)
    access.give_up()
    access.close()
    assert cluster.order == ["store", "tail"]


def test_a_tail_that_cannot_be_opened_leaves_no_connection(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(place: KafkaPlace) -> None:
        raise KafkaUnreachable("nobody answers")

    monkeypatch.setattr(cluster.tail, "open", away)
    with pytest.raises(KafkaUnreachable):
        KafkaAccess(tmp_path, CONFIG)
    assert cluster.order == ["store"]


def test_a_tail_that_does_not_end_leaves_no_writer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = KafkaAccess(tmp_path, CONFIG)

    def stuck() -> None:
        raise TimeoutError

    monkeypatch.setattr(cluster.tail, "close", stuck)
    with pytest.raises(TimeoutError):
        access.close()
    assert cluster.order == ["store"]
