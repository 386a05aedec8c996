"""Unix stream sockets with blocking calls: names of any length, exact reads, one deadline for each step.

The kernel takes names of up to 107 bytes. A longer one is reached through an open
descriptor of its folder, `/proc/self/fd/N/NAME`; the working directory, which all threads
share, stays as it is.

Deadlines are of `time.monotonic`, seconds. All calls raise OSError: TimeoutError beyond a
deadline, ConnectionError where the other end is gone.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.log.segment_files import LogHeld

NAME_BYTES_MAX = 107
PROBE_S = 1.0


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A name of `path` that the kernel takes, as long as the context is open."""
    if len(os.fsencode(path)) <= NAME_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, deadline: float) -> socket.socket:
    """A connection to whoever listens at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left(deadline))
        with address_of(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def listen(path: Path, backlog: int) -> socket.socket:
    """Listen at `path`, for this user alone; what a dead listener left there is replaced.

    Raises LogHeld where a living one answers, FileExistsError where no socket is there.
    """
    clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            listener.bind(address)
        path.chmod(0o600)  # before `listen`, so nobody can have come in earlier
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def clear(path: Path) -> None:
    """Remove the name that a dead listener left. Raises as `listen`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "no socket, and not removed", str(path))
    try:
        connect(path, time.monotonic() + PROBE_S).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except (BlockingIOError, TimeoutError):
        raise LogHeld(f"{path} is held by a process that does not answer: stop it") from None
    else:
        raise LogHeld(f"{path} is answered by another process: stop it, or use another data directory")


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly `size` bytes."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        connection.settimeout(_left(deadline))
        step = connection.recv_into(view)
        if not step:
            raise ConnectionResetError(errno.ECONNRESET, f"closed {len(view)} bytes early")
        view = view[step:]
    return bytes(buffer)


def send(connection: socket.socket, data: bytes, deadline: float) -> None:
    """All of `data`; where it raises, the last byte was not sent."""
    connection.settimeout(_left(deadline))
    connection.sendall(data)


def wait_for_data(connection: socket.socket) -> bool:
    """Wait, without limit, until there is something to receive; False at the end."""
    connection.settimeout(None)
    return bool(connection.recv(1, socket.MSG_PEEK))


def is_gone(connection: socket.socket) -> bool:
    """Whether the other end has closed, and nothing more is to be received."""
    connection.settimeout(0)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return left
