"""A network namespace that has the loopback interface and nothing else.

Dynamo's event publishers bind every address, and releases before 1.6 announce the machine's
primary address for them with no setting against it. Where only loopback exists they announce
127.0.0.1, and nobody outside can reach them. `enter` moves the calling process there (its later
children too); it needs root or unprivileged user namespaces, and says so where it has neither.

A socket belongs to the namespace it was made in, so a listener opened before `enter` still
takes connections from outside: `Bridge` carries those to a port inside.

    python -m deploy.demo.loopback COMMAND [ARG ...]    runs COMMAND inside, or as it is, with a warning

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x41
RELAY_BYTES = 65_536
BRIDGED_CONNECTIONS_MAX = 256


class NoNamespace(RuntimeError):
    """This machine lets us make no network namespace; the message says why."""


def is_only_loopback() -> bool:
    """True when the calling process sees no other network interface than `lo`."""
    return {name for _, name in socket.if_nameindex()} <= {"lo"}


def enter() -> None:
    """Move this process into a fresh namespace with `lo` up. Call it while there is one thread.

    Raises NoNamespace where the kernel refuses; the process then stays where it was.
    """
    if is_only_loopback():
        return
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWUSER | CLONE_NEWNET
    if libc.unshare(flags) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NoNamespace(f"no network namespace: {reason} (needs root or unprivileged user namespaces)")
    if uid != 0:
        # the same ids inside as outside: files keep their owner
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


class Bridge:
    """Carries each connection of `listener` (of any namespace) to 127.0.0.1:`port` of this one.

    At most BRIDGED_CONNECTIONS_MAX at a time; more wait in the listener's backlog.
    """

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener = listener
        self._target = ("127.0.0.1", port)
        self._slots = threading.BoundedSemaphore(BRIDGED_CONNECTIONS_MAX)
        threading.Thread(target=self._accept, name="bridge", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            with client, socket.create_connection(self._target, timeout=10) as server:
                server.settimeout(None)
                upward = threading.Thread(target=_copy, args=(client, server), daemon=True)
                upward.start()
                _copy(server, client)
                upward.join()
        except OSError:
            pass  # the inner side is gone; the client sees its connection close
        finally:
            self._slots.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Bytes from one to the other until the end, then pass the end on."""
    try:
        while data := source.recv(RELAY_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def main(argv: Sequence[str]) -> int:
    """Become the command, inside where possible. Returns only when there is nothing to become."""
    if not argv:
        print("usage: python -m deploy.demo.loopback COMMAND [ARG ...]", file=sys.stderr)
        return 2
    if shutil.which(argv[0]) is None:
        print(f"loopback: there is no command {argv[0]}", file=sys.stderr)
        return 2
    try:
        enter()
    except NoNamespace as problem:
        print(f"loopback: {problem}; running as it is", file=sys.stderr)
    sys.stderr.flush()
    return os.execvp(argv[0], list(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
