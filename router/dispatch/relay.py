"""An answer's bytes from a backend to the client, untouched.

`Relay` is the interface; `PushRelay` hands each piece on in the callback that brought it,
so that a token costs no task switch. Where the client is slower than the backend, reading
from the backend stops until the client has caught up; nothing is held here. No event is
parsed and no byte of the body changes. The tail is watched for usage as it goes by.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import NamedTuple, Protocol

from router.dispatch.connection import UpstreamError, UpstreamExpired
from router.dispatch.shim_client import Begun
from router.dispatch.usage import Tail, Usage


class RelayEnd(Enum):
    """How the backend's side of a relay ended."""

    WHOLE = 1
    LOST = 2
    EXPIRED = 3


class Relayed(NamedTuple):
    """What a relay saw go by. between_events: whether it stopped at the border of an event."""

    end: RelayEnd
    usage: Usage
    between_events: bool


class Sink(Protocol):
    """The client's side."""

    def begin(self) -> bytes:
        """The head, to go out with the first bytes."""

    def write(self, data: bytes, head: bytes = b"") -> None:
        """Bytes of the body, after `head`. Raises ConnectionError where the client has gone."""

    @property
    def is_full(self) -> bool:
        """Whether the client is slower than what was written."""

    async def drained(self) -> None:
        """Return once the client may be given more. Raises ConnectionError."""


class Relay(Protocol):
    """Moves one answer."""

    async def run(self, begun: Begun, sink: Sink, idle_us: int, due_s: float) -> Relayed:
        """All of the answer from `begun` to `sink`, its head first.

        idle_us: longest silence of the backend. due_s: loop time of the last byte.
        Raises ConnectionError where the client has gone; closing `begun` is the caller's.
        """


class PushRelay:
    """Each piece goes on in the callback that brought it."""

    async def run(self, begun: Begun, sink: Sink, idle_us: int, due_s: float) -> Relayed:
        """See Relay."""
        flow = _Flow(begun, sink)
        sink.write(begun.first, sink.begin())
        flow.tail.feed(begun.first)
        connection = begun.connection
        if sink.is_full:
            await sink.drained()
        connection.push_to(flow, idle_us / 1_000_000, due_s)
        try:
            end = await flow.done
        finally:
            connection.push_to(None)
            flow.close()
        return Relayed(end, flow.tail.usage(), end is RelayEnd.WHOLE or flow.tail.ends_event())


class _Flow:
    """Receives what the backend sends."""

    def __init__(self, begun: Begun, sink: Sink) -> None:
        self._connection = begun.connection
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._catching_up: asyncio.Task[None] | None = None
        self.tail = Tail()
        self.done: asyncio.Future[RelayEnd] = self._loop.create_future()

    def on_body(self, data: bytes) -> None:
        """Body bytes have come."""
        if self.done.done():
            return
        self.tail.feed(data)
        try:
            self._sink.write(data)
        except ConnectionError as problem:
            self.done.set_exception(problem)
            return
        if self._sink.is_full and self._catching_up is None:
            self._connection.hold()
            self._catching_up = self._loop.create_task(self._catch_up())

    def on_end(self) -> None:
        """The answer is whole."""
        if not self.done.done():
            self.done.set_result(RelayEnd.WHOLE)

    def on_error(self, error: UpstreamError) -> None:
        """It will not be."""
        if not self.done.done():
            expired = isinstance(error, UpstreamExpired)
            self.done.set_result(RelayEnd.EXPIRED if expired else RelayEnd.LOST)

    def close(self) -> None:
        """Nothing is received any more."""
        if self._catching_up is not None:
            self._catching_up.cancel()

    async def _catch_up(self) -> None:
        """Read on once the client has taken what was written."""
        try:
            await self._sink.drained()
        except ConnectionError as problem:
            if not self.done.done():
                self.done.set_exception(problem)
            return
        self._catching_up = None
        self._connection.go_on()
