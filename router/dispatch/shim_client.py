"""One dispatch: tries at replicas with the same pins, until an answer begins or none will.

A try sends the whole request to one replica and waits for the beginning of the answer: the
head, and with it as much as decides what becomes of the request. Of an error that is its
body; of a buffered answer all of it up to BUFFERED_BYTES_MAX, so that one which breaks off
can still be told apart from one that came; of a stream its first bytes. Until then nothing
has gone to the client, and the table of `refusals` says what comes next. Pins never change
between tries (SHIM-17, SHIM-18).

A request goes to a second replica only where the first cannot have taken it: no connection,
or the connection died while part of the request was still ours, or the frontend said that
it lacks the model (B-103, B-104).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from projections.bounds import KIB, MIB
from router.dispatch.connection import (
    FIRST_BYTE,
    IDLE,
    TOTAL,
    ConnectFailed,
    UpstreamConnection,
    UpstreamExpired,
    UpstreamLost,
)
from router.dispatch.heads import AnswerHead
from router.dispatch.refusals import (
    NO_REPLICA,
    UNIFIED_LOST,
    UNIFIED_RELAYED,
    UNIFIED_SILENT,
    Finding,
    Next,
    Row,
    Trouble,
    judge,
)
from router.dispatch.shim_pools import Permit, PoolTable, Replica
from router.ingress.keys import Caller
from router.ingress.pin_headers import Pins, forwarded_headers
from router.metrics import RouterMetrics
from router.settings import DeadlineSettings

ERROR_BODY_BYTES_MAX: Final = 64 * KIB
BUFFERED_BYTES_MAX: Final = 1 * MIB
UNSENT_TRIES_MAX: Final = 2  # fresh connections to one replica after a kept one proved dead


class Order(NamedTuple):
    """What is to be sent, the same at every try.

    headers: the client's. data: the body. model: as the client named it. due_s: loop time
    at which the last byte is due.
    """

    path: str
    request_id: str
    headers: Sequence[tuple[bytes, bytes]]
    data: bytes
    model: str
    caller: Caller
    deadlines: DeadlineSettings
    due_s: float


class Begun:
    """An answer that began. `close` gives connection and permit back, exactly once.

    first: body bytes that have come. whole: whether they are all of the body. row: what
    the answer means, set when it is to be relayed.
    """

    def __init__(self, permit: Permit, connection: UpstreamConnection, head: AnswerHead) -> None:
        self.replica = permit.replica
        self.connection = connection
        self.head = head
        self.first = b""
        self.whole = False
        self.row: Row | None = None
        self.first_byte_s = 0.0
        self._permit = permit
        self._closed = False

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of server-sent events."""
        content_type = self.head.header(b"content-type")
        return content_type is not None and content_type.lower().startswith(b"text/event-stream")

    def close(self) -> None:
        """The answer was read, or nobody wants the rest of it."""
        if not self._closed:
            self._closed = True
            self.replica.upstream.give_back(self.connection)
            self._permit.give_back()


class NotServed(NamedTuple):
    """No answer for the client came of it. backend: "" where none was reached."""

    row: Row
    http_status: int
    backend: str
    retry_after: bytes | None = None


class _Try(NamedTuple):
    """What came of one replica: the answer's beginning where a head came."""

    begun: Begun | None
    finding: Finding


class Tries:
    """The tries of one send. Cancelling leaves nothing open."""

    def __init__(self, table: PoolTable, order: Order, metrics: RouterMetrics) -> None:
        self._table = table
        self._order = order
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self.backend = ""  # the replica whose connection was made last

    async def pinned(
        self, pins: Pins, worker_left: Callable[[], bool], model_served: Callable[[], bool]
    ) -> Begun | NotServed:
        """Send with pins to the pool of their namespace.

        worker_left, model_served: asked of the registry when an answer needs it.
        """
        order, tried = self._order, list[Replica]()
        last = NotServed(NO_REPLICA, 0, "")
        for number in range(1 + order.deadlines.retries_max):
            replica = self._table.shim(pins.namespace, order.caller, order.model, tried, self._now_us())
            if replica is None:
                break
            if number:
                self._metrics.retried()
            tried.append(replica)
            begun, finding = await self._one(replica, pins.headers)
            if finding.status in (400, 404):
                finding = finding._replace(worker_left=worker_left(), model_served=model_served())
            row = judge(finding)
            if begun is not None and row.next is Next.RELAY:
                begun.row = row
                return begun
            last = self._not_served(row, finding, begun)
            if row.next is not Next.NEXT_REPLICA:
                break
            if finding.status == 404:
                replica.mark_unusable(order.model)
                self._metrics.replica_unusable()
        return last

    async def unified(self) -> Begun | NotServed:
        """Send without pins to an ordinary backend of the model; any status it gives is relayed."""
        order, tried = self._order, list[Replica]()
        last = NotServed(NO_REPLICA, 0, "")
        for _ in range(1 + order.deadlines.retries_max):
            replica = self._table.backend(order.caller, order.model, tried, self._now_us())
            if replica is None:
                break
            tried.append(replica)
            begun, finding = await self._one(replica, ())
            if begun is not None:
                begun.row = UNIFIED_RELAYED
                return begun
            silent = finding.trouble is Trouble.SILENT
            last = self._not_served(UNIFIED_SILENT if silent else UNIFIED_LOST, finding, None)
            if finding.trouble not in (Trouble.NOT_CONNECTED, Trouble.UNSENT):
                break
        return last

    def _not_served(self, row: Row, finding: Finding, begun: Begun | None) -> NotServed:
        retry_after = None
        if begun is not None:
            retry_after = begun.head.header(b"retry-after")
            begun.close()
        return NotServed(row, finding.status, self.backend, retry_after)

    async def _one(self, replica: Replica, pins: Sequence[tuple[bytes, bytes]]) -> _Try:
        """Send to one replica, on a kept connection or a fresh one, and see what begins."""
        permit = Permit(replica, self._now_us())
        try:
            result = await self._exchange(permit, pins)
        except BaseException:
            permit.give_back()
            raise
        if result.begun is not None:
            replica.breaker.succeeded()
            return result
        permit.give_back()
        if result.finding.trouble is not Trouble.NONE:
            replica.breaker.failed(self._now_us())
        return result

    async def _exchange(self, permit: Permit, pins: Sequence[tuple[bytes, bytes]]) -> _Try:
        replica = permit.replica
        head = request_head(replica, self._order, pins)
        for _ in range(UNSENT_TRIES_MAX):
            connection = replica.upstream.take_idle()
            kept = connection is not None
            if connection is None:
                try:
                    connection = await replica.upstream.connect(self._connect_s())
                except ConnectFailed:
                    return _Try(None, Finding(Trouble.NOT_CONNECTED))
            self.backend = replica.name
            begun: Begun | None = None
            try:
                connection.limit(*self._limit(FIRST_BYTE, self._order.deadlines.first_byte_us))
                connection.send(head, self._order.data)
                begun = Begun(permit, connection, await connection.head())
                begun.first_byte_s = self._loop.time()
                await self._begin(begun)
                return _Try(
                    begun, Finding(Trouble.NONE, begun.head.status, begun.first[:ERROR_BODY_BYTES_MAX])
                )
            except UpstreamExpired:
                connection.abort()
                return _Try(None, Finding(Trouble.SILENT))
            except UpstreamLost as problem:
                connection.abort()
                if not problem.unsent:
                    return _Try(None, Finding(Trouble.LOST))
                if not kept:
                    break
            except BaseException:
                connection.abort()
                raise
        return _Try(None, Finding(Trouble.UNSENT))

    async def _begin(self, begun: Begun) -> None:
        """Read as much of the body as decides what becomes of the request."""
        connection = begun.connection
        if begun.is_stream and 200 <= begun.head.status < 300:
            begun.first = await connection.read()
            begun.whole = connection.is_drained
            return
        bytes_max = BUFFERED_BYTES_MAX if begun.head.status < 400 else ERROR_BODY_BYTES_MAX
        pieces: list[bytes] = []
        size = 0
        while size <= bytes_max:
            connection.limit(*self._limit(IDLE, self._order.deadlines.idle_us))
            piece = await connection.read()
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if connection.is_drained:
                break
        begun.first = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        begun.whole = connection.is_drained

    def _limit(self, cause: str, after_us: int) -> tuple[str, float]:
        due_s = self._loop.time() + after_us / 1_000_000
        return (cause, due_s) if due_s < self._order.due_s else (TOTAL, self._order.due_s)

    def _connect_s(self) -> float:
        left_s = self._order.due_s - self._loop.time()
        return max(0.0, min(self._order.deadlines.connect_us / 1_000_000, left_s))

    def _now_us(self) -> int:
        return int(self._loop.time() * 1_000_000)


def request_head(replica: Replica, order: Order, pins: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The head as one replica gets it. The pins are the only `x-dynamo-*` headers in it.

    Client headers are cleaned once more here: the last hand before the wire does not trust
    the ones before it (SHIM-10). An empty key of the backend sends no Authorization (B-101).
    """
    address = replica.upstream.address
    lines = [
        b"POST " + (address.prefix + order.path).encode("ascii") + b" HTTP/1.1",
        b"host: " + address.authority,
        b"content-type: application/json",
        b"content-length: %d" % len(order.data),
        b"x-request-id: " + order.request_id.encode("ascii"),
    ]
    if replica.settings.api_key:
        lines.append(b"authorization: Bearer " + replica.settings.api_key.encode("utf-8"))
    lines.extend(name + b": " + value for name, value in forwarded_headers(order.headers))
    lines.extend(name + b": " + value for name, value in pins)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
