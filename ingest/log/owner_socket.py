"""The owner's door for router processes: they append to its log over a Unix socket (decision 42).

One thread for each connection, so no fdatasync holds the owner's event loop; what several
of them bring at once shares one commit (`grouped_store`). A router may write what anybody
may write, with epoch 0: every record is decoded before it goes to the log, and an owner's
kinds are refused. Bytes that are no frame, or that no router may write, end their
connection, counted and logged; they never end the owner.

    owner                         router
          <----- HELLO ----------
          ------ WELCOME ------->        once no earlier connection of the same session is at work
          <----- BATCH ----------
          ------ ACKNOWLEDGED -->        or REFUSED
          ...

A router that lost its connection does not know what became of its last batch. So a batch
whose connection was closed before the store has it is dropped, and a session is welcomed
again only when its earlier connection has ended: by then the batch is in the log, below
the end offset of the welcome, or never will be.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

import structlog

from ingest.log.grouped_store import GroupedStore
from ingest.log.socket_frames import (
    HEAD_BYTES,
    FrameRefused,
    FrameType,
    Head,
    Reason,
    Welcome,
    acknowledged_frame,
    decode_head,
    records_of,
    refused_frame,
    welcome_frame,
)
from ingest.log.unix_socket import is_gone, listen, receive, send, wait_for_data
from projections.events.codec import RecordRefused, decode_parts
from projections.events.envelope import REPLICA_EPOCH
from projections.events.kinds import FACT_KINDS, SCHEMA, Speaker
from projections.events.ports import CommitUnclear, LogError, LogFailed, LogFull

CONNECTIONS_MAX = 64  # of routers on one machine; each may bring a batch of 8 MiB
BACKLOG = 64
HELLO_S = 10.0  # for a hello, from the connection on
FRAME_S = 30.0  # for the rest of a frame, from its first byte on
REPLY_S = 5.0  # for an answer, which fits the socket's buffer
LOOK_S = 0.25
PAUSE_S = 0.1  # when no connection can be accepted

_ROUTER_KINDS = frozenset(kind for kind, row in FACT_KINDS.items() if row.speaker is Speaker.ANYBODY)

log = structlog.get_logger("picklog.log")


class OwnerSocket:
    """Listens from its making on; `close` it before the store.

    malformed:   connections that were ended for what they sent, or did not send or take in time.
    turned_away: connections above `connections_max`.
    """

    def __init__(self, path: Path, store: GroupedStore, *, connections_max: int = CONNECTIONS_MAX) -> None:
        """path: in a folder of the owner alone. Raises LogHeld where another process answers, OSError."""
        self.malformed = 0
        self.turned_away = 0
        self._path = path
        self._store = store
        self._connections_max = connections_max
        self._lock = Lock()
        self._connections: set[_Connection] = set()
        self._sessions: dict[bytes, _Connection] = {}
        self._closing = Event()
        self._listener = listen(path, BACKLOG)
        self._thread = Thread(target=self._accept, name="log-socket", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._connections)

    def close(self) -> None:
        """Take no more; wait for commits under way, whose routers are still told."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        with self._lock:
            left = list(self._connections)
        for connection in left:
            connection.end()
        for connection in left:
            connection.thread.join()

    # Coming and going ----------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError as problem:
                if not self._closing.is_set():
                    log.error("no router can connect to the log's owner", error=str(problem))
                    self._closing.wait(PAUSE_S)
                continue
            try:
                self._let_in(accepted)
            except Exception:  # no memory, no thread: the next one may fare better
                log.exception("a router was not let in")
                accepted.close()

    def _let_in(self, accepted: socket.socket) -> None:
        with self._lock:
            if len(self._connections) < self._connections_max:
                connection = _Connection(accepted, self)
                connection.thread.start()
                self._connections.add(connection)
                return
        self.turned_away += 1
        log.warning("a router was turned away", connections=self._connections_max)
        busy = refused_frame(0, Reason.BUSY, f"{self._connections_max} connections are open", False)
        with accepted, suppress(OSError):
            send(accepted, busy, time.monotonic() + REPLY_S)

    def serve(self, connection: _Connection) -> None:
        """All of one connection, in its thread."""
        try:
            self._greet(connection)
            while self._answer(connection):
                pass
        except (FrameRefused, TimeoutError) as problem:
            with self._lock:
                self.malformed += 1
            log.warning("the connection of a router was ended", cause=str(problem))
            connection.refuse(str(problem))
        except OSError:
            pass  # it is gone, as a router that ends is
        except Exception:
            log.exception("the connection of a router was ended by a fault")
        finally:
            with self._lock:
                self._connections.discard(connection)
                if self._sessions.get(connection.session) is connection:
                    del self._sessions[connection.session]
            connection.socket.close()

    # Talking -------------------------------------------------------------------------

    def _greet(self, connection: _Connection) -> None:
        """Take the hello, and welcome it once its session's earlier connection has ended."""
        _, connection.session = connection.frame(FrameType.HELLO, time.monotonic() + HELLO_S)
        with self._lock:
            earlier = self._sessions.get(connection.session)
            self._sessions[connection.session] = connection
        if earlier is not None:
            earlier.end()
            while earlier.thread.is_alive():
                if is_gone(connection.socket):
                    raise ConnectionResetError
                earlier.thread.join(LOOK_S)
        store = self._store
        welcome = Welcome(store.log_id, store.end_offset(), SCHEMA)
        connection.reply(welcome_frame(welcome, store.is_full()))

    def _answer(self, connection: _Connection) -> bool:
        """Commit the next batch; False where none comes."""
        if not wait_for_data(connection.socket):
            return False
        head, payload = connection.frame(FrameType.BATCH, time.monotonic() + FRAME_S)
        records = records_of(head, payload)
        _check(records)
        if is_gone(connection.socket):
            return False
        store = self._store
        try:
            first = store.commit(records, head.flag)
        except LogError as problem:
            frame = refused_frame(head.number, _reason_of(problem), str(problem), store.is_full())
        else:
            frame = acknowledged_frame(head.number, first, store.is_full())
        connection.reply(frame)
        return True


class _Connection:
    """One router's connection, and the thread that serves it. session: b"" before the hello."""

    def __init__(self, accepted: socket.socket, door: OwnerSocket) -> None:
        self.socket = accepted
        self.session = b""
        self.number = 0  # of the last batch that was begun
        self.thread = Thread(target=door.serve, args=(self,), name="log-router", daemon=True)

    def frame(self, due: FrameType, deadline: float) -> tuple[Head, bytes]:
        """The next frame. Raises FrameRefused, OSError."""
        head = decode_head(receive(self.socket, HEAD_BYTES, deadline), due)
        self.number = head.number
        return head, receive(self.socket, head.size, deadline)

    def reply(self, frame: bytes) -> None:
        """Raises OSError."""
        send(self.socket, frame, time.monotonic() + REPLY_S)

    def refuse(self, cause: str) -> None:
        """Say why it ends, if that can be heard."""
        with suppress(OSError):
            self.reply(refused_frame(self.number, Reason.UNFIT, cause, False))

    def end(self) -> None:
        """Receive nothing more: its thread ends, behind the commit that is under way."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)


def _check(records: list[bytes]) -> None:
    """Raise FrameRefused unless a router may write all of these."""
    for index, data in enumerate(records):
        try:
            _, values, _ = decode_parts(data)
        except RecordRefused as refusal:
            raise FrameRefused(f"record {index} of a batch: {refusal}") from refusal
        kind, _, _, epoch, *_ = values
        if kind not in _ROUTER_KINDS or epoch != REPLICA_EPOCH:
            raise FrameRefused(f"record {index} of a batch: kind {kind} is not a router's to write")


def _reason_of(problem: LogError) -> Reason:
    if isinstance(problem, LogFailed):
        return Reason.OVER
    if isinstance(problem, CommitUnclear):
        return Reason.UNCLEAR
    return Reason.FULL if isinstance(problem, LogFull) else Reason.FAILED
