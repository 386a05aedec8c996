"""Answers as clients get them, byte by byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.test_utils import make_mocked_request

from router.dispatch.heads import parse_head
from router.ingress.answers import RelayedAnswer, error_answer, json_answer
from router.ingress.errors import ErrorCode, RequestRefused

HEAD = parse_head(
    b"HTTP/1.1 201 Created\r\nContent-Type: application/x\r\nx-a: 1\r\nX-A: 2\r\nx-dynamo-y: 1\r\n"
    b"server: hyper\r\nx-request-id: theirs\r\ncontent-length: 5\r\nconnection: keep-alive, x-c\r\nx-c: 1"
)
CHUNKED = parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream")


class Wire(asyncio.Transport):
    """A client's connection that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def relayed(
    head: Any = HEAD, version: Any = HttpVersion11, closes: bool = False
) -> tuple[RelayedAnswer, Wire]:
    wire = Wire()
    headers = {"Connection": "close"} if closes else {}
    request = make_mocked_request("POST", "/", version=version, closing=closes, headers=headers)
    request.protocol.transport = wire
    return RelayedAnswer(request, head, "mine", [("X-Continuum-Routing-Path", "unified")]), wire


def lines(wire: Wire) -> tuple[list[bytes], bytes]:
    head, _, body = wire.data.partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


def test_whole_answer_keeps_the_backends_headers_and_carries_ours() -> None:
    answer, wire = relayed()
    sent = answer.whole(b"12345")
    head, body = lines(wire)
    date = next(line for line in head if line.startswith(b"date: "))
    assert head == [
        b"HTTP/1.1 201 Created",
        b"Content-Type: application/x",
        b"x-a: 1",
        b"X-A: 2",
        b"x-request-id: mine",
        b"server: picklog",
        date,
        b"X-Continuum-Routing-Path: unified",
        b"content-length: 5",
    ]
    assert body == b"12345"
    assert (sent.status, sent.keep_alive) == (201, True)


def test_counted_answer_keeps_its_length_and_others_are_chunked() -> None:
    answer, wire = relayed()
    answer.write(b"12", answer.begin())
    answer.write(b"345")
    answer.finish()
    head, body = lines(wire)
    assert (b"content-length: 5" in head, body) == (True, b"12345")
    answer, wire = relayed(CHUNKED)
    answer.write(b"data", answer.begin())
    answer.write(b"x" * 20)
    assert answer.finish().keep_alive
    head, body = lines(wire)
    assert b"transfer-encoding: chunked" in head
    assert body == b"4\r\ndata\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"


def test_old_client_gets_a_stream_that_ends_with_its_connection() -> None:
    answer, wire = relayed(CHUNKED, HttpVersion10)
    answer.write(b"data", answer.begin())
    assert not answer.finish().keep_alive
    head, body = lines(wire)
    assert (b"connection: close" in head, body) == (True, b"data")


def test_client_that_wants_to_close_is_told_so() -> None:
    answer, wire = relayed(closes=True)
    assert not answer.whole(b"12345").keep_alive
    assert b"connection: close" in lines(wire)[0]


def test_answer_that_breaks_off_closes_the_connection_without_an_end() -> None:
    answer, wire = relayed(CHUNKED)
    answer.write(b"data", answer.begin())
    assert not answer.cut().keep_alive
    assert wire.closed
    assert not wire.data.endswith(b"0\r\n\r\n")
    with pytest.raises(ConnectionError):
        answer.write(b"more")
    answer, _ = relayed()
    answer._protocol.transport = None
    with pytest.raises(ConnectionError):
        answer.whole(b"12345")
    answer.cut()


@pytest.mark.parametrize("status", [204, 304])
def test_answer_that_can_have_no_body_has_no_length(status: int) -> None:
    answer, wire = relayed(parse_head(b"HTTP/1.1 %d X\r\ncontent-length: 5" % status))
    answer.whole(b"")
    head, body = lines(wire)
    assert body == b""
    assert not [line for line in head if line.lower().startswith((b"content-length", b"transfer-encoding"))]


def test_status_without_a_usual_reason_is_passed_on() -> None:
    answer, wire = relayed(parse_head(b"HTTP/1.1 299 Odd\r\ncontent-length: 0"))
    answer.whole(b"")
    assert lines(wire)[0][0] == b"HTTP/1.1 299 -"


async def test_aiohttp_has_nothing_left_to_do() -> None:
    answer, wire = relayed()
    sent = answer.whole(b"12345")
    before = wire.data
    assert await sent.prepare(make_mocked_request("POST", "/")) is None
    await sent.write_eof()
    assert wire.data == before


def test_errors_of_ours_close_where_a_body_may_be_unread() -> None:
    large = error_answer(RequestRefused(ErrorCode.PAYLOAD_TOO_LARGE), "r")
    assert (large.status, large.keep_alive) == (413, False)
    busy = error_answer(
        RequestRefused(ErrorCode.RATE_LIMITED, headers=(("Retry-After", "3"),)), "r", [("A", "b")]
    )
    assert busy.headers["Retry-After"] == "3"
    assert busy.headers["A"] == "b"
    assert busy.keep_alive is None
    assert isinstance(busy.body, bytes)
    assert json.loads(busy.body)["error"]["code"] == "rate_limited"


def test_documents_of_ours_are_json() -> None:
    answer = json_answer(b"{}", "r", 503)
    assert (answer.status, answer.content_type, answer.headers["x-request-id"]) == (
        503,
        "application/json",
        "r",
    )
