"""The log as a router process writes it: through the owner's socket, read from the same files.

What becomes of a commit that gets no answer:

    no connection, or the batch was not sent whole   CommitFailed: the owner commits whole batches only
    sent whole, then lost or late                    CommitUnclear

CommitUnclear makes the appender read the log for what it sent, so it is told only when
that is decided: the connection is closed, and a new one made. A living owner welcomes this
session again when the old connection has ended, its batch committed or dropped; another
owner has recovered the log before it listens. Either way whatever landed is visible when
the welcome comes. Where no owner comes within the patience, CommitUnclear is told all the
same, and the batch may turn up when the next owner recovers what the dead one left. That is
harmless: the appender goes on as a new writer, whose first record names the old one, and
what both tell takes effect once (decision 7).

An owner whose log has another id, ends before what it acknowledged, or is of another
release ends this store: LogFailed, and the process has to start again.

`commit` is for one thread, `close` for any other one; reads are for the thread of the reader.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from typing import NoReturn

import structlog

from ingest.log.socket_frames import (
    HEAD_BYTES,
    SESSION_BYTES,
    FrameRefused,
    FrameType,
    OtherProtocol,
    Reason,
    batch_frame,
    decode_head,
    first_offset_of,
    hello_frame,
    refusal_of,
    welcome_of,
)
from ingest.log.unix_socket import connect, receive, send
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from projections.events.kinds import SCHEMA
from projections.events.ports import (
    CommitFailed,
    CommitUnclear,
    LogError,
    LogFailed,
    LogFull,
    LogReader,
    RecordBatch,
)

PATIENCE_S = 30.0  # for an answer; then once more for an owner that can say what became of it
AGAIN_S = 0.1

_ERRORS: dict[Reason, type[LogError]] = {
    Reason.FULL: LogFull,
    Reason.FAILED: CommitFailed,
    Reason.UNCLEAR: CommitUnclear,
}
"""What an owner's refusal means here; any other one ends the store."""

log = structlog.get_logger("picklog.log")


class SocketStore:
    """LogStore of a router process. reader: of the owner's data directory; it stays the caller's to close."""

    def __init__(self, path: Path, reader: LogReader, *, patience_s: float = PATIENCE_S) -> None:
        """path: where the owner listens, now or later."""
        self._path = path
        self._reader = reader
        self._patience_s = patience_s
        self._log_id = reader.log_id
        self._session = os.urandom(SESSION_BYTES)
        self._number = 0
        self._written = 0  # one past the last offset that was acknowledged here
        self._is_full = False
        self._failed: str | None = None
        self._busy = Lock()  # held by a commit
        self._lock = Lock()  # of what `close` looks at meanwhile
        self._connection: socket.socket | None = None
        self._closing = Event()

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    def first_offset(self) -> int:
        """See LogReader."""
        return self._reader.first_offset()

    def end_offset(self) -> int:
        """See LogReader."""
        return self._reader.end_offset()

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        return self._reader.read(start, bytes_max)

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader."""
        await self._reader.wait(offset, timeout_s)

    def is_full(self) -> bool:
        """See LogStore. As the owner said last."""
        return self._is_full

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore. Blocks, for the patience twice at most.

        Raises CommitFailed, CommitUnclear, LogFull, and LogFailed once it is closed or over.
        """
        if self._failed is not None:
            raise LogFailed(self._failed)
        size = sum(map(len, records))
        if len(records) > COMMIT_BATCH_RECORDS_MAX or size > COMMIT_BATCH_BYTES_MAX:
            raise CommitFailed(f"a batch of {len(records)} records, {size} bytes: send smaller batches")
        if any(len(record) > RECORD_BYTES_MAX for record in records):
            raise CommitFailed(f"a record above the ceiling of {RECORD_BYTES_MAX} bytes: it is never split")
        with self._busy:
            return self._commit(records, critical)

    def close(self) -> None:
        """Hang up. A commit under way, and every later one, ends with LogFailed."""
        with self._lock:
            self._failed = self._failed or f"{self._path}: this process has closed its log"
            self._closing.set()
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
        with self._busy:
            self._hang_up()

    # Talking -------------------------------------------------------------------------

    def _commit(self, records: Sequence[bytes], critical: bool) -> int:
        self._number += 1
        frame = batch_frame(self._number, records, critical)
        deadline = time.monotonic() + self._patience_s
        try:
            connection = self._connection or self._connect(deadline)
            send(connection, frame, deadline)
        except (OSError, FrameRefused) as problem:
            self._hang_up()
            if self._failed is not None:
                raise LogFailed(self._failed) from problem
            raise CommitFailed(f"{self._path}: the log's owner does not take it ({problem})") from problem
        try:
            first = self._answer(connection, deadline)
        except (OSError, FrameRefused) as problem:
            self._hang_up()
            log.warning("the log's owner did not answer", error=str(problem))
            self._until_decided(time.monotonic() + self._patience_s)
            raise CommitUnclear(f"{self._path}: no acknowledgement ({problem})") from problem
        if first < self._written:
            self._fail(f"its log gave offset {first} again, {self._written} was due")
        self._written = first + len(records)
        return first

    def _connect(self, deadline: float) -> socket.socket:
        """A connection to an owner of this very log. Raises OSError, FrameRefused, LogFailed."""
        connection = connect(self._path, deadline)
        with self._lock:
            self._connection = connection
            if self._failed is not None:
                connection.shutdown(socket.SHUT_RDWR)
        try:
            send(connection, hello_frame(self._session), deadline)
            head = decode_head(
                receive(connection, HEAD_BYTES, deadline), FrameType.WELCOME, FrameType.REFUSED
            )
            payload = receive(connection, head.size, deadline)
        except OtherProtocol as problem:
            self._fail(str(problem))
        if head.type is FrameType.REFUSED:
            reason, text = refusal_of(payload)
            raise FrameRefused(f"{reason.name.lower()}: {text}")
        welcome = welcome_of(payload)
        if welcome.log_id != self._log_id:
            self._fail("the data directory was replaced, it holds another log")
        if welcome.schema != SCHEMA:
            self._fail(f"its records have schema {welcome.schema}, this release writes {SCHEMA}")
        if welcome.end_offset < self._written:
            self._fail(f"its log ends at offset {welcome.end_offset}, up to {self._written} was acknowledged")
        self._is_full = head.flag
        return connection

    def _answer(self, connection: socket.socket, deadline: float) -> int:
        """The first offset of the batch that was sent. Raises OSError, FrameRefused, and as `commit`."""
        due = (FrameType.ACKNOWLEDGED, FrameType.REFUSED)
        head = decode_head(receive(connection, HEAD_BYTES, deadline), *due)
        payload = receive(connection, head.size, deadline)
        if head.number != self._number:
            raise FrameRefused(f"an answer to batch {head.number}, {self._number} is under way")
        self._is_full = head.flag
        if head.type is FrameType.ACKNOWLEDGED:
            return first_offset_of(payload)
        reason, text = refusal_of(payload)
        error = _ERRORS.get(reason)
        if error is None:
            self._fail(text)
        raise error(text)

    def _until_decided(self, deadline: float) -> None:
        """Return once an owner can say that the last batch is in the log or never will be, or too late."""
        while self._failed is None:
            try:
                self._connect(deadline)
                return
            except (OSError, FrameRefused) as problem:
                self._hang_up()
                if time.monotonic() > deadline:
                    log.error("no owner of the log tells what became of a batch", error=str(problem))
                    return
                self._closing.wait(AGAIN_S)
        raise LogFailed(self._failed)

    def _hang_up(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _fail(self, what: str) -> NoReturn:
        self._hang_up()
        self._failed = f"{self._path}: {what}: exit and start again"
        raise LogFailed(self._failed)
