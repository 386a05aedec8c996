"""Roll-ups of a follower in the compacted topic: all of a call, or again. Real: test_kafka_follower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.audit_database import AuditRefused, BrokersAway
from app.audit_producer import ROLLUPS_TOPIC
from app.rollup_messages import rollup_message
from app.rollup_topic import RollupTopic
from ingest.log.kafka_keyed import Keyed, KeyedTopic
from ingest.log.kafka_settings import KafkaPlace, KafkaUnreachable, TopicRefused
from projections.audit.rollups import MINUTE_US, RolledPick, roll_up

PLACE = KafkaPlace(("127.0.0.1:1",), "picklog.rollups")
PICK = RolledPick(7, "load", False, 64, None, None, None, None, None, None, None, None)
ROWS = [roll_up(MINUTE_US, model, [PICK]) for model in ("small", "tiny")]


class Brokers:
    """They take messages. trouble: raised by the next calls of any kind."""

    def __init__(self) -> None:
        self.trouble: list[Exception] = []
        self.prepared: list[tuple[KafkaPlace, KeyedTopic]] = []
        self.sent: list[list[Keyed]] = []
        self.opened = self.closed = 0

    async def prepare(self, place: KafkaPlace, wanted: KeyedTopic) -> None:
        self._fail()
        self.prepared.append((place, wanted))

    async def open(self, *_: Any) -> Brokers:
        self._fail()
        self.opened += 1
        return self

    async def messages(self, messages: Sequence[Keyed]) -> None:
        self._fail()
        self.sent.append([*messages])

    async def close(self) -> None:
        self.closed += 1

    def _fail(self) -> None:
        if self.trouble:
            raise self.trouble.pop(0)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr("app.rollup_topic.prepare_keyed", found.prepare)
    monkeypatch.setattr("app.rollup_topic.KeyedSend.open", found.open)
    return found


async def test_the_topic_is_prepared_once_and_gets_what_stream_workers_send(brokers: Brokers) -> None:
    topic = RollupTopic(PLACE)
    await topic.publish(ROWS)
    await topic.publish(ROWS[:1])
    assert brokers.prepared == [(PLACE, ROLLUPS_TOPIC)] and brokers.opened == 1
    sent = [[(one.key, one.value, one.partition) for one in some] for some in brokers.sent]
    assert sent == [
        [(*rollup_message(row), None) for row in ROWS],
        [(*rollup_message(ROWS[0]), None)],
    ]
    await topic.close()
    await topic.close()
    assert brokers.closed == 1


async def test_a_connection_that_failed_is_thrown_away_and_the_next_call_begins_anew(
    brokers: Brokers,
) -> None:
    topic = RollupTopic(PLACE)
    brokers.trouble = [KafkaUnreachable("away")]
    with pytest.raises(BrokersAway, match="away"):
        await topic.publish(ROWS)
    assert (brokers.opened, brokers.closed, brokers.sent) == (0, 0, [])
    await topic.publish(ROWS)
    brokers.trouble = [KafkaUnreachable("they went")]
    with pytest.raises(BrokersAway, match="they went"):
        await topic.publish(ROWS)
    assert (brokers.opened, brokers.closed) == (1, 1)
    await topic.publish(ROWS)
    assert brokers.opened == 2 and len(brokers.sent) == 2


async def test_a_topic_of_another_kind_is_refused_by_name(brokers: Brokers) -> None:
    brokers.trouble = [TopicRefused("topic picklog.rollups has cleanup.policy=delete: set compact")]
    with pytest.raises(AuditRefused, match="set compact"):
        await RollupTopic(PLACE).publish(ROWS)
