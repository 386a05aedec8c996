"""A TCP detour on loopback that a test can cut, or make deaf to answers, while both ends live on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

PIECE_BYTES = 1 << 16


class Detour:
    """Takes connections on `port` and passes them on to `target`, from `open` to `close`.

    cut: nothing gets through in either direction, and no connection is refused or closed, as with a
    network that is gone. swallow: requests arrive, answers do not. restore: open connections are
    closed, since bytes are missing in them, and new ones pass.
    """

    def __init__(self, port: int, target: Callable[[], int]) -> None:
        """target: the port to pass on to, asked for each connection."""
        self.port = port
        self._target = target
        self._passes_up = True
        self._passes_down = True
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """See the class."""
        self._passes_up = self._passes_down = False

    def swallow(self) -> None:
        """See the class."""
        self._passes_down = False

    def restore(self) -> None:
        """See the class."""
        with self._lock:
            ended, self._open = self._open, []
            self._passes_up = self._passes_down = True
        for one in ended:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Take no more connections and close those that are open."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.restore()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target()))
            except OSError:
                if self._listening.fileno() < 0:
                    return
                with suppress(OSError, UnboundLocalError):
                    client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, sink, is_up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(source, sink, is_up), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if self._passes_up if is_up else self._passes_down:
                    sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
