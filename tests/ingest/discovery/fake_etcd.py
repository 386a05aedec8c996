"""An etcd of a few lines on loopback, which can misbehave where the real one hardly does.

Any call but Range, Watch and Authenticate is noted in `forbidden` and refused (ETCD-01).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from ingest.discovery import etcd_messages as messages

ALLOWED = {messages.RANGE[0], messages.WATCH[0], messages.AUTHENTICATE[0]}

# Answers of a watch: what to send for one request of the client.
WatchScript = Callable[[Any], Awaitable[list[bytes]]]


def int_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class FakeEtcd:
    """Keys sorted by name at one revision; watches follow `watch_script`."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.revision = 7
        self.requests: list[Any] = []
        self.watches: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.forbidden: list[str] = []
        self.range_fault: grpc.StatusCode | None = None
        self.range_text = ""
        self.watch_script: WatchScript = self.create_and_answer

    async def start(self) -> str:
        """Returns the endpoint."""
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._server.stop(grace=None)

    async def create_and_answer(self, request: Any) -> list[bytes]:
        """A healthy server: watches are created, progress is answered."""
        if request.HasField("create_request"):
            return [self.response(watch_id=request.create_request.watch_id, created=True)]
        return [self.response(watch_id=-1)]

    def response(self, revision: int | None = None, **fields: Any) -> bytes:
        answer = messages.WatchResponse(**fields)
        answer.header.revision = self.revision if revision is None else revision
        return bytes(answer.SerializeToString())

    async def range(self, request: bytes, context: Any) -> bytes:
        asked = messages.RangeRequest.FromString(request)
        self.requests.append(asked)
        if self.range_fault is not None:
            await context.abort(self.range_fault, self.range_text)
        names = sorted(key for key in self.keys if asked.key <= key < asked.range_end)
        shown = names[: asked.limit] if asked.limit else names
        body = bytes_field(1, int_field(3, self.revision))
        for name in shown:
            value = b"" if asked.keys_only else self.keys[name]
            body += bytes_field(2, bytes_field(1, name) + int_field(3, 5) + bytes_field(5, value))
        return body + int_field(3, int(len(shown) < len(names)))

    async def watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.metadata.append(dict(context.invocation_metadata() or ()))
        async for raw in requests:
            request = messages.WatchRequest.FromString(raw)
            self.watches.append(request)
            for answer in await self.watch_script(request):
                yield answer

    async def authenticate(self, request: bytes, context: Any) -> bytes:
        return bytes_field(2, b"token-1")


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fake: FakeEtcd) -> None:
        self._fake = fake

    def service(self, details: Any) -> Any:
        fake = self._fake
        if details.method == messages.RANGE[0]:
            return grpc.unary_unary_rpc_method_handler(fake.range)
        if details.method == messages.AUTHENTICATE[0]:
            return grpc.unary_unary_rpc_method_handler(fake.authenticate)
        if details.method == messages.WATCH[0]:
            return grpc.stream_stream_rpc_method_handler(fake.watch)
        fake.forbidden.append(details.method)
        return None


async def hang(request: Any) -> list[bytes]:
    """A half-open server."""
    await asyncio.Event().wait()
    return []
