"""Where a process listens: opened at its start, closed with patience at its end.

Several router processes of one machine listen on the same TCP ports (`SO_REUSEPORT`: the kernel gives
each connection to one of them), and each process of a group on a Unix socket of its own beside, where
its siblings ask it for its figures.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from app.config_addresses import read_bind
from ingest.log.segment_files import LogHeld
from ingest.log.unix_socket import clear
from router.ingress.http_server import Door

log = structlog.get_logger("picklog")

FAILED_GRACE_S = 5.0  # for requests in flight, where others wait for a new process
SOCKET_FOLDER = "run"


class DoorPlan(NamedTuple):
    """Where to listen. addresses: None for those of the configuration. is_shared: others listen there too.

    own_socket: a Unix socket beside them, for siblings.
    """

    addresses: tuple[str, ...] | None = None
    is_shared: bool = False
    own_socket: Path | None = None


class Doors:
    """The doors of one process. ports: TCP ports taken so far."""

    def __init__(self, door: Door, plan: DoorPlan) -> None:
        self.ports: list[int] = []
        self._door = door
        self._plan = plan
        self._closing: asyncio.Task[None] | None = None
        self._named: Path | None = None

    async def open(self, configured: tuple[str, ...]) -> None:
        """Listen. Raises OSError with what to change, LogHeld where another process has the own socket."""
        plan = self._plan
        if plan.own_socket is not None:
            plan.own_socket.parent.mkdir(mode=0o700, exist_ok=True)
            clear(plan.own_socket)  # of a process that was killed; never of one that lives
            await self._door.listen_unix(_short(plan.own_socket))
            self._named = plan.own_socket
        for text in configured if plan.addresses is None else plan.addresses:
            bind = read_bind(text)
            try:
                if bind.unix_path is not None:
                    make_way(bind.unix_path)
                    await self._door.listen_unix(bind.unix_path)
                    log.info("listening", address=text)
                else:
                    port = await self._door.listen_tcp(bind.host, bind.port, reuse_port=plan.is_shared)
                    self.ports.append(port)
                    log.info("listening", address=f"{bind.host}:{port}")
            except OSError as problem:
                number = problem.errno or 0
                why = os.strerror(number) if number > 0 else problem.strerror
                raise OSError(number, f"{why}: change server.bind_address", text) from problem

    async def close(self, *, failed: bool, is_impatient: Callable[[], bool]) -> None:
        """Let requests in flight end; for a short while where others wait for a new process."""
        if self._named is not None:
            self._named.unlink(missing_ok=True)  # while it still listens, so nobody can have replaced it
        self._closing = asyncio.create_task(self._door.close())
        await asyncio.sleep(0)  # it stops listening, also where the next line cancels it
        if is_impatient():
            self._closing.cancel()
        await asyncio.wait({self._closing}, timeout=FAILED_GRACE_S if failed else None)
        if not self._closing.done() or self._closing.cancelled():
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)
            await self._door.abort()

    def hurry(self) -> None:
        """Wait for requests in flight no longer."""
        if self._closing is not None:
            self._closing.cancel()


def _short(path: Path) -> str:
    """The path from here where that is shorter: a socket's name has about a hundred bytes."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def make_way(path: str) -> None:
    """Remove the Unix socket that a dead process left. Raises OSError where a living one answers.

    Whoever binds next would else take the name away from it, and its clients would go to nobody.
    """
    try:
        clear(Path(path))
    except LogHeld:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path) from None
