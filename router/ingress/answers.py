"""The client's side of an answer: heads, bodies, and errors in the shape of the API.

Every answer carries the request id. A relayed answer carries the backend's headers minus
those that stay behind, the routing path, and who served if the request asked. Its length
is the backend's where the body is whole or counted, else it is sent in chunks; nothing is
compressed or decompressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from router.dispatch.heads import AnswerHead, Framing
from router.ingress.errors import RequestRefused
from router.ingress.pin_headers import REQUEST_ID, answer_headers

SERVER: Final = "picklog"
_JSON: Final = "application/json"
_BODY_UNREAD: Final = frozenset((401, 408, 413, 415))


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


def whole_answer(
    head: AnswerHead, body: bytes, request_id: str, further: Sequence[tuple[str, str]]
) -> web.Response:
    """A relayed answer whose body is at hand."""
    answer = web.Response(status=head.status, body=body)
    _add_relayed(answer, head, request_id, further)
    return answer


def begun_answer(head: AnswerHead, request_id: str, further: Sequence[tuple[str, str]]) -> web.StreamResponse:
    """A relayed answer whose body follows."""
    answer = web.StreamResponse(status=head.status)
    _add_relayed(answer, head, request_id, further)
    if head.framing is Framing.LENGTH:
        answer.content_length = head.length
    return answer


def _add_relayed(
    answer: web.StreamResponse, head: AnswerHead, request_id: str, further: Sequence[tuple[str, str]]
) -> None:
    headers = answer.headers
    for name, value in answer_headers(head.headers):
        headers.add(name.decode("ascii"), value.decode("utf-8", "surrogateescape"))
    _add(answer, request_id, further)


def _add(answer: web.StreamResponse, request_id: str, further: Sequence[tuple[str, str]]) -> None:
    headers = answer.headers
    headers["Server"] = SERVER
    headers[REQUEST_ID] = request_id
    for name, value in further:
        headers[name] = value
