"""A backend of a few lines for tests of connections: what it does is a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from router.dispatch.connection import (
    UpstreamConnection,
)
from router.dispatch.upstream import Address, Upstream

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
SMALL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[Upstream]:
    """An upstream whose connections are served by `peer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(Address.of_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    try:
        yield upstream
    finally:
        upstream.retire()
        server.close()
        await asyncio.sleep(0)


async def read_all(connection: UpstreamConnection) -> bytes:
    await connection.head()
    found = b""
    while data := await connection.read():
        found += data
    return found


def answering(*answers: bytes, then_close: bool = False) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        if not then_close:
            await reader.read()

    return peer
