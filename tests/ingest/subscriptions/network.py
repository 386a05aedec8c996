"""A network of the test's own: connections without sockets, publishers that say what they are told.

`FakeConnector` accepts every connection unless told otherwise; `peers` has each one made, oldest
first. Time is the event loop's, so tests under `looptime` wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ingest.subscriptions.addresses import parse_address
from ingest.subscriptions.connectors import ConnectFailed
from ingest.subscriptions.dial_gate import DialGate
from ingest.subscriptions.loop_watch import LoopWatch
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.subscriber import SubscriberPorts
from ingest.wire.publisher_frames import Sample, encode_sample_message
from ingest.wire.zmtp_frames import GREETING, encode_message, encode_ready
from projections.events.signals import (
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.identity import PublisherKey
from projections.notices import Notice
from projections.registry.fleet import Fleet, Publisher

NAMESPACE = "prod"
WORKER = 77


def publisher(publisher_id: int = 5, **fields: Any) -> Publisher:
    """A publisher of load at an address of its own."""
    known: dict[str, Any] = {
        "key": PublisherKey(fields.pop("namespace", NAMESPACE), publisher_id),
        "topic": "kv_metrics",
        "component": "decode",
        "endpoint": "generate",
        "address": f"tcp://10.0.0.1:{1 + publisher_id % 60_000}",
    }
    return Publisher(**{**known, **fields})


def fleet_of(*publishers: Publisher) -> Fleet:
    """A published fleet that has publishers and nothing else."""
    return Fleet(1, {}, tuple(sorted(publishers, key=lambda one: (one.topic, one.key[::-1]))), {}, {})


def sample(sequence: int, rank: int = 0, used: int = 0, worker_id: int = WORKER) -> Sample:
    return Sample(sequence, 1_700_000_000_000, worker_id, rank, None, None, used)


def message(
    sequence: int, rank: int = 0, used: int = 0, publisher_id: int = 5, worker_id: int = WORKER
) -> bytes:
    """One message as bytes of the wire."""
    return encode_message(encode_sample_message(publisher_id, sample(sequence, rank, used, worker_id)))


def unreadable(sequence: int, publisher_id: int = 5) -> bytes:
    """A numbered message whose payload is garbage."""
    frames = (b"kv_metrics", publisher_id.to_bytes(8, "big"), sequence.to_bytes(8, "big"))
    return encode_message((*frames, b"\x01\x00\x00\x00\x01\xc1"))


class Peer(asyncio.Transport):
    """The transport of one connection and the publisher at its other end."""

    def __init__(self, address: str, protocol: asyncio.BaseProtocol, host: str | None = None) -> None:
        parsed = parse_address(address)
        super().__init__({"peername": (host or parsed.host, parsed.port)} if parsed is not None else None)
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self.address = address
        self.protocol = protocol
        self.written = b""
        self.is_closed = False
        self.is_held = False
        self._unread = b""

    # what asyncio would do

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.written += bytes(data)

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None:
        self.is_held = True

    def resume_reading(self) -> None:
        self.is_held = False
        unread, self._unread = self._unread, b""
        asyncio.get_running_loop().call_soon(self.say, unread)

    # what the publisher does

    def say(self, data: bytes) -> None:
        """Bytes arrive, in read steps of our size; they wait while our side reads nothing."""
        data, self._unread = self._unread + data, b""
        while data and not self.is_closed:
            if self.is_held:
                self._unread = data
                return
            room = memoryview(self.protocol.get_buffer(-1))
            step = data[: len(room)]
            room[: len(step)] = step
            data = data[len(step) :]
            self.protocol.buffer_updated(len(step))

    def greet(self) -> None:
        """The whole handshake."""
        self.say(GREETING + encode_ready(b"PUB"))

    def hang_up(self) -> None:
        """The publisher closes."""
        self.abort()


class FakeConnector:
    """Accepts, and greets if `greets`. `outcomes` gives other ends to the next dials, in order."""

    transport = Transport.DIRECT

    def __init__(self, greets: bool = True) -> None:
        self.greets = greets
        self.peers: list[Peer] = []
        self.outcomes: list[Exception | asyncio.Event] = []
        self.default: Callable[[str], Exception | asyncio.Event | None] = lambda address: None
        self.peer_of: Callable[[str], str | None] = lambda address: None  # what a name leads to
        self.dialled_at_s: list[float] = []

    async def connect(self, address: str, protocol: asyncio.BaseProtocol) -> None:
        self.dialled_at_s.append(asyncio.get_running_loop().time())
        outcome = self.outcomes.pop(0) if self.outcomes else self.default(address)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            await outcome.wait()
        peer = Peer(address, protocol, self.peer_of(address))
        self.peers.append(peer)
        protocol.connection_made(peer)
        if self.greets:
            peer.greet()

    @property
    def peer(self) -> Peer:
        """The newest connection."""
        return self.peers[-1]

    def refuse(self, reason: Reason = Reason.DIAL_FAILED) -> None:
        """No dial succeeds any more."""
        self.default = lambda address: ConnectFailed(reason, "by the test")


class Heard:
    """Everything that was appended and told."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.notices: list[Notice] = []

    @property
    def samples(self) -> list[SampleReceived]:
        return [fact for fact in self.facts if isinstance(fact, SampleReceived)]

    @property
    def batches(self) -> list[KvBatchReceived]:
        return [fact for fact in self.facts if isinstance(fact, KvBatchReceived)]

    @property
    def refused(self) -> list[FrameRefused]:
        return [fact for fact in self.facts if isinstance(fact, FrameRefused)]

    @property
    def changes(self) -> list[SubscriptionChanged]:
        return [fact for fact in self.facts if isinstance(fact, SubscriptionChanged)]

    @property
    def states(self) -> list[tuple[str, str]]:
        """(state, reason) of each change."""
        return [(SubscriptionState(fact.state).label, fact.reason) for fact in self.changes]

    @property
    def covered(self) -> list[tuple[int, int]]:
        return [(fact.covers_from, fact.sequence) for fact in self.samples]


def never_late() -> float:
    """A clock for the watch of pauses by which no machine is ever too slow."""
    return 0.0


def ports(
    heard: Heard,
    connector: Any,
    *,
    random_unit: Callable[[], float] = lambda: 1.0,
    keep_raw: Callable[[tuple[bytes, ...]], int | None] | None = None,
    is_shedding: Callable[[], bool] = lambda: False,
) -> SubscriberPorts:
    """Ports of subscribers that this test drives itself."""
    return SubscriberPorts(
        heard.facts.append,
        connector,
        DialGate(),
        LoopWatch(lambda late_s: None, never_late),
        random_unit,
        heard.notices.append,
        keep_raw,
        is_shedding,
    )


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)
