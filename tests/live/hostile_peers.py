"""A fleet and a frontend of a few lines that do whatever a test tells them, before a real router process.

The fleet is a file store whose files this process keeps alive; no Dynamo is needed. The
frontend keeps each request as it came and answers as a function says. All calls block.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from deploy.demo.addresses import free_port
from tests.live.router_process import RouterProcess

MODEL = "tiny-chat"
TOUCH_S = 2.0
ANSWER = json.dumps(
    {"model": MODEL, "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}
).encode()
Answering = Callable[[socket.socket, bytes], bool]


def counted(body: bytes = ANSWER, *lines: bytes) -> bytes:
    """A whole answer of a frontend."""
    head = [b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


class Store:
    """Dynamo's file store with aggregated workers, and whatever else is put there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: set[Path] = set()
        self._ending = threading.Event()
        for bucket in ("instances", "mdc", "event_channels", "event_sources"):
            (root / "v1" / bucket).mkdir(parents=True)
        self._toucher = threading.Thread(target=self._touch)
        self._toucher.start()

    def path(self, bucket: str, key: str) -> Path:
        """Where the store keeps a key: every byte but ASCII letters and digits is escaped."""
        name = "".join(
            chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in key.encode()
        )
        return self.root / "v1" / bucket / name

    def put(self, bucket: str, key: str, value: Any) -> Path:
        path = self.path(bucket, key)
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        self._kept.add(path)
        return path

    def worker(self, instance_id: int, **card: Any) -> None:
        """A worker with its card. card: members that are other than usual."""
        key = f"dynamo/backend/generate/{instance_id:x}"
        place = {
            "namespace": "dynamo",
            "component": "backend",
            "endpoint": "generate",
            "instance_id": instance_id,
        }
        described = {
            "display_name": MODEL,
            "model_type": "Chat | Completions",
            "worker_type": "aggregated",
            "kv_cache_block_size": 16,
            "runtime_config": {"total_kv_blocks": 1024, "data_parallel_size": 1},
            **card,
        }
        self.put("instances", key, {"type": "Endpoint", "transport": {"tcp": "127.0.0.1:1"}, **place})
        self.put("mdc", key, {"type": "Model", "card_json": described, **place})

    def channel(self, publisher_id: int, endpoint: str) -> None:
        """A publisher of load at an address."""
        scope = {
            "kind": "endpoint",
            "endpoint": {"namespace": "dynamo", "component": "backend", "name": "generate"},
        }
        self.put(
            "event_channels",
            f"namespace/dynamo/component/backend/endpoint/generate/topic/kv_metrics/{publisher_id:x}",
            {
                "type": "EventChannel",
                "scope": scope,
                "topic": "kv_metrics",
                "instance_id": publisher_id,
                "transport": {"kind": "Zmq", "config": {"endpoint": endpoint}},
            },
        )

    def close(self) -> None:
        self._ending.set()
        self._toucher.join()

    def _touch(self) -> None:
        while not self._ending.wait(TOUCH_S):
            for path in list(self._kept):
                with suppress(OSError):
                    os.utime(path)


class Frontend:
    """Keeps what it is sent. answering: writes an answer; whether the connection goes on."""

    def __init__(self) -> None:
        self.answering: Answering | None = None
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        self.heads.clear()
        self.bodies.clear()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
                size = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
                pieces = [data]
                while (missing := size - sum(map(len, pieces))) > 0:
                    pieces.append(connection.recv(min(missing, 1 << 20)))
                    if not pieces[-1]:
                        return
                body, data = b"".join(pieces)[:size], b"".join(pieces)[size:]
                if not self._answer(connection, head, body):
                    return

    def _answer(self, connection: socket.socket, head: bytes, body: bytes) -> bool:
        if head.split()[1] == b"/v1/models":
            connection.sendall(counted(json.dumps({"object": "list", "data": [{"id": MODEL}]}).encode()))
            return True
        self.heads.append(head)
        self.bodies.append(body)
        if self.answering is not None:
            return self.answering(connection, body)
        connection.sendall(counted())
        return True


class Hostile:
    """A router with its store and its frontend."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "store")
        self.frontend = Frontend()
        self.store.worker(31)
        self.store.worker(32)
        port = free_port()
        config = {
            "server": {"bind_address": f"127.0.0.1:{port}"},
            "backends": [
                {
                    "name": "frontend-1",
                    "type": "openai",
                    "role": "unified",
                    "url": self.frontend.url,
                    "models": [MODEL],
                }
            ],
            "health_checks": {"interval": "1s"},
            "disaggregated_serving": {"enabled": True},
            "dynamo": {
                "enabled": True,
                "discovery": {
                    "source": "file",
                    "file": {"root": str(self.store.root), "namespace": "dynamo"},
                },
                "load": {"direct_allow_cidrs": ["127.0.0.0/8"]},
                "shim": {"backends": ["frontend-1"]},
            },
            "log": {"raw": {"enabled": False}, "retention": {"bytes": "256MiB"}},
            "checkpoints": {"bytes": "64MiB"},
        }
        self.router = RouterProcess(folder / "router", config, port)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.router.port), timeout=20)

    def exchange(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own; what comes until the router closes it."""
        with self.connect() as client:
            client.sendall(data)
            found = b""
            with suppress(ConnectionError):
                while piece := client.recv(65536):
                    found += piece
            return found

    def status(self, body: bytes, *lines: bytes, path: bytes = b"/v1/chat/completions") -> int:
        """The status of the answer to one request."""
        return int(self.exchange(request(body, *lines, b"connection: close", path=path)).split(b" ", 2)[1])

    def resident_mib(self) -> float:
        """Memory of the router's process."""
        text = Path(f"/proc/{self.router.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def close(self) -> None:
        self.router.close()
        self.frontend.close()
        self.store.close()


def request(body: bytes, *lines: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    """One request as bytes."""
    head = [b"POST " + path + b" HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@contextmanager
def hostile(folder: Path) -> Iterator[Hostile]:
    """A ready router between a store and a frontend that are ours to misuse."""
    made = Hostile(folder)
    try:
        made.router.start()
        yield made
    finally:
        made.close()
