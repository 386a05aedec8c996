"""A backend's address, and the idle connections to it that are kept."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from router.dispatch.connection import ConnectFailed, UpstreamConnection

IDLE_KEPT_MAX: Final = 256  # idle connections of one backend
IDLE_S_MAX: Final = 4.0  # less than the 5 s after which common servers close (B-103)


class Address(NamedTuple):
    """Where a backend listens. prefix: path before /v1, without a slash at its end."""

    host: str
    port: int
    tls: bool
    prefix: str
    authority: bytes

    @classmethod
    def of_url(cls, url: str) -> Address:
        """From http(s)://host[:port][/prefix]. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a backend's url is http(s)://host[:port][/prefix]")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        host = parts.hostname
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == (443 if tls else 80) else f"{shown}:{port}"
        return cls(host, port, tls, parts.path.rstrip("/"), authority.encode("ascii"))


class Upstream:
    """Connections to one backend. Not bounded in use: whoever sends holds a client's request."""

    def __init__(self, address: Address, tls_context: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = (tls_context or ssl.create_default_context()) if address.tls else None
        self._idle: list[UpstreamConnection] = []
        self._retired = False

    @property
    def idle(self) -> int:
        """How many idle connections are kept."""
        return len(self._idle)

    def take_idle(self) -> UpstreamConnection | None:
        """An idle connection that looks alive, the one used last, or None."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s <= IDLE_S_MAX and connection.looks_alive():
                return connection
            connection.abort()
        return None

    async def connect(self, timeout_s: float) -> UpstreamConnection:
        """A fresh connection. Raises ConnectFailed."""
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(loop)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: connection,
                    self.address.host,
                    self.address.port,
                    ssl=self._tls,
                    server_hostname=self.address.host if self._tls is not None else None,
                )
        except TimeoutError:
            raise ConnectFailed("not in time") from None
        except (OSError, UnicodeError) as problem:
            raise ConnectFailed(type(problem).__name__) from problem
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep the connection for another request if it can be, else close it."""
        if self._retired or not connection.is_reusable or len(self._idle) >= IDLE_KEPT_MAX:
            connection.abort()
            return
        connection.rest()
        now_s = connection.idle_since_s
        while self._idle and now_s - self._idle[0].idle_since_s > IDLE_S_MAX:
            self._idle.pop(0).abort()
        self._idle.append(connection)

    def retire(self) -> None:
        """Close idle connections, and those in use as they come back."""
        self._retired = True
        while self._idle:
            self._idle.pop().abort()
