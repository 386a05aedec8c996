"""An owner with its socket, stores that wait, and routers that speak badly, for the tests of this folder."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

from ingest.log.grouped_store import GroupedStore
from ingest.log.owner_socket import OwnerSocket
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.socket_frames import (
    HEAD_BYTES,
    FrameType,
    Head,
    Welcome,
    decode_head,
    hello_frame,
    welcome_frame,
    welcome_of,
)
from ingest.log.unix_socket import connect, listen, receive, send, wait_for_data
from projections.events.kinds import SCHEMA
from projections.events.ports import MemoryLog
from tests.ingest.log.log_places import SMALL, UnsyncedDisk

SOCKET_NAME = "owner.sock"
SESSION = b"session-16-bytes"
EVERY_TYPE = tuple(FrameType)


def soon() -> float:
    """A deadline that is met, or the test fails."""
    return time.monotonic() + 20


def until(condition: Callable[[], bool]) -> None:
    """Return once it holds; for what another thread does and nobody is told of."""
    pause, deadline = Event(), soon()
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        pause.wait(0.001)


class Owned:
    """An owner's log and its socket in one process."""

    def __init__(self, data: Path, settings: SegmentSettings = SMALL, disk: Any = None, **more: int) -> None:
        self.log = SegmentLog.open_owner(data, settings, disk or UnsyncedDisk())
        self.store = GroupedStore(self.log)
        self.path = data / SOCKET_NAME
        self.door = OwnerSocket(self.path, self.store, **more)

    def close(self) -> None:
        self.door.close()
        self.log.close()


class HeldStore(MemoryLog):
    """A log whose commits wait to be let go, one by one. commits: what came, in order."""

    def __init__(self) -> None:
        super().__init__(bytes(range(16)))
        self.commits: list[tuple[list[bytes], bool]] = []
        self.entered = Semaphore(0)
        self.going = Semaphore(0)
        self.problems: list[BaseException | None] = []
        self.has_room = True

    def is_full(self) -> bool:
        return not self.has_room

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        self.commits.append((list(records), critical))
        self.entered.release()
        assert self.going.acquire(timeout=20), "nobody let the commit go"
        problem = self.problems.pop(0) if self.problems else None
        if problem is not None:
            raise problem
        return super().commit(records, critical)

    def let_go(self, commits: int = 1) -> None:
        self.going.release(commits)


class Caller:
    """A commit in a thread of its own; `outcome` is its offset or what it raised."""

    def __init__(self, commit: Callable[[], int]) -> None:
        self._outcomes: SimpleQueue[int | BaseException] = SimpleQueue()
        self._commit = commit
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcomes.put(self._commit())
        except BaseException as problem:
            self._outcomes.put(problem)

    def outcome(self) -> int | BaseException:
        return self._outcomes.get(timeout=20)

    @property
    def is_done(self) -> bool:
        return not self._outcomes.empty()


class Router:
    """A router's end of a connection, without the manners of SocketStore."""

    def __init__(self, path: Path, session: bytes | None = SESSION) -> None:
        self.socket = connect(path, soon())
        if session is not None:
            self.send(hello_frame(session))

    def send(self, data: bytes) -> None:
        send(self.socket, data, soon())

    def frame(self) -> tuple[Head, bytes]:
        head = decode_head(receive(self.socket, HEAD_BYTES, soon()), *EVERY_TYPE)
        return head, receive(self.socket, head.size, soon())

    def welcome(self) -> Welcome:
        head, payload = self.frame()
        assert head.type is FrameType.WELCOME
        return welcome_of(payload)

    def wait_for_end(self) -> None:
        """Read until the owner has hung up."""
        self.socket.settimeout(20)
        with suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass

    def close(self) -> None:
        self.socket.close()


class BadOwner:
    """Listens where an owner would; `act` is called with each connection, in a thread.

    It hears the hello and answers it before, unless `welcome` is None.
    """

    def __init__(
        self, path: Path, act: Callable[[socket.socket], object], welcome: Welcome | bytes | None
    ) -> None:
        self.socket = listen(path, 8)
        self._act = act
        self._welcome = welcome_frame(welcome, False) if isinstance(welcome, Welcome) else welcome
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # a router that is gone ends the talk
                if self._welcome is not None:
                    head_of(connection)
                    send(connection, self._welcome, soon())
                self._act(connection)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def head_of(connection: socket.socket) -> Head:
    """Take one whole frame; its head. Raises OSError."""
    wait_for_data(connection)
    head = decode_head(receive(connection, HEAD_BYTES, soon()), *EVERY_TYPE)
    receive(connection, head.size, soon())
    return head


def welcome_to(log: SegmentLog) -> Welcome:
    """What an owner of this log says."""
    return Welcome(log.log_id, log.end_offset(), SCHEMA)
