"""A server of canned OpenAI streams that costs next to nothing, for measuring what stands before it.

    python -m bench.mock_upstream PORT CHUNKS GAP_MS

It answers every POST with CHUNKS server-sent events, all at once where GAP_MS is 0, else
one each GAP_MS, and every GET with a list of one model, `bench`. It reads as much of HTTP
as the routers under test write, no more.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

MODEL = "bench"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"bench"}]}'
_LIST = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_MODELS)
    + _MODELS
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _framed(event: bytes) -> bytes:
    return b"%x\r\n" % len(event) + event + b"\r\n"


EVENT = _framed(
    b'data: {"id":"chatcmpl-123456789","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
LAST = _framed(
    b'data: {"id":"chatcmpl-123456789","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":64,"total_tokens":564}}\n\n'
    b"data: [DONE]\n\n"
)


class MockUpstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, chunks: int, gap_s: float) -> None:
        self._chunks = chunks
        self._gap_s = gap_s
        self._burst = _HEAD + EVENT * (chunks - 1) + LAST + _END
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0 or self._transport is None:
            return
        head = self._held[:end].lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(self._held) < end + 4 + length:
            return
        self._held = self._held[end + 4 + length :]
        if head.startswith(b"get"):
            self._transport.write(_LIST)
        elif self._gap_s:
            self._transport.write(_HEAD + EVENT)
            self._timer = asyncio.get_running_loop().call_later(self._gap_s, self._next, 1)
        else:
            self._transport.write(self._burst)

    def _next(self, sent: int) -> None:
        if self._transport is None:
            return
        if sent == self._chunks - 1:
            self._transport.write(LAST + _END)
            return
        self._transport.write(EVENT)
        self._timer = asyncio.get_running_loop().call_later(self._gap_s, self._next, sent + 1)


async def _serve(port: int, chunks: int, gap_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockUpstream(chunks, gap_s), "127.0.0.1", port)
    await server.serve_forever()


def main() -> int:
    port, chunks, gap_ms = sys.argv[1:]
    try:
        uvloop.run(_serve(int(port), int(chunks), float(gap_ms) / 1000))
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
