"""What every stream promises its subscriber, whatever its family."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ingest.subscriptions.engine_stream import engine_plan
from ingest.subscriptions.event_stream import EVENT_PLAN
from ingest.subscriptions.message_stream import MessageStream, StreamPlan
from ingest.subscriptions.sample_stream import SAMPLE_PLAN
from ingest.wire.publisher_frames import encode_sample_message
from ingest.wire.zmtp_frames import Message
from projections.events.signals import Family
from tests.ingest.subscriptions.network import sample
from tests.ingest.subscriptions.stream_host import FakeHost
from tests.ingest.wire.engine_batches import SOURCE, batch, engine_message
from tests.ingest.wire.kv_messages import PUBLISHER, event, message

pytestmark = pytest.mark.looptime


class Kind(NamedTuple):
    """A stream and a good message of it by number."""

    plan: StreamPlan
    message: Callable[[int], Message]


KINDS = {
    "samples": Kind(SAMPLE_PLAN, lambda number: encode_sample_message(PUBLISHER, sample(number))),
    "events": Kind(EVENT_PLAN, lambda number: message([event(number + 1, "cleared")], number)),
    "engine": Kind(engine_plan(SOURCE), lambda number: engine_message(number, batch(["AllBlocksCleared"]))),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def begun(kind: Kind, host: FakeHost) -> MessageStream:
    stream = kind.plan.make(host)
    stream.begin()
    return stream


async def test_a_message_is_told_at_once_with_its_publisher_and_connection(kind: Kind) -> None:
    host = FakeHost()
    begun(kind, host).receive([kind.message(3)])
    (fact,) = host.facts
    assert fact[:5] == ("prod", PUBLISHER, 1, 3, 3)


async def test_another_connection_begins_its_numbers_anew(kind: Kind) -> None:
    host = FakeHost()
    stream = begun(kind, host)
    stream.receive([kind.message(900)])
    stream.finish()
    host.connect(stream)
    stream.receive([kind.message(0)])
    await asyncio.sleep(1)
    assert [fact[2:5] for fact in host.facts] == [(1, 900, 900), (2, 0, 0)]
    assert host.counts == {}


async def test_what_waits_while_the_log_sheds_is_told_later(kind: Kind) -> None:
    host = FakeHost()
    host.is_shedding_now = True
    stream = begun(kind, host)
    stream.receive([kind.message(0)])
    await asyncio.sleep(1)
    assert host.facts == []
    host.is_shedding_now = False
    await asyncio.sleep(0.1)
    assert len(host.facts) == 1
    assert not host.is_held


@pytest.mark.parametrize("is_shedding", [True, False])
async def test_an_end_tells_what_waits_only_to_a_log_that_takes_it(kind: Kind, is_shedding: bool) -> None:
    host = FakeHost()
    host.is_shedding_now = True
    stream = begun(kind, host)
    stream.receive([kind.message(0)])
    host.is_shedding_now = is_shedding
    stream.finish()
    assert len(host.facts) == (0 if is_shedding else 1)
    host.is_shedding_now = False
    await asyncio.sleep(60)
    assert len(host.facts) == (0 if is_shedding else 1), "nothing is told after the end"


async def test_what_is_forgotten_is_never_told(kind: Kind) -> None:
    host = FakeHost()
    host.is_shedding_now = True
    stream = begun(kind, host)
    stream.receive([kind.message(0)])
    stream.forget()
    host.is_shedding_now = False
    await asyncio.sleep(60)
    assert host.facts == []


async def test_garbage_is_counted_and_what_follows_is_taken(kind: Kind) -> None:
    host = FakeHost()
    stream = begun(kind, host)
    for garbage in ((), (b"x",), (b"x", b"y", b"z"), tuple(part[:-1] for part in kind.message(0))):
        stream.receive([garbage])
    stream.receive([kind.message(1)])
    await asyncio.sleep(1)
    assert sum(host.counts.values()) == 4
    assert len(host.facts) == 1


def test_each_plan_names_its_family_and_as_many_frames_as_its_messages_have(kind: Kind) -> None:
    family = Family.LOAD if kind.plan is SAMPLE_PLAN else Family.KV
    assert kind.plan.family is family
    assert len(kind.plan.limits.frame_bytes_max) == len(kind.message(0))
    assert kind.message(0)[0].startswith(kind.plan.topic)
