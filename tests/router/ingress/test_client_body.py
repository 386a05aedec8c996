"""Reading a client's body under its limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from router.ingress.client_body import read_client_body
from router.ingress.errors import ErrorCode, RequestRefused


def request(
    *pieces: bytes, ended: bool = True, headers: dict[str, str] | None = None
) -> tuple[Any, StreamReader]:
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.transport = asyncio.Transport()
    reader = StreamReader(protocol, 2**16, loop=loop)
    for piece in pieces:
        reader.feed_data(piece)
    if ended:
        reader.feed_eof()
    return make_mocked_request("POST", "/", headers=headers, payload=reader), reader


async def read(made: web.BaseRequest, bytes_max: int = 10, timeout_s: float = 5.0) -> bytes | ErrorCode:
    try:
        return await read_client_body(made, bytes_max, timeout_s)
    except RequestRefused as refused:
        return refused.code


async def test_body_at_the_limit_is_read_and_one_above_is_not() -> None:
    assert await read(request(b"12345", b"67890")[0]) == b"1234567890"
    assert await read(request(b"12345", b"678901")[0]) is ErrorCode.PAYLOAD_TOO_LARGE
    assert await read(request()[0]) == b""


async def test_announced_length_is_refused_before_reading() -> None:
    assert (
        await read(request(ended=False, headers={"Content-Length": "11"})[0]) is ErrorCode.PAYLOAD_TOO_LARGE
    )


async def test_body_that_comes_in_pieces_is_refused_as_soon_as_it_is_too_large() -> None:
    made, reader = request(b"12345", ended=False)
    reading = asyncio.create_task(read(made))
    await asyncio.sleep(0)
    reader.feed_data(b"678901")  # no end in sight
    assert await reading is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.looptime
async def test_body_that_stalls_is_refused_in_time() -> None:
    made, _ = request(b"1", ended=False)
    assert await read(made) is ErrorCode.REQUEST_TIMEOUT
    assert asyncio.get_running_loop().time() == pytest.approx(5.0, abs=0.1)


async def test_broken_framing_and_encodings_are_refused() -> None:
    made, reader = request(b"1", ended=False)
    reader.set_exception(web.RequestPayloadError("broken"))
    assert await read(made) is ErrorCode.INVALID_REQUEST
    assert await read(request(headers={"Content-Encoding": "gzip"})[0]) is ErrorCode.UNSUPPORTED_ENCODING
    assert await read(request(b"1", headers={"Content-Encoding": "identity"})[0]) == b"1"
