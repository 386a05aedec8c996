"""Reading a client's body under a limit and a deadline.

The limit holds for the announced length before a byte is read, and for what has come while
reading; memory stays within one read of it (B-109).
"""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, StreamReader, web

from router.ingress.errors import ErrorCode, RequestRefused


async def read_client_body(request: web.BaseRequest, bytes_max: int, timeout_s: float) -> bytes:
    """The whole body.

    Raises RequestRefused: payload_too_large, request_timeout, unsupported_encoding,
    invalid_request where its framing is broken.
    """
    encodings = request.headers.getall("Content-Encoding", ())
    if any(encoding.strip().lower() != "identity" for encoding in encodings):
        raise RequestRefused(ErrorCode.UNSUPPORTED_ENCODING)
    length = request.content_length
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    content = request.content
    if "Expect" in request.headers:
        _tell_to_continue(request)
    if content.is_eof():
        data = content.read_nowait(-1)
        if len(data) > bytes_max:
            raise _too_large(bytes_max)
        return data
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(content, bytes_max)
    except TimeoutError:
        raise RequestRefused(ErrorCode.REQUEST_TIMEOUT) from None
    except web.RequestPayloadError:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "The body's framing is broken.") from None


def _tell_to_continue(request: web.BaseRequest) -> None:
    """Say 100 to a client that waits for it, now that its length is no reason to refuse.

    Raises RequestRefused for any other expectation (RFC 9110, 10.1.1).
    """
    if request.headers["Expect"].strip().lower() != "100-continue":
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "The expectation is not known.")
    transport = request.transport
    if request.version >= HttpVersion11 and not request.content.is_eof() and transport is not None:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _read(content: StreamReader, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = await content.readany()
        if not piece:
            return b"".join(pieces)
        size += len(piece)
        if size > bytes_max:
            raise _too_large(bytes_max)
        pieces.append(piece)


def _too_large(bytes_max: int) -> RequestRefused:
    return RequestRefused(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"The request body is larger than {bytes_max} bytes.",
    )
