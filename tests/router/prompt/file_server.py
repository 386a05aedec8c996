"""An HTTP server of a few lines, raw on loopback: answers as a test says, notes what it was asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FileServer:
    """answers: by path. requests: heads as they came, lower case names."""

    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    running_max: int = 0
    port: int = 0
    scheme: str = "http"

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The address of a path."""
        return f"{self.scheme}://{host}:{self.port}{path}"

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [path for path, _ in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            path = first.split(" ")[1]
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines if line)
            }
            self.requests.append((path, headers))
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            answer = self.answers.get(path, head_of(404))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.running -= 1
            writer.close()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[FileServer]:
    """A server on a free port of 127.0.0.1."""
    found = FileServer(scheme="http" if tls is None else "https")
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await asyncio.sleep(0)


def head_of(status: int, length: int | None = 0, **headers: str) -> bytes:
    """A response head. length: announced; None closes the connection at the end of the body."""
    lines = [f"HTTP/1.1 {status} Whatever", "Connection: close"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def ok(body: bytes, length: int | None = -1, **headers: str) -> bytes:
    """A 200 with a body; -1 announces its true length."""
    return head_of(200, len(body) if length == -1 else length, **headers) + body


def redirect(to: str, status: int = 302) -> bytes:
    """A redirect."""
    return head_of(status, 0, Location=to)
