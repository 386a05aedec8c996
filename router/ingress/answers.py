"""The client's side of an answer: heads, bodies, and errors in the shape of the API.

Every answer carries the request id. A relayed answer carries the backend's headers minus
those that stay behind, the routing path, and who served if the request asked. Its length
is the backend's where the body is whole or counted, else it is sent in chunks; nothing is
compressed or decompressed.

Documents and errors of ours go out through aiohttp. Relayed answers are written to the
connection here, head and first bytes as one write: aiohttp is told afterwards, by a
`SentAnswer`, that all is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from router.dispatch.heads import AnswerHead, Framing
from router.ingress.errors import RequestRefused
from router.ingress.pin_headers import REQUEST_ID, answer_headers

SERVER: Final = "picklog"
_JSON: Final = "application/json"
_BODY_UNREAD: Final = frozenset((401, 408, 413, 415))
_REASONS: Final = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_LAST_CHUNK: Final = b"0\r\n\r\n"


def error_answer(
    refused: RequestRefused, request_id: str, further: Sequence[tuple[str, str]] = ()
) -> web.Response:
    """The answer of an error of ours. The connection closes where a body may be left unread."""
    answer = web.Response(status=refused.status, body=refused.body(), content_type=_JSON)
    if refused.status in _BODY_UNREAD:
        answer.force_close()
    _add(answer, request_id, [*refused.headers, *further])
    return answer


def json_answer(body: bytes, request_id: str, status: int = 200) -> web.Response:
    """The answer of a document of ours."""
    answer = web.Response(status=status, body=body, content_type=_JSON)
    _add(answer, request_id, ())
    return answer


def _add(answer: web.StreamResponse, request_id: str, further: Sequence[tuple[str, str]]) -> None:
    headers = answer.headers
    headers["Server"] = SERVER
    headers[REQUEST_ID] = request_id
    for name, value in further:
        headers[name] = value


class SentAnswer(web.StreamResponse):
    """Tells aiohttp that an answer was written already."""

    def __init__(self, status: int, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to prepare."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class RelayedAnswer:
    """One relayed answer on its way to the client: a `Sink` of the relay.

    `whole`, or `begin`, any number of `write`, and `finish` or `break_off`. Writing does
    not wait: whoever writes asks `is_full` and waits in `drained`.
    """

    def __init__(
        self, request: web.BaseRequest, head: AnswerHead, request_id: str, further: Sequence[tuple[str, str]]
    ) -> None:
        self._request = request
        self._protocol = request.protocol
        self._head = head
        self._request_id = request_id
        self._further = further
        self._is_new = request.version >= HttpVersion11
        self._keep_alive = request.keep_alive
        self._chunked = False

    def whole(self, body: bytes) -> SentAnswer:
        """Send an answer whose body is at hand. Raises ConnectionError."""
        length = None if self._head.framing is Framing.NONE else len(body)  # a 204 must not have one
        self._write(b"".join(self._lines(length)) + body)
        return self.sent()

    def begin(self) -> bytes:
        """The head of an answer whose body follows, to go out with its first bytes."""
        if self._head.framing is Framing.LENGTH:
            return b"".join(self._lines(self._head.length))
        self._chunked = self._is_new
        if not self._chunked:
            self._keep_alive = False
        return b"".join(self._lines(None))

    def write(self, data: bytes, head: bytes = b"") -> None:
        """Bytes of the body. Raises ConnectionError where the client has gone."""
        if self._chunked and data:  # an empty chunk would be the last
            self._write(b"".join((head, b"%x\r\n" % len(data), data, b"\r\n")))
        else:
            self._write(head + data if head else data)

    def finish(self) -> SentAnswer:
        """The body is whole. Raises ConnectionError."""
        if self._chunked:
            self._write(_LAST_CHUNK)
        return self.sent()

    def cut(self) -> SentAnswer:
        """The body will not be whole: close without an end that could be taken for one."""
        self._keep_alive = False
        transport = self._protocol.transport
        if transport is not None:
            transport.abort()
        return self.sent()

    def sent(self) -> SentAnswer:
        """What aiohttp is told."""
        return SentAnswer(self._head.status, self._keep_alive)

    @property
    def is_full(self) -> bool:
        """Whether the client is slower than what was written."""
        return self._protocol.writing_paused

    async def drained(self) -> None:
        """Return once the client may be given more. Raises ConnectionError."""
        await self._request.writer.drain()

    def _write(self, data: bytes) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(data)

    def _lines(self, length: int | None) -> list[bytes]:
        status = self._head.status
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"-"))]
        lines.extend(b"%b: %b\r\n" % header for header in answer_headers(self._head.headers))
        ours = f"{REQUEST_ID}: {self._request_id}\r\nserver: {SERVER}\r\ndate: {_date()}\r\n"
        ours += "".join([f"{name}: {value}\r\n" for name, value in self._further])
        if not self._keep_alive:
            ours += "connection: close\r\n"
        elif not self._is_new:
            ours += "connection: keep-alive\r\n"
        lines.append(ours.encode("utf-8"))
        if length is not None:
            lines.append(b"content-length: %d\r\n\r\n" % length)
        else:
            lines.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        return lines


class _Dates:
    """The date header of this second."""

    second = 0
    text = ""


def _date() -> str:
    second = int(time.time())
    if second != _Dates.second:
        _Dates.second, _Dates.text = second, formatdate(second, usegmt=True)
    return _Dates.text
