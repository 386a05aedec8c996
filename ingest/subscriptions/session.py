"""One connection to a publisher: the ZMTP machine behind an asyncio transport.

Bytes are read straight into the machine's 2 KiB, so an idle connection has no reader's buffer
of its own, and every read step is handled to its end within the callback: a publisher is never
kept waiting by us. What we write waits in the machine, which bounds it, until the transport has
sent everything before: a peer that pings and never reads fills no buffer of ours.

The session ends once, for one reason, whoever finds it first: the peer closed, it broke the
protocol, the handshake took too long, or our side ended it.

Sources: requirement rows ZMTP-05..09, decision 62; field report B-073.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from ingest.subscriptions.loop_watch import LoopWatch
from ingest.subscriptions.reasons import Reason
from ingest.wire.zmtp import ZmtpMachine, ZmtpPhase, ZmtpRefused
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import ZmtpLimits


class SessionListener(Protocol):
    """Who a session speaks to. Called on the event loop; nothing is called after `session_ended`."""

    def session_connected(self) -> None:
        """The handshake is over and the subscription sent."""

    def session_received(self, messages: list[Message]) -> None:
        """Whole messages, oldest first, at least one."""

    def session_ended(self, reason: Reason, detail: str) -> None:
        """It is over."""


class ZmtpSession(asyncio.BufferedProtocol):
    """See the module's text."""

    __slots__ = (
        "_is_connected", "_is_paused", "_limits", "_listener", "_machine", "_timer", "_transport", "_watch",
        "has_ended",
    )  # fmt: skip

    def __init__(self, limits: ZmtpLimits, topic: bytes, listener: SessionListener, watch: LoopWatch) -> None:
        self._machine = ZmtpMachine(limits, topic)
        self._limits = limits
        self._listener = listener
        self._watch = watch
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_connected = False
        self._is_paused = False
        self.has_ended = False

    @property
    def peer(self) -> str | None:
        """Numeric address of the other end, None without a connection or where the transport has none."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return name[0] if isinstance(name, tuple) and name and isinstance(name[0], str) else None

    def end(self, reason: Reason, detail: str = "") -> None:
        """Close at once; unread and unsent bytes are gone. Only the first call counts."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._listener.session_ended(reason, detail)

    def hold(self) -> None:
        """Read nothing more until `release`; what the peer sends waits in the socket, then with the peer."""
        if self._transport is not None and not self.has_ended:
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on."""
        if self._transport is not None and not self.has_ended:
            self._transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, and give the peer its time to do the same."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio
        self._transport = transport
        if self.has_ended:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # told as soon as anything waits
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.handshake_us / 1e6, self.end, Reason.HANDSHAKE_TIMEOUT)
        self._send()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for one read step."""
        return self._machine.read_into()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle one read step."""
        self._watch.check()
        if self.has_ended:
            return  # by this very check: what was read is older than the pause
        violation: ZmtpRefused | None = None
        try:
            messages = self._machine.receive_read(nbytes)
        except ZmtpRefused as refused:
            violation, messages = refused, refused.messages
        try:
            if not self._is_connected and (messages or self._machine.phase is ZmtpPhase.STREAMING):
                self._connected()
            if messages:
                self._listener.session_received(messages)
        except Exception as problem:  # whatever the fleet sends must not end more than its own session
            self.end(Reason.FAULT, f"{type(problem).__name__}: {problem}")
            return
        if violation is not None:
            self.end(Reason.TRANSPORT_REFUSED, violation.reason.value)
        else:
            self._send()

    def eof_received(self) -> bool:
        """The peer will not write any more; there is nothing to wait for."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by the peer or by keepalive, unless `end` was there first."""
        self._transport = None
        self.end(Reason.CLOSED, "" if exc is None else str(exc))

    def pause_writing(self) -> None:
        """Bytes wait in the transport."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """All were sent."""
        self._is_paused = False
        self._send()

    def _connected(self) -> None:
        self._is_connected = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listener.session_connected()

    def _send(self) -> None:
        if self._is_paused or self.has_ended or self._transport is None:
            return
        outgoing = self._machine.bytes_to_send()
        if outgoing:
            self._transport.write(outgoing)
