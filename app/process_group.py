"""`picklog serve --routers N`: the parent of an owner and N routers, which serves nothing itself.

    parent +- ingest   owns the log, discovers, subscribes; its follower beside it
           +- router-1 .. router-N   fold the same segments, pick and relay on one shared port

A child that ends is started again. The parent holds the shared ports, unheard, so that a port of 0 is
the same for all and stays taken while a router is started anew. Children end with their parent, also
where it is killed: each watches it.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import structlog

from app.config_addresses import AddressFault, Bind, read_bind
from app.config_load import LoadedConfig
from app.doors import SOCKET_FOLDER
from app.processes import Child
from ingest.log.segment_files import LogHeld
from ingest.log.unix_socket import clear

log = structlog.get_logger("picklog.process")

ROUTER_GRACE_S = 35.0  # its requests in flight have 30 s
INGEST_GRACE_S = 15.0  # it waits for a last checkpoint
FIRST_START_S = 20.0  # an owner that ends within, at its first start, has no log to own


class ProcessGroup:
    """Keeps the processes of one data directory. Build it inside the loop, then `run`."""

    def __init__(self, loaded: LoadedConfig, data: Path, routers: int) -> None:
        """Raises OSError where an address is taken, AddressFault for a Unix socket: it has one listener."""
        self._held: list[socket.socket] = []
        try:
            addresses = [self._hold(text) for text in loaded.config.server.bind_address]
        except BaseException:
            self._let_go()
            raise
        self._data = data
        common = ["--data", str(data)]
        if loaded.path is not None:
            common += ["-c", str(loaded.path)]
        self.ingest = Child("ingest", ["ingest", *common, "--member", "ingest"], on_end=self._ended)
        self.routers: list[Child] = []
        for number in range(1, routers + 1):
            name = f"router-{number}"
            binds = [word for address in addresses for word in ("--bind", address)]
            self.routers.append(Child(name, ["router", *common, "--member", name, *binds]))
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Keep them until told to stop; the exit status: the owner's where it cannot begin."""
        _clear_sockets(self._data)
        for child in (self.ingest, *self.routers):
            child.start()
        await self._stopping.wait()
        log.info("stopping", routers=len(self.routers))
        await asyncio.gather(*(child.stop(ROUTER_GRACE_S) for child in self.routers))
        await self.ingest.stop(INGEST_GRACE_S)
        self._let_go()
        return self._status

    def stop(self) -> None:
        """Ask all to end; a second time without waiting for requests in flight."""
        if self._stopping.is_set():
            for child in (*self.routers, self.ingest):
                child.hurry()
        self._stopping.set()

    def _ended(self, starts: int, status: int, lived_s: float) -> None:
        """An owner that cannot own the log at all is no reason to start routers for ever."""
        if starts == 1 and status in (2, 3) and lived_s < FIRST_START_S:
            self._status = status
            self._stopping.set()

    def _let_go(self) -> None:
        for held in self._held:
            held.close()

    def _hold(self, text: str) -> str:
        bind = read_bind(text)
        if bind.unix_path is not None:
            raise AddressFault(
                f"{text}: several routers cannot listen on one Unix socket",
                "name a TCP port in server.bind_address",
            )
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        held = socket.socket(family, kind, protocol)
        self._held.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(address)
        except OSError as problem:
            why = f"{problem.strerror}: change server.bind_address"
            raise OSError(problem.errno, why, text) from problem
        return _address(bind, held.getsockname()[1])


def _clear_sockets(data: Path) -> None:
    """Remove the names that killed processes left: nobody may wait for the figures of one that is no more."""
    for path in (data / SOCKET_FOLDER).glob("*.sock"):
        with suppress(LogHeld, OSError):
            clear(path)


def _address(bind: Bind, port: int) -> str:
    return f"[{bind.host}]:{port}" if ":" in bind.host else f"{bind.host}:{port}"
