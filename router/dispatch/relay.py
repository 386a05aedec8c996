"""An answer's bytes from a backend to the client, untouched.

`Relay` is the interface; `PullRelay` its first form: take what has come, write it, wait
where the client is slow. No event is parsed and no byte of the body changes. The tail is
watched for usage as it goes by.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import NamedTuple, Protocol

from router.dispatch.shim_client import Begun
from router.dispatch.upstream import IDLE, TOTAL, UpstreamExpired, UpstreamLost
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
    """The client's side, opened before a relay begins."""

    async def write(self, data: bytes) -> None:
        """Send bytes of the body; returns once the client may be given more.

        Raises ConnectionError where the client has gone.
        """


class Relay(Protocol):
    """Moves one answer."""

    async def run(self, begun: Begun, sink: Sink, idle_us: int, due_s: float) -> Relayed:
        """All of the answer from `begun` to `sink`.

        idle_us: longest silence of the backend. due_s: loop time of the last byte.
        Raises what the sink raises; closing `begun` is the caller's.
        """


class PullRelay:
    """Reads, writes, reads."""

    async def run(self, begun: Begun, sink: Sink, idle_us: int, due_s: float) -> Relayed:
        """See Relay."""
        tail = Tail()
        data = begun.first
        connection = begun.connection
        clock = asyncio.get_running_loop().time
        idle_s = idle_us / 1_000_000
        try:
            while data:
                tail.feed(data)
                await sink.write(data)
                if connection.is_drained:
                    break
                silent_s = clock() + idle_s
                connection.limit(*((IDLE, silent_s) if silent_s < due_s else (TOTAL, due_s)))
                data = await connection.read()
        except UpstreamExpired:
            return Relayed(RelayEnd.EXPIRED, tail.usage(), tail.ends_event())
        except UpstreamLost:
            return Relayed(RelayEnd.LOST, tail.usage(), tail.ends_event())
        return Relayed(RelayEnd.WHOLE, tail.usage(), True)
