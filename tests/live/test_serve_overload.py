"""Many streams with slow readers at once: they all end well, and the router holds little for them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from tests.live.conftest import FleetMaker
from tests.live.router_process import RouterProcess, until

pytestmark = pytest.mark.live("dynamo")
STREAMS = 64
TOKENS = 1500
GROWTH_MIB_MAX = 16


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(2, blocks=16384, speedup=0.0))


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(fleet, tmp_path_factory.mktemp("router"))
    try:
        yield router.start()
    finally:
        router.close()


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


class SlowReader:
    """One stream that is read a few bytes at a time until `hurry` is set."""

    def __init__(self, router: RouterProcess, number: int, hurry: threading.Event) -> None:
        self.answer = b""
        self._router = router
        self._number = number
        self._hurry = hurry
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        body = json.dumps(
            {
                "model": "tiny-chat",
                "messages": [{"role": "user", "content": f"stream {self._number}"}],
                "max_tokens": TOKENS,
                "stream": True,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(60)
            line.connect(("127.0.0.1", self._router.port))
            line.sendall(head.encode() + body)
            while (data := line.recv(256)) and not self._hurry.wait(0.1):
                self.answer += data
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            pieces = [self.answer]
            while data:
                pieces.append(data)
                data = line.recv(1 << 18)
            self.answer = b"".join(pieces)


def test_slow_readers_cost_little_and_lose_nothing(router: RouterProcess) -> None:
    for number in range(8):
        assert router.chat(f"warm-{number}").status == 200
    before = resident_mib(router.pid)
    hurry = threading.Event()
    readers = [SlowReader(router, number, hurry) for number in range(STREAMS)]
    try:
        until(lambda: in_flight(router) == STREAMS, lambda: f"{in_flight(router)} streams at once")
        highest = before
        for _ in range(8):
            time.sleep(0.25)
            highest = max(highest, resident_mib(router.pid))
        assert in_flight(router) == STREAMS, "slow clients hold their streams"
        began = time.monotonic()
        assert router.chat("between").status == 200, "others are served meanwhile"
        assert time.monotonic() - began < 5
    finally:
        hurry.set()
        for reader in readers:
            reader.thread.join()
    for reader in readers:
        assert reader.answer.startswith(b"HTTP/1.1 200"), reader.answer[:200]
        assert b"data: [DONE]" in reader.answer
    assert highest - before < GROWTH_MIB_MAX, (before, highest)
    until(lambda: in_flight(router) == 0, "nothing is left in flight")
    assert router.verify()["equal"] >= STREAMS
    ends = router.records("DispatchEnded")
    assert len(ends) == len(router.records("PickMade")), "every dispatch ended exactly once"


def in_flight(router: RouterProcess) -> float:
    return router.metrics()['picklog_backend_in_flight{backend="frontend-1"}']
