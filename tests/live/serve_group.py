"""A `picklog serve --routers N` as its users run it, and each of its processes by name."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.demo.addresses import free_port
from deploy.demo.fleet import Fleet
from ingest.log.segment_log import SegmentLog
from projections.events.codec import decode_record
from projections.events.envelope import Record
from replay.engine import records_of
from tests.live.router_process import RouterProcess, pool_config, until


class ServeGroup(RouterProcess):
    """The parent is the process that is started and signalled here."""

    def __init__(self, fleet: Fleet, folder: Path, routers: int, **settings: Any) -> None:
        port = free_port()
        config = pool_config(fleet, port, **settings)
        super().__init__(folder, config, port, "serve", ("--routers", str(routers)))
        self.names = ["ingest", *(f"router-{number}" for number in range(1, routers + 1))]

    def members(self) -> dict[str, int]:
        """Pids by name of those that run now."""
        return {
            words[words.index("--member") + 1]: pid
            for pid, words in _children(self.pid)
            if "--member" in words
        }

    def follower(self) -> int | None:
        """The pid of the owner's follower, None while there is none."""
        owner = self.members().get("ingest")
        found = [pid for pid, words in _children(owner) if "follower" in words] if owner is not None else []
        return found[0] if found else None

    def ask_member(self, name: str, path: str) -> tuple[int, dict[str, Any]]:
        """Status and document of one process, on its own socket; (0, {}) where it does not answer."""
        try:
            connection = _OwnSocket(self.data / "run" / f"{name}.sock")
            try:
                connection.request("GET", path)
                reply = connection.getresponse()
                return reply.status, json.loads(reply.read())
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return 0, {}

    def wait_all_ready(self) -> None:
        """Until every process of the group is ready."""

        def are_ready() -> bool:
            return all(self.ask_member(name, "/ready")[0] == 200 for name in self.names)

        until(are_ready, lambda: f"{self.members()}\n{self.log_tail()}")

    def kill_member(self, name: str) -> int:
        """SIGKILL; the pid that it had."""
        pid = self.members()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_replaced(self, name: str, pid: int) -> None:
        """Until another process has its name and is ready."""
        until(lambda: self.members().get(name) not in (None, pid), lambda: f"a new {name}: {self.log_tail()}")
        until(lambda: self.ask_member(name, "/ready")[0] == 200, lambda: f"{name}: {self.log_tail()}")

    def facts(self, *kinds: type) -> list[Record]:
        """Records of these kinds in the log, in order."""
        reader = SegmentLog.open_reader(self.data)
        try:
            found = (decode_record(offset, data) for offset, data in records_of(reader, 0))
            return [record for record in found if isinstance(record.fact, kinds)]
        finally:
            reader.close()


class _OwnSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("process", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def _children(parent: int) -> Iterator[tuple[int, list[str]]]:
    """Pids and command lines of those that run now."""
    for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            yield int(word), Path(f"/proc/{word}/cmdline").read_text().split("\0")
        except OSError:
            continue
