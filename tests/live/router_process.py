"""A `picklog serve` as its users run it: a child process with a configuration file and a data directory.

Everything is asked from outside: HTTP, the process log, the console script, the files. All
calls block. Nothing here knows how the process is built.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deploy.demo import chats
from deploy.demo.addresses import free_port
from deploy.demo.chats import Answer, Chat, Pin
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import Fleet

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 40.0
TRAFFIC_MODEL = "tiny-chat"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def until(
    holds: Callable[[], Any],
    what: str | Callable[[], str],
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.05,
) -> Any:
    """What `holds` returns once it is true; fails the test with `what` otherwise."""
    deadline = time.monotonic() + patience_s
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience_s:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause_s)


def picklog(*words: str, patience_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """One command of the console script."""
    return subprocess.run(
        [sys.executable, "-m", "app", *words],
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
        cwd=REPOSITORY,
    )


def pool_config(
    fleet: Fleet, port: int, *, namespaces: Mapping[str, str] | None = None, **dynamo: Any
) -> dict[str, Any]:
    """A configuration for a fleet. namespaces: namespace -> frontend's name in the fleet's plan."""
    pools = dict(namespaces or {"dynamo": "frontend-1"})
    spec = {one.name: one for one in fleet.plan.frontends}
    backends = [
        {
            "name": name,
            "type": "openai",
            "role": "unified",
            "url": fleet.frontend_url(name),
            "models": fleet.plan.models(spec[name].namespace),
        }
        for name in pools.values()
    ]
    if fleet.file_store is not None:
        store: dict[str, Any] = {"source": "file", "file": {"root": str(fleet.file_store)}}
    else:
        store = {"source": "etcd", "etcd": {"endpoints": [fleet.etcd_url]}}
    if len(pools) == 1:
        store[store["source"]]["namespace"] = next(iter(pools))
        shim: dict[str, Any] = {"backends": list(pools.values())}
    else:
        store[store["source"]]["namespaces"] = list(pools)
        shim = {"pools": [{"namespace": space, "backends": [name]} for space, name in pools.items()]}
    return {
        "server": {"bind_address": f"127.0.0.1:{port}"},
        "backends": backends,
        "health_checks": {"interval": "1s"},
        "disaggregated_serving": {"enabled": True},
        "dynamo": {
            "enabled": True,
            "discovery": store,
            "load": {"direct_allow_cidrs": ["127.0.0.0/8"]},
            "shim": shim,
            **dynamo,
        },
        "log": {"raw": {"enabled": False}, "retention": {"bytes": "256MiB"}},
        "checkpoints": {"bytes": "64MiB"},
    }


class RouterProcess:
    """One router that may be started again on the same data directory."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        port: int,
        command: str = "serve",
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port
        self.data = folder / "data"
        self.file = folder / "config.yaml"
        self.config = dict(config)
        self.write(self.config)
        self._nursery = Nursery()
        argv = [sys.executable, "-m", "app", command, "-c", str(self.file), "--data", str(self.data)]
        argv += options
        env = {key: value for key, value in os.environ.items() if not key.startswith("PICKLOG__")}
        env |= environment or {}
        self._child = self._nursery.add(Child("router", argv, env, folder / "router.log", REPOSITORY))

    @classmethod
    def before(cls, fleet: Fleet, folder: Path, **settings: Any) -> RouterProcess:
        """In front of a fleet, not started yet. settings: those of `pool_config`."""
        port = free_port()
        return cls(folder, pool_config(fleet, port, **settings), port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        pid = self._child.pid
        assert pid is not None, self.log_tail()
        return pid

    # life

    def write(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration file in one rename, as editors and mounted files do."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        temporary.replace(self.file)

    def start(self, *, ready: bool = True, models: int = 1) -> RouterProcess:
        """Start it and wait until it is ready and lists this many models."""
        self._nursery.start("router")
        if ready:
            self.wait_ready(models)
        return self

    def ensure(self, models: int = 1) -> RouterProcess:
        """Running and ready, whatever the test before left behind."""
        if not self._child.is_running:
            self._nursery.start("router")
        self.wait_ready(models)
        return self

    def copy_log(self, target: Path) -> Path:
        """A copy of log and checkpoints. A database that is written and sockets are not for copying."""
        shutil.copytree(self.data, target, ignore=shutil.ignore_patterns("audit*", "*.sock", "run"))
        return target

    def wait_ready(self, models: int = 1) -> None:
        def is_ready() -> bool:
            assert self._child.is_running, self.log_tail()
            return self.ready()[0] == 200 and len(self.models()) >= models

        until(is_ready, lambda: f"ready with {models} models: {self.ready()}\n{self.log_tail()}")

    def stop(self, patience_s: float = 40.0) -> int:
        """SIGTERM; its exit status."""
        status = self._nursery.end("router", signal.SIGTERM, patience_s=patience_s)
        assert status is not None
        return status

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_end(self, patience_s: float = 40.0) -> int:
        """Its exit status once it has ended by itself."""
        until(lambda: not self._child.is_running, "the router ends", patience_s)
        status = self._child.exit_status
        assert status is not None
        return status

    def kill(self) -> None:
        self._nursery.end("router", signal.SIGKILL)

    def close(self) -> None:
        self._nursery.close(patience_s=20)

    # HTTP

    def get(self, path: str) -> tuple[int, bytes]:
        return self.ask("GET", path)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body; 0 where nobody answers."""
        request = urllib.request.Request(self.url + path, body, dict(headers or {}), method=method)
        try:
            with _OPENER.open(request, timeout=20) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()
        except OSError:
            return 0, b""

    def document(self, path: str) -> dict[str, Any]:
        status, body = self.get(path)
        assert status == 200, (path, status, body[:500], self.log_tail())
        document: dict[str, Any] = json.loads(body)
        return document

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, body = self.get("/ready")
        return status, json.loads(body) if body else {}

    def models(self) -> list[str]:
        status, body = self.get("/v1/models")
        return [row["id"] for row in json.loads(body)["data"]] if status == 200 else []

    def workers(self) -> dict[str, dict[str, Any]]:
        """Rows of the admin endpoint by decimal id."""
        return {row["worker_id"]: row for row in self.document("/admin/dynamo/workers")["workers"]}

    def chat(self, identifier: str, model: str = TRAFFIC_MODEL, **settings: Any) -> Answer:
        wanted: dict[str, Any] = {"text": "Say hello.", "streamed": False, **settings}
        return chats.send(self.url, Chat(identifier, model, **wanted))

    def metrics(self) -> dict[str, float]:
        """Every series of a scrape."""
        status, body = self.get("/metrics")
        assert status == 200
        return dict(_series(body.decode()))

    def connected(self) -> int:
        """Subscriptions to load and block events that stand; 0 while it does not answer."""
        wanted = ("continuum_dynamo_load_subscriptions", "continuum_dynamo_kv_subscriptions")
        found = self.metrics() if self.get("/health")[0] == 200 else {}
        return int(
            sum(n for name, n in found.items() if name.startswith(wanted) and 'state="connected"' in name)
        )

    # what it leaves behind

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the process log that hold all these words."""
        path = self.folder / "router.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [line for line in lines if all(word in line for word in words)]

    def log_tail(self) -> str:
        return "\n".join(self.log_lines()[-40:])

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """Records of these kinds in the log, oldest first."""
        found = []
        for kind in kinds:
            said = picklog("log", "cat", "--kind", kind, "--log", str(self.data))
            assert said.returncode == 0, said.stderr
            found += [json.loads(line) for line in said.stdout.splitlines()]
        return sorted(found, key=lambda record: int(record["offset"]))

    def verify(self, data: Path | None = None) -> dict[str, Any]:
        """The document of `replay verify`; fails unless it found nothing different."""
        said = picklog("replay", "verify", "--json", "--log", str(data or self.data))
        assert said.returncode == 0, (said.stdout, said.stderr)
        found: dict[str, Any] = json.loads(said.stdout)
        assert found["different"] == 0, found
        return found

    def explain(self, name: str, data: Path | None = None) -> dict[str, Any]:
        said = picklog("replay", "explain", name, "--json", "--log", str(data or self.data))
        assert said.returncode == 0, (said.stdout, said.stderr)
        found: dict[str, Any] = json.loads(said.stdout)
        return found


def _series(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name, float(value)


@dataclass
class Sent:
    """One chat of the traffic. Times are monotonic seconds."""

    identifier: str
    began: float
    ended: float = 0.0
    answer: Answer = field(default_factory=lambda: Answer(0, {}, "", {}))

    @property
    def is_good(self) -> bool:
        return self.answer.status == 200 and not self.answer.problem and bool(self.answer.text)

    @property
    def decode(self) -> str | None:
        """Decimal id of the pinned decode worker."""
        pin = Pin.parse(self.answer.headers.get(chats.DECODE_HEADER, ""))
        return pin.instance_id if pin is not None else None


class Traffic:
    """Chats from some threads, one after another in each, until it is stopped."""

    def __init__(self, router: RouterProcess, model: str = TRAFFIC_MODEL, prefix: str = "t") -> None:
        self.sent: list[Sent] = []
        self._router = router
        self._model = model
        self._prefix = prefix
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def bad(self) -> list[Sent]:
        return [one for one in self.finished() if not one.is_good]

    def finished(self) -> list[Sent]:
        with self._lock:
            return [one for one in self.sent if one.ended]

    def wait_more(self, number: int) -> None:
        """Until this many more chats have ended."""
        goal = len(self.finished()) + number
        until(lambda: len(self.finished()) >= goal, f"{number} more chats")

    @contextmanager
    def running(self, threads: int = 4, pause_s: float = 0.02) -> Iterator[Traffic]:
        workers = [threading.Thread(target=self._send, args=(n, pause_s)) for n in range(threads)]
        for worker in workers:
            worker.start()
        try:
            yield self
        finally:
            self._stopping.set()
            for worker in workers:
                worker.join()

    def _send(self, thread: int, pause_s: float) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            one = Sent(f"{self._prefix}-{thread}-{number}", time.monotonic())
            with self._lock:
                self.sent.append(one)
            one.answer = self._router.chat(one.identifier, self._model, streamed=number % 2 == 0)
            one.ended = time.monotonic()
            time.sleep(pause_s)


@contextmanager
def chats_in_thread(router: RouterProcess, *sent: Chat) -> Iterator[list[Answer]]:
    """Chats under way during a block; behind it the list holds their answers, in order."""
    answers: dict[int, Answer] = {}
    threads = [
        threading.Thread(target=lambda n=n, chat=chat: answers.update({n: chats.send(router.url, chat)}))
        for n, chat in enumerate(sent)
    ]
    for thread in threads:
        thread.start()
    found: list[Answer] = []
    try:
        yield found
    finally:
        for thread in threads:
            thread.join()
        found += [answers[n] for n in range(len(sent))]
