"""The bounded way of raw frames to a topic, over a producer that answers as told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingest.log import kafka_raw_frames
from ingest.log.kafka_raw_frames import (
    BATCH_BYTES,
    FRAME_COST,
    QUEUE_BYTES_MAX,
    QUEUE_FRAMES_MAX,
    KafkaRawFrames,
)
from ingest.log.kafka_raw_topic import read_header
from ingest.log.kafka_send import SendRefused, SendUnclear
from ingest.log.kafka_settings import KafkaPlace, TopicRefused
from ingest.log.raw_frames import RawSettings, raw_digest
from projections.bounds import KV_FRAME_BYTES_MAX, MIB

LOG = bytes(range(16))
PLACE = KafkaPlace(("broker:9092",), "raw", 1)
PATIENCE_S = 10.0

Records = Sequence[tuple[bytes, tuple[str, bytes]]]


class Broker:
    """Takes batches, in the thread of the client. faults: what it does instead, one for each attempt.

    gate: cleared to hold a batch under way.
    """

    def __init__(self) -> None:
        self.batches: list[Records] = []
        self.faults: list[Exception] = []
        self.prepare_faults: list[Exception] = []
        self.opened = self.left = 0
        self.gate = threading.Event()
        self.gate.set()
        self.changed = threading.Condition()

    async def prepare(self, *_: object) -> list[str]:
        self._tell()
        if self.prepare_faults:
            raise self.prepare_faults.pop(0)
        return ["it differs"]

    async def open(self, *_: object) -> Sender:
        self.opened += 1
        return Sender(self)

    def take(self, records: Records) -> None:
        assert self.gate.wait(PATIENCE_S)
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            self.batches.append(records)
        self._tell()
        if fault is not None:
            raise fault

    def until(self, holds: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE_S)

    def frames(self) -> list[tuple[int, bytes]]:
        """(offset, frame) of everything that arrived; each header is its frame's."""
        found = []
        for batch in list(self.batches):
            for frame, header in batch:
                place = read_header([header])
                assert place is not None
                assert (place.log_id, place.digest) == (LOG, raw_digest(frame))
                found.append((place.offset, frame))
        return found

    def _tell(self) -> None:
        with self.changed:
            self.changed.notify_all()


class Sender:
    """In the place of a KafkaSend."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def batches(self, records: Records) -> None:
        self._broker.take(records)

    async def abandon(self) -> None:
        self._broker.left += 1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(kafka_raw_frames, "prepare_raw", broker.prepare)
    monkeypatch.setattr(kafka_raw_frames, "KafkaSend", broker)
    monkeypatch.setattr(kafka_raw_frames, "LINGER_S", 0.0)
    monkeypatch.setattr(kafka_raw_frames, "AGAIN_S", 0.0)
    return broker


@pytest.fixture
def raw(broker: Broker) -> Iterator[KafkaRawFrames]:
    frames = KafkaRawFrames(PLACE, LOG, RawSettings())
    yield frames
    broker.gate.set()
    frames.close()


@pytest.mark.req("EVS-02")
def test_frames_arrive_in_order_with_their_places(broker: Broker, raw: KafkaRawFrames) -> None:
    for number in range(100):
        raw.put(number * 3, b"frame %d" % number, number)
    broker.until(lambda: len(broker.frames()) == 100)
    assert broker.frames() == [(number * 3, b"frame %d" % number) for number in range(100)]
    broker.until(lambda: raw.waiting_bytes == 0)
    assert raw.dropped == 0


def test_closing_sends_what_waits(broker: Broker) -> None:
    raw = KafkaRawFrames(PLACE, LOG, RawSettings())
    for number in range(1000):
        raw.put(number, bytes(2000), number)
    raw.close()
    assert [offset for offset, _ in broker.frames()] == list(range(1000))
    assert (raw.dropped, raw.waiting_bytes) == (0, 0)
    assert broker.opened == broker.left == 1


@pytest.mark.req("EVS-02")
def test_what_does_not_fit_is_dropped_and_counted_and_memory_stays(
    broker: Broker, raw: KafkaRawFrames
) -> None:
    broker.gate.clear()
    size = 500_000
    fitting = QUEUE_BYTES_MAX // (size + FRAME_COST)
    for number in range(3 * fitting):
        raw.put(number, bytes(size), number)
        assert raw.waiting_bytes <= QUEUE_BYTES_MAX
    assert raw.dropped == 2 * fitting
    broker.gate.set()
    broker.until(lambda: len(broker.frames()) == fitting)
    assert [offset for offset, _ in broker.frames()] == list(range(fitting)), "the oldest are kept"
    broker.until(lambda: raw.waiting_bytes == 0)
    raw.put(1 << 20, b"later", 1)
    broker.until(lambda: len(broker.frames()) == fitting + 1)


def test_many_small_frames_are_bounded_by_their_number(broker: Broker, raw: KafkaRawFrames) -> None:
    broker.gate.clear()
    for number in range(QUEUE_FRAMES_MAX + 10):
        raw.put(number, b"x", number)
    assert raw.dropped == 10


def test_a_frame_above_the_ceiling_and_one_dropped_before_are_counted(
    broker: Broker, raw: KafkaRawFrames
) -> None:
    raw.put(1, bytes(KV_FRAME_BYTES_MAX + 1), 1)
    raw.drop()
    raw.put(2, bytes(KV_FRAME_BYTES_MAX), 2)
    broker.until(lambda: len(broker.frames()) == 1)
    assert raw.dropped == 2


def test_no_batch_is_larger_than_a_topic_must_take(broker: Broker, raw: KafkaRawFrames) -> None:
    broker.gate.clear()
    for number, size in enumerate((10, MIB, 10, 600_000, 600_000, *[20] * 9000)):
        raw.put(number, bytes(size), number)
    broker.gate.set()
    broker.until(lambda: len(broker.frames()) == 9005)
    assert max(sum(len(frame) + FRAME_COST for frame, _ in batch) for batch in broker.batches) <= BATCH_BYTES
    assert len(broker.batches) < 10


def test_an_unclear_batch_is_sent_again(broker: Broker, raw: KafkaRawFrames) -> None:
    broker.faults = [SendUnclear("KafkaTimeoutError"), SendUnclear("KafkaTimeoutError")]
    raw.put(1, b"one", 1)
    broker.until(lambda: broker.frames() == [(1, b"one")])
    assert (broker.opened, raw.dropped) == (3, 0)


def test_a_batch_that_the_broker_refuses_is_dropped(broker: Broker, raw: KafkaRawFrames) -> None:
    broker.faults = [SendRefused("MessageSizeTooLargeError")]
    raw.put(1, b"one", 1)
    broker.until(lambda: raw.dropped == 1)
    raw.put(2, b"two", 2)
    broker.until(lambda: broker.frames() == [(2, b"two")])


def test_a_topic_that_will_not_do_is_told_once_and_asked_again(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.prepare_faults = [TopicRefused("topic raw has 3 partitions")] * 3 + [OSError("no route")]
    raw = KafkaRawFrames(PLACE, LOG, RawSettings())
    raw.put(1, b"one", 1)
    broker.until(lambda: broker.frames() == [(1, b"one")])
    raw.close()
    said = capsys.readouterr().out
    assert said.count("topic raw has 3 partitions") == 1
    assert said.count("cannot be reached") == 1
    assert said.index("does not take them") < said.index("raw frames go to a topic") < said.index("differs")


def test_a_topic_that_was_made_anew_and_will_not_do_is_not_used_on(
    broker: Broker, raw: KafkaRawFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_raw_frames, "CHECK_S", 0.0)
    raw.put(1, b"before", 1)
    broker.until(lambda: len(broker.batches) == 1)
    broker.prepare_faults.append(TopicRefused("raw has 3 partitions"))
    with capture_logs() as said:
        raw.put(2, b"behind", 2)
        broker.until(lambda: len(broker.batches) == 2)
    assert [line["cause"] for line in said if "cause" in line] == ["raw has 3 partitions"]
    assert broker.opened == 2, "begun anew behind the refusal"
    assert broker.frames() == [(1, b"before"), (2, b"behind")]


def test_closing_while_no_broker_answers_ends_and_counts_what_is_lost(broker: Broker) -> None:
    broker.prepare_faults = [TopicRefused("no")]
    raw = KafkaRawFrames(PLACE, LOG, RawSettings())
    broker.faults = [SendUnclear("x")] * 10_000
    for number in range(5):
        raw.put(number, b"frame", number)
    raw.close()
    assert raw.dropped == 5
    raw.put(6, b"late", 6)
    assert raw.waiting_bytes <= QUEUE_BYTES_MAX, "nobody sends it, nothing fails"
