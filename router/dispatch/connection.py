"""One HTTP/1.1 connection to a backend, one request at a time.

Written for a router: the head is parsed, body bytes come out as they went in (minus chunk
framing), nothing is decompressed, nothing is repeated behind the caller's back. Three
things make it an own client rather than a library's:

- it says whether a request is *known unsent*: the connection was found dead before the
  first byte, or died while bytes of the request were still in our own buffer, so that the
  peer cannot have seen all of it (B-103, B-104);
- an idle connection can be looked at before use: whatever waits on it, an end of stream or
  bytes nobody asked for, means that it is dead;
- reading stops while more than BUFFER_HIGH_BYTES wait for a slow client (B-108).
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import Final, Protocol, cast

from projections.bounds import KIB
from router.dispatch.deadline import Deadline
from router.dispatch.heads import (
    HEAD_BYTES_MAX,
    AnswerHead,
    BodyDecoder,
    Framing,
    HeadRefused,
    body_decoder,
    parse_head,
)

BUFFER_HIGH_BYTES: Final = 64 * KIB
FIRST_BYTE: Final = "first_byte"
IDLE: Final = "idle"
TOTAL: Final = "total"
INTERIM_MAX: Final = 8  # 1xx heads before the answer
_JOINED_BYTES_MAX: Final = 64 * KIB  # head and body of a request go out as one write up to here
_WAITING_EVENTS: Final = select.POLLIN | select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class UpstreamError(Exception):
    """Root of what a backend connection can do wrong.

    UpstreamError
     +- ConnectFailed   no connection was made; nothing was sent
     +- UpstreamLost    it broke; `unsent` where the request cannot have been seen whole
     +- UpstreamExpired a deadline of ours passed; `cause` says which
    """


class ConnectFailed(UpstreamError):
    """No connection was made, or not in time."""


class UpstreamLost(UpstreamError):
    """The connection broke, or what came was no HTTP."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class UpstreamExpired(UpstreamError):
    """A deadline passed. cause: first_byte, idle or total."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Receiver(Protocol):
    """Takes a body in the callbacks that bring it. Must not raise."""

    def on_body(self, data: bytes) -> None:
        """Bytes of the body, never empty."""

    def on_end(self) -> None:
        """The body was whole."""

    def on_error(self, error: UpstreamError) -> None:
        """It will not be."""


class UpstreamConnection(asyncio.Protocol):
    """One connection, one request at a time: `send`, `head`, then `read` until b"" or `push_to`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._raw = b""  # an incomplete head
        self._head: AnswerHead | None = None
        self._decoder: BodyDecoder | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._complete = True
        self._error: UpstreamError | None = None
        self._unsent = False
        self._answered = False
        self._interim = 0
        self._bodiless = False
        self._deadline = Deadline(loop, self._on_due)
        self._waiting: select.poll | None = None
        self._receiver: Receiver | None = None
        self._idle_s = 0.0
        self._total_due_s = 0.0
        self.idle_since_s = 0.0

    # callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio
        self._transport = transport
        # any byte that the kernel has not taken shows as a pause, see `unsent`
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """Part of the request is still in our own buffer."""
        self._unsent = True

    def resume_writing(self) -> None:
        """The kernel has all of the request."""
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._error is not None:
            return
        if self._complete:  # nobody asked
            self._break(UpstreamLost("unasked bytes"))
            return
        self._answered = True
        try:
            if self._head is None:
                self._take_head(data)
            else:
                self._take_body(data)
        except HeadRefused as problem:
            self._break(UpstreamLost(f"no readable answer: {problem}"))

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        if self._head is not None and self._head.framing is Framing.UNTIL_CLOSE and not self._complete:
            self._complete = True
            self._tell()
        self._break(UpstreamLost("closed", unsent=self._known_unsent()))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._error is None:
            self._error = UpstreamLost("connection lost", unsent=self._known_unsent())
        self._transport = None
        self._deadline.cancel()
        self._tell()

    # one request

    def send(self, head: bytes, body: bytes, *, bodiless: bool = False) -> None:
        """Write a request. The connection is fresh or was taken from the idle ones.

        bodiless: the answer has no body whatever its head says (HEAD).
        """
        self._head = None
        self._decoder = None
        self._complete = False
        self._answered = False
        self._unsent = False
        self._interim = 0
        self._receiver = None
        self._bodiless = bodiless
        transport = self._transport
        if transport is None or transport.is_closing():
            self._error = self._error or UpstreamLost("closed before sending", unsent=True)
            return
        if len(body) <= _JOINED_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def limit(self, cause: str, due_s: float) -> None:
        """Expire with `cause` at loop time `due_s`, unless another limit is set before."""
        self._deadline.set(cause, due_s)

    async def head(self) -> AnswerHead:
        """The answer's head. Raises UpstreamLost, UpstreamExpired."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises UpstreamLost, UpstreamExpired."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._take_buffered()

    def push_to(self, receiver: Receiver | None, idle_s: float = 0.0, due_s: float = 0.0) -> None:
        """Hand the rest of the body to a receiver as it comes, instead of `read`; None ends that.

        idle_s: longest silence, from each piece on. due_s: loop time of the last byte.
        """
        self._receiver = receiver
        self._idle_s, self._total_due_s = idle_s, due_s
        if receiver is None:
            return
        self._renew_limit()
        if self._chunks:
            receiver.on_body(self._take_buffered())
        self._tell()

    def hold(self) -> None:
        """Stop reading: the receiver is full."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            self._renew_limit()
            if self._transport is not None:
                self._transport.resume_reading()

    def _renew_limit(self) -> None:
        silent_s = self._loop.time() + self._idle_s
        if silent_s < self._total_due_s:
            self.limit(IDLE, silent_s)
        else:
            self.limit(TOTAL, self._total_due_s)

    def _tell(self) -> None:
        """Wake whoever reads, or tell the receiver how it stands."""
        receiver = self._receiver
        if receiver is None:
            self._wake()
        elif self._complete:
            receiver.on_end()
        elif self._error is not None:
            receiver.on_error(self._error)

    def _take_buffered(self) -> bytes:
        chunks = self._chunks
        data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return data

    @property
    def is_drained(self) -> bool:
        """Whether the whole answer has come and was read."""
        return self._complete and not self._chunks

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the answer ended by its framing, and is read."""
        head = self._head
        return (
            self._complete
            and self._error is None
            and not self._chunks
            and not self._unsent
            and head is not None
            and head.keep_alive
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def looks_alive(self) -> bool:
        """Whether an idle connection still is: nothing waits on its socket."""
        transport = self._transport
        if self._error is not None or transport is None or transport.is_closing():
            return False
        if self._waiting is None:
            raw = transport.get_extra_info("socket")
            if raw is None:
                return False
            self._waiting = select.poll()
            self._waiting.register(raw.fileno(), _WAITING_EVENTS)
        return not self._waiting.poll(0)

    def abort(self) -> None:
        """Close at once; whoever waits gets UpstreamLost."""
        self._break(UpstreamLost("closed by the router"))

    def rest(self) -> None:
        """Go idle. A timer that is left finds nothing to do, or serves the next request."""
        self.idle_since_s = self._loop.time()

    # inside

    def _take_head(self, data: bytes) -> None:
        raw = self._raw + data if self._raw else data
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            if len(raw) > HEAD_BYTES_MAX:
                raise HeadRefused("head too long")
            self._raw = raw
            return
        if end > HEAD_BYTES_MAX:
            raise HeadRefused("head too long")
        self._raw = b""
        head = parse_head(raw[:end], bodiless=self._bodiless)
        rest = raw[end + 4 :]
        if head.status < 200:
            self._interim += 1
            if head.status == 101 or self._interim > INTERIM_MAX:
                raise HeadRefused("interim answer")
            if rest:
                self._take_head(rest)
            return
        self._head = head
        self._decoder = body_decoder(head)
        if rest or self._decoder.done:
            self._take_body(rest)
        else:
            self._wake()

    def _take_body(self, data: bytes) -> None:
        decoder = self._decoder
        assert decoder is not None, "set with the head"
        pieces = decoder.feed(data)
        if self._receiver is not None and not decoder.done:  # an event goes by
            self._push(pieces)
            return
        self._complete = decoder.done
        if self._receiver is not None:
            self._push(pieces)
        else:
            for piece in pieces:
                self._chunks.append(piece)
                self._buffered += len(piece)
            if self._buffered > BUFFER_HIGH_BYTES:
                self.hold()
        if decoder.surplus:
            self._break(UpstreamLost("bytes after the answer"))
        elif self._complete or self._receiver is None:
            self._tell()

    def _push(self, pieces: list[bytes]) -> None:
        receiver = self._receiver
        if not pieces or receiver is None:
            return
        deadline = self._deadline
        deadline.cause, deadline.due_s = IDLE, self._loop.time() + self._idle_s
        if deadline.due_s > self._total_due_s:
            deadline.cause, deadline.due_s = TOTAL, self._total_due_s
        receiver.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _break(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._tell()

    def _known_unsent(self) -> bool:
        return self._unsent and not self._answered

    def _on_due(self, cause: str) -> None:
        if self._complete or self._error is not None:
            return
        if self._paused and cause == IDLE:  # the client is slow, not the backend
            self._deadline.set(IDLE, self._loop.time() + 1.0)
            return
        self._break(UpstreamExpired(cause))

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
