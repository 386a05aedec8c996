"""Heads of answers as clients get them."""

from __future__ import annotations

import json

from router.dispatch.heads import parse_head
from router.ingress.answers import begun_answer, error_answer, json_answer, whole_answer
from router.ingress.errors import ErrorCode, RequestRefused

HEAD = parse_head(
    b"HTTP/1.1 201 Created\r\nContent-Type: application/x\r\nx-a: 1\r\nX-A: 2\r\nx-dynamo-y: 1\r\n"
    b"server: hyper\r\nx-request-id: theirs\r\ncontent-length: 5\r\nconnection: keep-alive, x-c\r\nx-c: 1"
)


def test_relayed_answers_keep_the_backends_headers_and_carry_ours() -> None:
    for answer in (
        whole_answer(HEAD, b"12345", "mine", [("X-Continuum-Routing-Path", "unified")]),
        begun_answer(HEAD, "mine", [("X-Continuum-Routing-Path", "unified")]),
    ):
        assert answer.status == 201
        assert answer.headers["Content-Type"] == "application/x"
        assert answer.headers.getall("x-a") == ["1", "2"]
        assert answer.headers.getall("x-request-id") == ["mine"]
        assert answer.headers["Server"] == "picklog"
        assert answer.headers["X-Continuum-Routing-Path"] == "unified"
        assert "x-dynamo-y" not in answer.headers
        assert "x-c" not in answer.headers
        assert answer.content_length == 5


def test_answer_of_unknown_length_is_left_to_be_chunked() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked")
    assert begun_answer(head, "r", []).content_length is None


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
