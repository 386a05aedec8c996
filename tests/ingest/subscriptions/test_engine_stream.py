"""An engine without a relay: what it missed, restarts of it, and what is never kept of it."""

from __future__ import annotations

import asyncio

import pytest

from ingest.subscriptions.engine_bindings import EngineBindings
from ingest.subscriptions.engine_stream import EngineStream, engine_plan
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.worker_places import WorkerPlace
from projections.identity import WorkerKey
from projections.notices import FrameResult, StatusNotice
from tests.ingest.subscriptions.stream_host import FakeHost
from tests.ingest.wire.engine_batches import SOURCE, batch, engine_message, stored_items, tokens

pytestmark = pytest.mark.looptime
BASE = 1 << 40


@pytest.fixture
def host() -> FakeHost:
    return FakeHost(keeps_raw=True)


@pytest.fixture
def stream(host: FakeHost) -> EngineStream:
    stream = EngineStream(SOURCE, host)
    stream.begin()
    return stream


class Finding:
    """A stream whose engine finds its worker, and the workers that stand."""

    source = SOURCE._replace(instance_id=None)

    def __init__(self, host: FakeHost) -> None:
        self.bindings = EngineBindings(host.notices.append, lambda: 0)
        self.bindings.replace([self.source])
        self.stream = EngineStream(self.source, host, self.bindings)

    def stand(self, *workers: int) -> None:
        self.bindings.follow(
            WorkerPlace(WorkerKey("prod", one), "10.0.0.7", "backend", "m", None, range(1)) for one in workers
        )


@pytest.fixture
def finding(host: FakeHost) -> Finding:
    return Finding(host)


def cleared(number: int) -> tuple[bytes, ...]:
    return engine_message(number, batch(["AllBlocksCleared"]))


def ids(host: FakeHost) -> list[int]:
    return [one.event_id for one in host.events]


async def test_batches_are_told_for_the_configured_worker(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([engine_message(3, batch(stored_items([7], tokens(1))))])
    (fact,) = host.batches
    assert fact[:5] == ("prod", host.key.publisher_id, 1, 3, 3)
    assert [(one.worker_id, one.event_id, one.engines) for one in host.events] == [(42, BASE + 1, (7,))]


async def test_no_frame_of_an_engine_is_kept(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([engine_message(3, batch(stored_items([7], tokens(1))))])
    assert (host.kept, host.batches[0].raw_digest) == ([], None)


@pytest.mark.field("B-066")
async def test_a_hole_in_the_numbers_leaves_out_an_id(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([cleared(1), cleared(2), cleared(5)])
    assert ids(host) == [BASE + 1, BASE + 2, BASE + 4]
    assert host.covered == [(1, 1), (2, 2), (5, 5)]


@pytest.mark.field("B-066")
async def test_numbers_that_go_back_are_another_engine(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([cleared(1), cleared(2), cleared(5), cleared(1), cleared(2)])
    assert host.renewals == [Reason.RESTARTED]
    assert ids(host)[3:] == [2 * BASE + 1, 2 * BASE + 2]
    assert [fact.connection for fact in host.batches] == [1, 1, 1, 2, 2]
    assert host.covered[3:] == [(1, 1), (2, 2)]
    assert host.counts == {}


async def test_a_number_that_comes_twice_is_left_out(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([cleared(1), cleared(1), cleared(2)])
    assert ids(host) == [BASE + 1, BASE + 2]
    assert host.counts == {FrameResult.DUPLICATE: 1}


@pytest.mark.req("KVX-19")
@pytest.mark.field("B-068")
async def test_what_cannot_be_read_leaves_out_an_id(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([cleared(1), engine_message(2, b"\xc1"), cleared(3), (b"", b"x"), cleared(4)])
    assert ids(host) == [BASE + 1, BASE + 3, BASE + 5]
    assert host.covered == [(1, 1), (2, 3), (4, 4)]
    assert host.counts == {FrameResult.MALFORMED: 2}


async def test_a_batch_of_which_nothing_is_taken_is_covered_by_the_next(
    stream: EngineStream, host: FakeHost
) -> None:
    foreign = stored_items([7], tokens(1), None, None, "GPU", None, None, 1, "mamba")
    stream.receive(
        [cleared(1), engine_message(2, batch(foreign)), engine_message(3, batch(["Ignored"])), cleared(4)]
    )
    assert host.covered == [(1, 1), (2, 4)]
    assert ids(host) == [BASE + 1, BASE + 2]
    assert host.counts == {FrameResult.UNSUPPORTED: 1}


@pytest.mark.field("B-065")
async def test_pairs_of_tokens_are_counted_and_said_once(stream: EngineStream, host: FakeHost) -> None:
    pairs = stored_items([7], [[n, n + 1] for n in range(16)])
    stream.receive([engine_message(number, batch(pairs, pairs)) for number in range(3)])
    assert host.counts == {FrameResult.UNSUPPORTED: 6}
    (notice,) = host.notices
    assert isinstance(notice, StatusNotice)
    assert notice.level == "warning"
    assert notice.detail == f"prod/{host.key.publisher_id}"


async def test_malformed_events_are_counted_one_by_one(stream: EngineStream, host: FakeHost) -> None:
    stream.receive([engine_message(1, batch(5, stored_items([1], [1]), ["AllBlocksCleared"]))])
    assert host.counts == {FrameResult.MALFORMED: 2}
    assert ids(host) == [BASE + 2]


async def test_of_a_long_topic_its_beginning_is_subscribed_and_all_of_it_compared(host: FakeHost) -> None:
    plan = engine_plan(SOURCE._replace(topic="k" * 250))
    assert plan.topic == b"k" * 200
    stream = plan.make(host)
    stream.begin()
    for length in (249, 250):
        stream.receive([engine_message(length, batch(["AllBlocksCleared"]), b"k" * length)])
    assert host.covered == [(250, 250)]


async def test_another_topic_is_refused(host: FakeHost) -> None:
    plan = engine_plan(SOURCE._replace(topic="kv@"))
    assert plan.topic == b"kv@"
    stream = plan.make(host)
    stream.begin()
    stream.receive([engine_message(1, batch(["AllBlocksCleared"]), b"other"),
                    engine_message(2, batch(["AllBlocksCleared"]), b"kv@pod@model")])  # fmt: skip
    assert host.counts == {FrameResult.TOPIC_MISMATCH: 1}
    assert len(host.events) == 1


@pytest.mark.req("EVS-16")
async def test_a_connection_with_another_number_counts_its_events_anew(
    stream: EngineStream, host: FakeHost
) -> None:
    stream.receive([cleared(1), cleared(2)])
    host.connection = 7
    stream.renumbered()
    stream.receive([cleared(3)])
    assert ids(host) == [BASE + 1, BASE + 2, 7 * BASE + 1]


async def test_batches_are_told_for_the_worker_that_is_found(finding: Finding, host: FakeHost) -> None:
    finding.stand(9)
    finding.stream.begin()
    finding.stream.receive([cleared(1)])
    assert [one.worker_id for one in host.events] == [9]


async def test_before_its_first_connection_what_an_earlier_process_told_is_ended(
    finding: Finding, host: FakeHost
) -> None:
    finding.stand(9)
    finding.stream.begin()
    assert (host.ends, host.renewals, host.connection) == ([1], [Reason.REBOUND], 2)
    host.connect(finding.stream)
    assert (host.ends, host.connection) == ([1], 3), "the worker is the same"
    finding.stream.receive([cleared(1)])
    assert ids(host) == [3 * BASE + 1]


async def test_another_worker_begins_with_nothing_of_the_one_before(finding: Finding, host: FakeHost) -> None:
    finding.stand(9)
    finding.stream.begin()
    finding.stream.receive([cleared(1)])
    finding.stand(10)
    finding.stream.receive([cleared(2)])
    assert host.ends == [1, 2]
    assert [(one.worker_id, one.event_id) for one in host.events] == [(9, 2 * BASE + 1), (10, 3 * BASE + 1)]
    assert [fact.connection for fact in host.batches] == [2, 3]


async def test_while_nobody_fits_messages_are_counted_and_dropped(finding: Finding, host: FakeHost) -> None:
    finding.stream.begin()
    finding.stream.receive([cleared(1), engine_message(2, b"\xc1")])
    assert (host.batches, host.counts) == ([], {FrameResult.IDENTITY_MISMATCH: 2})
    finding.stand(9)
    finding.stream.receive([cleared(3)])
    finding.stand(9, 10)
    finding.stream.receive([cleared(4)])
    assert [one.worker_id for one in host.events] == [9]
    assert host.counts == {FrameResult.IDENTITY_MISMATCH: 3}


async def test_what_waited_for_the_log_goes_with_the_worker_before(finding: Finding, host: FakeHost) -> None:
    finding.stand(9)
    finding.stream.begin()
    host.is_shedding_now = True
    finding.stream.receive([cleared(1)])
    finding.stand(10)
    finding.stream.receive([cleared(2)])
    host.is_shedding_now = False
    await asyncio.sleep(1)
    assert [one.worker_id for one in host.events] == [10]
    assert not host.is_held


async def test_a_change_without_a_connection_is_told_with_the_next_one(
    finding: Finding, host: FakeHost
) -> None:
    finding.stand(9)
    finding.stream.begin()
    finding.stream.forget()
    finding.stand(10)
    finding.stand(11)
    assert host.ends == [1]
    host.connect(finding.stream)
    finding.stream.receive([cleared(1)])
    assert host.ends == [1, 3]
    assert [one.worker_id for one in host.events] == [11]


async def test_another_number_of_the_connection_ends_nothing(finding: Finding, host: FakeHost) -> None:
    finding.stand(9)
    finding.stream.begin()
    host.connection = 7
    finding.stream.renumbered()
    finding.stream.receive([cleared(1)])
    assert host.ends == [1]
    assert [(one.worker_id, one.event_id) for one in host.events] == [(9, 7 * BASE + 1)]
