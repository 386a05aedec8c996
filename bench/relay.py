"""What a request and an event cost on their way through the router, beside sglang-router.

    python -m bench.relay [ROUNDS]

Both routers stand before the same mock upstream, pinned to one core; upstream and load run
on the other. Picklog is a whole `picklog serve`: discovery of eight workers, a pick for
each request, the log with group commit, the follower (not counted). Each figure is taken
in turns, round by round, and the median of the rounds is printed:

- CPU of the router process per request: answers of 16 events at once, 32 clients
- CPU per event: answers of 64 events 4 ms apart, 64 clients
- added p50 of a request with one client, over asking the upstream directly

sglang-router is looked for in `.venvs/sglang-router`; without it only our figures are printed:

    uv venv .venvs/sglang-router && uv pip install --python .venvs/sglang-router/bin/python sglang-router

Targets: at most 1.6 times sglang-router's CPU per request and per event; under 1.5 ms added.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import uvloop

from bench import floor
from bench.mock_upstream import MODEL

SGLANG_ROUTER = Path(__file__).resolve().parents[1] / ".venvs" / "sglang-router" / "bin" / "sglang-router"
ROUTER_CORE, LOAD_CORE = 0, 1
ROUNDS = 5
WORKERS = 8
TOUCH_S = 3.0  # a key of the file store is dead after 10 s
START_S = 30.0
PROMPT = "Say something about the weather in the mountains. " * 40  # a request of 2 KB
BODY = json.dumps(
    {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
).encode()


class Scenario(NamedTuple):
    """A kind of load. chunks, gap_ms: of each answer. clients at a time, requests each."""

    name: str
    chunks: int
    gap_ms: int
    clients: int
    requests: int


BURST = Scenario("16 events at once, 32 clients", 16, 0, 32, 60)
PACED = Scenario("64 events 4 ms apart, 64 clients", 64, 4, 64, 6)
ALONE = Scenario("16 events at once, 1 client", 16, 0, 1, 400)


class Figure(NamedTuple):
    """One round. cpu_us: of the router over the round."""

    cpu_us: float
    requests: int
    events: int
    seconds: float
    p50_ms: float


# the load


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it was answered."""

    def __init__(self, requests: int, done: asyncio.Future[list[float]], request: bytes) -> None:
        self._left = requests
        self._done = done
        self._request = request
        self._latencies: list[float] = []
        self._transport: asyncio.Transport | None = None
        self._asked = 0.0
        self._head = b""
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._head = self._tail = b""
        self._asked = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._head = data[:256]
            if b" 200 " not in self._head[:15]:
                self._fail(f"answered {data[:300]!r}")
                return
        self._tail = (self._tail + data)[-32:]
        # the end of chunks, or of a counted stream
        if self._tail.endswith(b"\r\n0\r\n\r\n") or (
            self._tail.endswith(b"data: [DONE]\n\n") and self._counted()
        ):
            self._latencies.append(time.perf_counter() - self._asked)
            self._left -= 1
            if self._left:
                self._ask()
            elif not self._done.done():
                self._done.set_result(self._latencies)

    def _counted(self) -> bool:
        return b"content-length" in self._head.lower()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("closed")

    def _fail(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(f"the router {why}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def request_to(port: int) -> bytes:
    """The request that is sent over and over."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


async def load(port: int, scenario: Scenario) -> list[float]:
    """All clients' latencies, seconds."""
    loop = asyncio.get_running_loop()
    waits: list[asyncio.Future[list[float]]] = [loop.create_future() for _ in range(scenario.clients)]
    clients = [Client(scenario.requests, wait, request_to(port)) for wait in waits]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    async with asyncio.timeout(300):
        found = await asyncio.gather(*waits)
    for client in clients:
        client.close()
    return [latency for latencies in found for latency in latencies]


def cpu_us(pid: int) -> float:
    """CPU time of all threads of a process, microseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:  # a thread that has ended
            continue
    return total / 1000


def measure(port: int, pid: int | None, scenario: Scenario) -> Figure:
    """One round of load on a port; the CPU of `pid` over it."""
    before, began = cpu_us(pid) if pid else 0.0, time.perf_counter()
    latencies = uvloop.run(load(port, scenario))
    seconds = time.perf_counter() - began
    spent = cpu_us(pid) - before if pid else 0.0
    count = len(latencies)
    return Figure(spent, count, count * scenario.chunks, seconds, statistics.median(latencies) * 1000)


# what is measured


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def running(argv: list[str], core: int | None, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process, pinned to a core where one is named, ended at the end of the block."""
    child = subprocess.Popen(
        argv,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        stdout=subprocess.DEVNULL,
        **settings,  # type: ignore[call-overload]
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def answers(port: int, request: bytes, holds: Callable[[bytes], bool]) -> bool:
    """Whether a server gives the answer that is waited for."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(2)
            sock.sendall(request)
            return holds(sock.recv(65536))
    except OSError:
        return False


def wait_for(port: int, child: subprocess.Popen[bytes], path: str) -> None:
    """Return once GET of a path is answered 200. Raises RuntimeError."""
    deadline = time.monotonic() + START_S
    request = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    while not answers(port, request, lambda data: b" 200 " in data[:15]):
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{child.args!r} does not answer {path}")
        time.sleep(0.05)


def spelled(key: str) -> str:
    """A key of the file store as a file name: every byte but letters and digits as %XX."""
    return "".join(
        c if c.isalnum() and c.isascii() else "".join(f"%{b:02X}" for b in c.encode()) for c in key
    )


def write_fleet(root: Path) -> None:
    """Eight aggregated workers in a file store, as live ones write and touch them."""
    for number in range(1, WORKERS + 1):
        identity = {
            "namespace": "dynamo",
            "component": "backend",
            "endpoint": "generate",
            "instance_id": number,
        }
        endpoint = {"type": "Endpoint", **identity, "transport": {"tcp": f"127.0.0.1:1/{number:x}/generate"}}
        card = {
            "display_name": MODEL,
            "worker_type": "aggregated",
            "kv_cache_block_size": 16,
            "runtime_config": {"total_kv_blocks": 16384, "max_num_batched_tokens": 8192, "max_num_seqs": 256},
        }
        model = {"type": "Model", **identity, "card_json": card}
        for bucket, value in (("instances", endpoint), ("mdc", model)):
            path = root / "v1" / bucket / spelled(f"dynamo/backend/generate/{number:x}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))


@contextmanager
def touched(root: Path) -> Iterator[None]:
    """Keep the fleet's keys alive from a process of its own."""
    code = (
        f"import os, pathlib, time\nwhile True:\n"
        f" for path in pathlib.Path({str(root)!r}).rglob('*'): os.utime(path)\n"
        f" time.sleep({TOUCH_S})"
    )
    with running([sys.executable, "-c", code], LOAD_CORE):
        yield


@contextmanager
def picklog(
    folder: Path, upstream: int, words: tuple[str, ...] = (), core: int | None = ROUTER_CORE
) -> Iterator[tuple[int, int]]:
    """`picklog serve` before the upstream: its port and pid. words: further ones of the command."""
    write_fleet(folder / "store")
    port = free_port()
    settings = {
        "server": {"bind_address": f"127.0.0.1:{port}"},
        "backends": [{"name": "shim", "type": "openai", "url": f"http://127.0.0.1:{upstream}"}],
        "health_checks": {"interval": "1s"},
        "disaggregated_serving": {"enabled": True},
        "dynamo": {
            "enabled": True,
            "discovery": {"source": "file", "file": {"root": str(folder / "store"), "namespace": "dynamo"}},
            "shim": {"backends": ["shim"]},
        },
        "log": {"raw": {"enabled": False}, "retention": {"age": "1d", "bytes": "512MiB"}},
        "checkpoints": {"bytes": "256MiB"},
    }
    (folder / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    serve = [sys.executable, "-m", "app", "serve"]
    argv = [*serve, "-c", str(folder / "config.yaml"), "--data", str(folder / "data"), *words]
    with (
        touched(folder / "store"),
        running(argv, core, stderr=(folder / "log.txt").open("wb")) as child,
    ):
        try:
            wait_for(port, child, "/ready")
        except RuntimeError:
            print((folder / "log.txt").read_text()[-4000:], file=sys.stderr)
            raise
        yield port, child.pid


@contextmanager
def sglang_router(folder: Path, upstream: int) -> Iterator[tuple[int, int]]:
    """sglang-router before the upstream: its port and pid."""
    port = free_port()
    argv = [
        str(SGLANG_ROUTER), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin",
        "--worker-urls", f"http://127.0.0.1:{upstream}", "--prometheus-port", str(free_port()),
        "--log-level", "error",
    ]  # fmt: skip
    with running(argv, ROUTER_CORE, stderr=(folder / "log.txt").open("wb"), cwd=folder) as child:
        wait_for(port, child, "/health")
        deadline = time.monotonic() + START_S
        while not answers(port, request_to(port), lambda data: b" 200 " in data[:15]):
            if time.monotonic() > deadline:
                raise RuntimeError("sglang-router does not serve")
            time.sleep(0.2)
        yield port, child.pid


def medians(figures: list[Figure], of: Callable[[Figure], float]) -> float:
    return statistics.median(map(of, figures))


def compare(scenario: Scenario, rounds: int, folder: Path) -> dict[str, list[Figure]]:
    """Rounds in turns: direct, picklog and, if it is there, sglang-router."""
    upstream = free_port()
    mock = [
        sys.executable,
        "-m",
        "bench.mock_upstream",
        str(upstream),
        str(scenario.chunks),
        str(scenario.gap_ms),
    ]
    with ExitStack() as stack:
        child = stack.enter_context(running(mock, LOAD_CORE))
        wait_for(upstream, child, "/v1/models")
        ports: dict[str, tuple[int, int | None]] = {"direct": (upstream, None)}
        for name, make in (("picklog", picklog), ("sglang-router", sglang_router)):
            if name == "sglang-router" and not SGLANG_ROUTER.exists():
                continue
            (folder / name).mkdir(parents=True)
            ports[name] = stack.enter_context(make(folder / name, upstream))
        found: dict[str, list[Figure]] = {name: [] for name in ports}
        for number in range(rounds + 1):
            for name, (port, pid) in ports.items():
                figure = measure(port, pid, scenario)
                if number:  # the first warms up
                    found[name].append(figure)
        return found


def report(scenario: Scenario, found: dict[str, list[Figure]], per: str) -> None:
    """Print one scenario, with the ratio to sglang-router where it was measured."""
    print(f"\n{scenario.name} (median of {len(found['picklog'])} rounds)")
    costs = {}
    for name, figures in found.items():
        cost = medians(figures, lambda f: f.cpu_us / (f.events if per == "event" else f.requests))
        costs[name] = cost
        rate = medians(figures, lambda f: f.requests / f.seconds)
        latency = medians(figures, lambda f: f.p50_ms)
        spent = "" if name == "direct" else f"{cost:8.1f} us CPU per {per}"
        print(f"  {name:14} {rate:8.0f} req/s   p50 {latency:8.2f} ms   {spent}")
    if "sglang-router" in costs:
        print(f"  ratio to sglang-router: {costs['picklog'] / costs['sglang-router']:.2f}")


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    os.sched_setaffinity(0, {LOAD_CORE})
    print(floor.line())
    with tempfile.TemporaryDirectory(prefix="picklog-bench-") as text:
        folder = Path(text)
        report(BURST, compare(BURST, rounds, folder / "burst"), "request")
        report(PACED, compare(PACED, rounds, folder / "paced"), "event")
        alone = compare(ALONE, rounds, folder / "alone")
        report(ALONE, alone, "request")
        direct = medians(alone["direct"], lambda f: f.p50_ms)
        for name in alone:
            if name != "direct":
                added = medians(alone[name], lambda f: f.p50_ms) - direct
                print(f"  added p50, {name}: {added:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
