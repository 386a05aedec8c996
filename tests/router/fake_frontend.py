"""A stand-in for `dynamo.frontend --router-mode direct`, for tests without a fleet.

It is written from the wire contract, section 7 (which pins a frontend reads, which names
win, what it answers in 1.4.2, 1.5.0 and 1.6.1) and from recorded answers, not from our
client; it shares no code with the router and parses requests by itself. What it is told to
do wrong stands in `Misbehaviour`. Everything it was sent is in `requests`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/completions")
U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1
GENERIC = "Failed to generate completions"
NOT_READY = (
    "Model `{model}` is not ready to serve requests yet. The deployment may still be starting up or is "
    "not fully provisioned. Please retry shortly."
)


class Misbehaviour(Enum):
    """What a frontend may do instead of answering well."""

    NEVER_ANSWERS = "accepts and reads, never answers"
    CLOSES_BEFORE_ANSWER = "reads the request, then closes"
    CLOSES_AFTER_HEAD = "sends the head of a stream, then closes"
    CLOSES_MID_STREAM = "sends some events, then resets"
    CLOSES_MID_EVENT = "sends half an event, then closes"
    CLOSES_MID_BODY = "sends half of a counted body, then closes"
    STALLS_MID_STREAM = "sends two events, then nothing"
    BYTE_BY_BYTE = "sends a stream one byte at a time"
    NOT_HTTP = "answers something that is no HTTP"
    TWO_LENGTHS = "answers with two content lengths"
    BOTH_FRAMINGS = "answers with a length and chunks"


@dataclass
class Seen:
    """One request as it came. aborted: the router closed before the answer was out."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    aborted: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        """The first value of a header, as a frontend reads it."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def steering(self) -> list[tuple[str, str]]:
        """Every header that steers a frontend."""
        names = {
            "x-worker-instance-id",
            "x-prefill-instance-id",
            "x-dp-rank",
            "x-data-parallel-rank",
            "x-prefill-dp-rank",
        }
        return [
            (key, value)
            for key, value in self.headers
            if key.lower().replace("_", "-").startswith("x-dynamo-") or key.lower().replace("_", "-") in names
        ]


class FakeFrontend:
    """One frontend on a free port of 127.0.0.1.

    prefill, decode, aggregated: ids of its workers, with the number of ranks. `status`, when
    set, answers every chat with that status and `error_body`.
    """

    def __init__(
        self,
        *,
        version: str = "1.6.1",
        prefill: dict[int, int] | None = None,
        decode: dict[int, int] | None = None,
        aggregated: dict[int, int] | None = None,
        models: tuple[str, ...] = ("tiny-chat",),
        plain: bool = False,
    ) -> None:
        self.version = version
        self.prefill = prefill or {}
        self.decode = decode or {}
        self.aggregated = aggregated or {}
        self.models = models
        self.plain = plain  # an ordinary OpenAI server: needs no pins
        self.misbehaviour: Misbehaviour | None = None
        self.status: int | None = None
        self.error_body: bytes | None = None
        self.answer_headers: list[tuple[str, str]] = []
        self.models_status = 200
        self.events = 4
        self.event_bytes = 0
        self.delay_s = 0.0
        self.event_delay_s = 0.0
        self.raw_answer: bytes | None = None
        self.usage: dict[str, Any] | None = {
            "prompt_tokens": 39,
            "completion_tokens": 2,
            "total_tokens": 41,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
        self.requests: list[Seen] = []
        self.probes = 0
        self.connections = 0
        self.open_connections = 0
        self.bytes_out = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def __del__(self) -> None:
        self._socket.close()  # of a frontend that was never started

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.path in PATHS]

    async def start(self) -> FakeFrontend:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110  # a few turns of the loop
            await asyncio.sleep(0)

    # connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while await self._one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        seen = Seen(method, path, headers, b"", number)
        seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
        if path == "/v1/models":
            self.probes += 1
            await self._models(writer)
            return True
        self.requests.append(seen)
        watcher = asyncio.ensure_future(reader.read(1))  # ends when the router closes
        answering = asyncio.ensure_future(self._answer(seen, writer))
        try:
            await asyncio.wait({watcher, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                seen.aborted = True
                answering.cancel()
                return False
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            return await answering
        except ConnectionError:
            seen.aborted = True
            return False
        finally:
            seen.done.set()
            watcher.cancel()
            answering.cancel()
            await asyncio.gather(watcher, answering, return_exceptions=True)

    async def _models(self, writer: asyncio.StreamWriter) -> None:
        rows = [{"id": m, "object": "model", "created": 1, "owned_by": "nvidia"} for m in self.models]
        body = json.dumps({"object": "list", "data": rows}).encode()
        await self._send_whole(writer, self.models_status, body)

    # answers

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.raw_answer is not None:
            writer.write(self.raw_answer)
            await writer.drain()
            return True
        if self.misbehaviour is Misbehaviour.NEVER_ANSWERS:
            await asyncio.Event().wait()
        if self.misbehaviour is Misbehaviour.CLOSES_BEFORE_ANSWER:
            return False
        if self.misbehaviour is Misbehaviour.NOT_HTTP:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            await writer.drain()
            return False
        if self.status is not None and self.status != 200:
            body = self.error_body
            await self._send_whole(
                writer, self.status, error(self.status, "as told") if body is None else body
            )
            return True
        refusal = None if self.plain else self.refusal(seen)
        if refusal is not None:
            status, message = refusal
            await self._send_whole(writer, status, error(status, message) if message else b"")
            return True
        if seen.document.get("stream"):
            return await self._stream(seen, writer)
        return await self._whole(seen, writer)

    async def _send_whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.answer_headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.bytes_out += len(body)
        await writer.drain()

    async def _whole(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        document: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": seen.document.get("model"),
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hé €"}}],
        }
        if self.usage is not None:
            document["usage"] = self.usage
        if told := self._told(seen):
            document["nvext"] = told
        body = json.dumps(document, ensure_ascii=False).encode()
        if self.misbehaviour is Misbehaviour.CLOSES_MID_BODY:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
            await writer.drain()
            return False
        if self.misbehaviour is Misbehaviour.TWO_LENGTHS:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")
            await writer.drain()
            return False
        if self.misbehaviour is Misbehaviour.BOTH_FRAMINGS:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            )
            await writer.drain()
            return False
        await self._send_whole(writer, 200, body)
        return True

    def stream_body(self, seen: Seen) -> bytes:
        """The whole body of a streamed answer."""
        told = self._told(seen)
        pieces = []
        for number in range(self.events):
            chunk: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk"}
            chunk["choices"] = [{"index": 0, "delta": {"content": "é€" + "x" * self.event_bytes}}]
            if told:
                chunk["nvext"] = told
            if number == self.events - 1 and self.usage is not None:
                chunk["usage"] = self.usage
            pieces.append(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n")
        return "".join(pieces).encode() + b"data: [DONE]\n\n"

    async def _stream(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in self.answer_headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if self.misbehaviour is Misbehaviour.CLOSES_AFTER_HEAD:
            await writer.drain()
            return False
        events = [event + b"\n\n" for event in self.stream_body(seen).split(b"\n\n")[:-1]]
        for number, event in enumerate(events):
            if number == 2 and not await self._behaves(writer, event):
                return False
            for piece in self._pieces(event):
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                self.bytes_out += len(piece)
                await writer.drain()
            if self.event_delay_s:
                await asyncio.sleep(self.event_delay_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _pieces(self, event: bytes) -> list[bytes]:
        if self.misbehaviour is Misbehaviour.BYTE_BY_BYTE:
            return [event[i : i + 1] for i in range(len(event))]
        return [event]

    async def _behaves(self, writer: asyncio.StreamWriter, event: bytes) -> bool:
        if self.misbehaviour is Misbehaviour.CLOSES_MID_STREAM:
            writer.transport.abort()
            return False
        if self.misbehaviour is Misbehaviour.CLOSES_MID_EVENT:
            half = event[: len(event) // 2]
            writer.write(b"%x\r\n" % len(half) + half + b"\r\n")
            await writer.drain()
            return False
        if self.misbehaviour is Misbehaviour.STALLS_MID_STREAM:
            await asyncio.Event().wait()
        return True

    def _told(self, seen: Seen) -> dict[str, Any]:
        nvext = seen.document.get("nvext") or {}
        if "worker_id" not in (nvext.get("extra_fields") or []):
            return {}
        decode = pinned(seen, "x-dynamo-worker-instance-id", ("x-worker-instance-id",), U64_MAX)
        prefill = pinned(seen, "x-dynamo-prefill-instance-id", ("x-prefill-instance-id",), U64_MAX)
        return {"worker_id": {"decode_worker_id": decode, "prefill_worker_id": prefill or decode}}

    # what a direct-mode frontend refuses (wire contract, 7.3)

    def refusal(self, seen: Seen) -> tuple[int, str] | None:
        """(status, message), or None where it serves."""
        hides = self.version == "1.6.1"
        model = seen.document.get("model")
        if not (self.decode or self.aggregated):
            return (
                (503, NOT_READY.format(model=model))
                if self.prefill and self.version == "1.4.2"
                else (404, "")
            )
        if model not in self.models:
            return 404, "Model not found"
        nvext = seen.document.get("nvext") or {}
        decode = pinned(seen, "x-dynamo-worker-instance-id", ("x-worker-instance-id",), U64_MAX)
        if decode is None:
            decode = nvext.get("decode_worker_id", nvext.get("backend_instance_id"))
        prefill = pinned(seen, "x-dynamo-prefill-instance-id", ("x-prefill-instance-id",), U64_MAX)
        if prefill is None:
            prefill = nvext.get("prefill_worker_id")
        if self.aggregated:
            return self._refuse_worker("aggregated", self.aggregated, decode, seen, hides)
        if prefill is None:
            if decode is not None or seen.header("x-dynamo-worker-instance-id") is None:
                return 500, GENERIC
            return (
                400,
                "Invalid request"
                if hides
                else "worker ID required for decode request in Direct routing mode",
            )
        if decode is None:
            return (
                400,
                "Invalid request"
                if hides
                else "worker ID required for decode request in Direct routing mode",
            )
        if prefill not in self.prefill:
            return self._unknown("prefill_worker_id", prefill)
        return self._refuse_worker("decode", self.decode, decode, seen, hides)

    def _refuse_worker(
        self, kind: str, workers: dict[int, int], worker: int | None, seen: Seen, hides: bool
    ) -> tuple[int, str] | None:
        if worker is None:
            text = f"worker ID required for {kind} request in Direct routing mode"
            return 400, "Invalid request" if hides else text
        if worker not in workers:
            return self._unknown("decode_worker_id", worker)
        rank = pinned(seen, "x-dynamo-dp-rank", ("x-dp-rank", "x-data-parallel-rank"), U32_MAX)
        if rank is not None and rank != U32_MAX and rank >= workers[worker]:
            if hides:
                return 400, f"dp_rank {rank} is out of bounds for dp_size {workers[worker]}"
            return 500, GENERIC
        return None

    def _unknown(self, member: str, worker: int) -> tuple[int, str]:
        if self.version == "1.4.2":
            return 500, GENERIC
        if self.version == "1.5.0":
            return 400, f"nvext.{member}={worker} does not identify a known worker"
        return 400, "Invalid request"


def pinned(seen: Seen, name: str, aliases: tuple[str, ...], largest: int) -> int | None:
    """A pin as a frontend parses it: decimal with an optional plus, anything else is absent.

    An alias counts only where the canonical header is not there at all.
    """
    text = seen.header(name)
    if text is None:
        text = next((found for alias in aliases if (found := seen.header(alias)) is not None), None)
    if text is None:
        return None
    digits = text.strip().removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()) or int(digits) > largest:
        return None
    return int(digits)


def error(status: int, message: str) -> bytes:
    """An error body as a frontend writes it."""
    kinds = {400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 529: "Overloaded"}
    return json.dumps(
        {"message": message, "type": kinds.get(status, "Error"), "code": status}, separators=(",", ":")
    ).encode()


@asynccontextmanager
async def running(*frontends: FakeFrontend) -> AsyncIterator[None]:
    """The frontends, started, for the length of a block."""
    for frontend in frontends:
        await frontend.start()
    try:
        yield
    finally:
        for frontend in frontends:
            await frontend.stop()
