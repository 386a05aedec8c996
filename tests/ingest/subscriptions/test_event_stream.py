"""Block events on their way to the log: every frame a record, in order, or a counted refusal."""

from __future__ import annotations

import asyncio

import pytest

from ingest.subscriptions.event_stream import BatchQueue, EventStream, NumberRun
from projections.events.signals import KvBatchReceived
from projections.notices import FrameResult
from tests.ingest.subscriptions.stream_host import FakeHost
from tests.ingest.wire.kv_messages import AT_MS, PUBLISHER, event, message, removed, stored

pytestmark = pytest.mark.looptime


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def stream(host: FakeHost) -> EventStream:
    stream = EventStream(host)
    stream.begin()
    return stream


def frame(number: int) -> tuple[bytes, ...]:
    return message([event(number + 1, removed(number))], number)


def bad(number: int) -> tuple[bytes, ...]:
    return message(b"\xc1", number)


@pytest.mark.req("KVX-02")
async def test_each_frame_is_a_record_with_its_columns(stream: EventStream, host: FakeHost) -> None:
    stream.receive([message([event(1, stored((5, 6), parent=7)), event(2, removed(5))], 4)])
    (fact,) = host.batches
    assert fact[:5] == ("prod", PUBLISHER, 1, 4, 4)
    assert (fact.published_at_ms, fact.raw_digest) == (AT_MS, None)
    assert [(one.event_id, one.parent, one.engines) for one in host.events] == [(1, 7, (5,)), (2, None, (5,))]


async def test_frames_of_one_read_step_stay_apart_and_in_order(stream: EventStream, host: FakeHost) -> None:
    stream.receive([frame(n) for n in range(10)])
    assert [one.event_id for one in host.events] == [*range(1, 11)]
    assert host.covered == [(n, n) for n in range(10)]


@pytest.mark.req("KVX-19")
async def test_refused_frames_are_counted_and_covered_by_the_next(
    stream: EventStream, host: FakeHost
) -> None:
    stream.receive([frame(0), bad(1), bad(2), frame(3), message([5], 4), frame(5)])
    assert host.covered == [(0, 0), (1, 3), (4, 5)]
    assert host.counts == {FrameResult.MALFORMED: 3}


async def test_a_hole_in_the_numbers_stays_visible(stream: EventStream, host: FakeHost) -> None:
    stream.receive([frame(1), frame(2), bad(3), frame(9), frame(10)])
    assert host.covered == [(1, 1), (2, 2), (9, 9), (10, 10)]


async def test_a_repeated_number_is_left_out(stream: EventStream, host: FakeHost) -> None:
    stream.receive([frame(4), frame(4), frame(2), frame(5)])
    assert host.covered == [(4, 4), (5, 5)]
    assert host.counts == {FrameResult.DUPLICATE: 2}


async def test_a_number_of_a_broken_frame_is_not_trusted_beyond_the_next(
    stream: EventStream, host: FakeHost
) -> None:
    stream.receive([frame(0), bad(1 << 60), frame(1)])
    assert host.covered == [(0, 0), (1, 1)]


@pytest.mark.field("B-048")
async def test_events_that_cannot_be_read_are_counted_and_the_rest_is_told(
    stream: EventStream, host: FakeHost
) -> None:
    stream.receive([message([event(1, removed(1)), 5, event(3, "gone"), event(4, removed(4))], 0)])
    assert [one.event_id for one in host.events] == [1, 4]
    assert host.counts == {FrameResult.MALFORMED: 2}


async def test_frames_without_events_make_no_records(stream: EventStream, host: FakeHost) -> None:
    stream.receive([frame(0), *(message([], n) for n in range(1, 100)), frame(100)])
    assert host.covered == [(0, 0), (1, 100)]
    assert host.counts == {}


async def test_raw_frames_are_kept_for_each_record() -> None:
    host = FakeHost(keeps_raw=True)
    stream = EventStream(host)
    stream.begin()
    stream.receive([frame(0), bad(1), frame(2)])
    assert [fact.raw_digest for fact in host.batches] == [1001, 1002]
    assert host.kept == [frame(0), frame(2)]


@pytest.mark.field("B-071")
async def test_while_the_log_sheds_nothing_more_is_read_and_nothing_is_lost(
    stream: EventStream, host: FakeHost
) -> None:
    host.is_shedding_now = True
    stream.receive([frame(0), frame(1)])
    assert host.is_held
    await asyncio.sleep(60)
    assert host.facts == []
    host.is_shedding_now = False
    await asyncio.sleep(0.1)
    assert not host.is_held
    stream.receive([frame(2)])
    assert host.covered == [(0, 0), (1, 1), (2, 2)]


async def test_raw_frames_are_kept_when_their_batch_is_told(host: FakeHost) -> None:
    host.keeps_raw, host.is_shedding_now = True, True
    queue = BatchQueue(host)
    queue.offer(KvBatchReceived("prod", 5, 1, 0, 0, b"", b"", 0), (b"x",))
    assert (len(queue), host.kept) == (1, [])
    host.is_shedding_now = False
    await asyncio.sleep(0.1)
    assert (len(queue), host.kept, host.batches[0].raw_digest) == (0, [(b"x",)], 1001)


def test_numbers_join_over_what_is_filled() -> None:
    run = NumberRun()
    run.fill(3)
    assert run.take(5) == 5
    run.fill(6)
    run.fill(7)
    run.fill(9)
    assert (run.is_repeat(7), run.is_repeat(8)) == (True, False)
    assert (run.take(8), run.take(9), run.take(11)) == (6, 9, 11)


async def test_what_is_dropped_while_the_log_sheds_leaves_the_connection_held_until_then(
    host: FakeHost,
) -> None:
    host.is_shedding_now = True
    queue = BatchQueue(host)
    first = KvBatchReceived("prod", 5, 1, 0, 0, b"", b"", 0)
    queue.offer(first, None)
    queue.drop()
    queue.offer(first._replace(sequence=1), None)
    assert (len(queue), host.is_held) == (1, True)
    host.is_shedding_now = False
    await asyncio.sleep(0.1)
    assert ([fact.sequence for fact in host.batches], host.is_held) == ([1], False)
