"""A real Dynamo fleet on loopback: mock workers, direct-mode frontends, and an etcd where wanted.

No GPU, no model hub, no container. Everything but the tokens is the code that a GPU fleet runs:
discovery, event plane, request plane, frontend. `Fleet` starts a plan, waits until every frontend
sees all its workers and lists its models, and ends all of it when it closes or when its starter dies.

    with Fleet(demo_plan(), run_dir=Path("run")) as fleet:
        fleet.kill("decode-1")          # SIGKILL: its records stay until they expire
        fleet.wait_instances(5)
        fleet.start("decode-1")         # the same command line, a new instance id

    python -m deploy.demo.fleet --run-dir .run/fleet      prints one JSON line, stays until a signal

Standard library only; Dynamo itself runs in the interpreter of its own environment.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deploy.demo import fleet_plan, install_dynamo, loopback
from deploy.demo.addresses import NoFreePort, free_port, get_json, listening_ports
from deploy.demo.children import Child, ChildFailed, Nursery
from deploy.demo.fleet_plan import Discovery, FleetPlan, FrontendSpec, WorkerGroup

POLL_S = 0.1
READY_S_MAX = 90.0


class FleetFailed(RuntimeError):
    """The fleet cannot be brought up or does not become what was asked; says which process and why."""


class Fleet:
    """One plan, running. All it writes is under `run_dir`: logs, file store, etcd data.

    etcd_url: an etcd that runs already; with `discovery: etcd` and none given, one is started.
    """

    def __init__(
        self,
        plan: FleetPlan,
        run_dir: Path,
        *,
        release: str = fleet_plan.DEFAULT_RELEASE,
        python: Path | None = None,
        etcd_url: str | None = None,
        ready_s_max: float = READY_S_MAX,
    ) -> None:
        self.plan = plan
        self.release = release
        self.run_dir = run_dir.resolve()
        self.ready_s_max = ready_s_max
        self.ready_after_s: float | None = None
        self._python = python or install_dynamo.python_of(release)
        self._nursery = Nursery()
        self._group_of: dict[str, WorkerGroup] = {}
        self._frontend_of: dict[str, FrontendSpec] = {}
        self._url_of: dict[str, str] = {}
        self._ports: set[int] = set()
        self.etcd_url = etcd_url
        self._workdir = self.run_dir / "models"
        self._workdir.mkdir(parents=True, exist_ok=True)
        for model in plan.models():
            # a frontend takes a served name for a path below its working directory first
            link = self._workdir / model
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(plan.model_dir)
        self._add_children()

    # the whole fleet

    def up(self) -> Fleet:
        began = time.monotonic()
        try:
            if "etcd" in self.names():
                self._nursery.start("etcd")
                self._until(self._etcd_answers, "etcd does not answer")
            for name in (*self._group_of, *self._frontend_of):
                self._nursery.start(name)
            self.wait_ready()
        except BaseException:
            self.down()
            raise
        self.ready_after_s = time.monotonic() - began
        return self

    def down(self) -> None:
        """Frontends and workers first, so that they can say goodbye to etcd."""
        self._nursery.close(order=(*self._frontend_of, *self._group_of))

    def __enter__(self) -> Fleet:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # single processes

    def names(self) -> list[str]:
        return [child.name for child in self._nursery]

    def worker_names(self) -> list[str]:
        return list(self._group_of)

    def pid(self, name: str) -> int | None:
        return self._nursery[name].pid

    def log(self, name: str) -> Path:
        return self._nursery[name].log

    def kill(self, name: str) -> None:
        """SIGKILL and wait: no record is taken back, they expire."""
        self._nursery.end(name, signal.SIGKILL)

    def stop(self, name: str) -> None:
        """SIGTERM and wait: a worker takes its records back first."""
        self._nursery.end(name, signal.SIGTERM, patience_s=15)

    def start(self, name: str) -> None:
        """Start one that ended, with the same command line; a worker gets a new instance id."""
        self._nursery.start(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it holds its sockets and says nothing."""
        self._nursery[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._nursery[name].send_signal(signal.SIGCONT)

    # what it serves

    @property
    def file_store(self) -> Path | None:
        """Root of the file store (`v1/...` lies below it), None with etcd."""
        return self.run_dir / "file-kv" if self.plan.discovery is Discovery.FILE else None

    def frontend_url(self, name: str = "frontend-1") -> str:
        return self._url_of[name]

    def frontend_urls(self) -> dict[str, str]:
        return dict(self._url_of)

    def models(self, frontend: str = "frontend-1") -> list[str]:
        """Names a frontend lists; empty when it does not answer."""
        try:
            return [row["id"] for row in get_json(self._url_of[frontend] + "/v1/models")["data"]]
        except (OSError, ValueError, KeyError):
            return []

    def instances(self, frontend: str = "frontend-1") -> list[dict[str, Any]]:
        """Live `generate` instances of its namespace that a frontend sees; empty when it does not answer."""
        try:
            rows = get_json(self._url_of[frontend] + "/health").get("instances", [])
        except (OSError, ValueError):
            return []
        own = self._frontend_of[frontend].namespace  # its /health lists those of other namespaces too
        return [row for row in rows if (row.get("endpoint"), row.get("namespace")) == ("generate", own)]

    def workers(self) -> list[dict[str, Any]]:
        """One row a running instance: name, pid, instance_id (decimal text), role, model, namespace."""
        owner_of_port = {
            port: name
            for name in self._group_of
            if (pid := self.pid(name)) is not None
            for port in listening_ports(pid)
        }
        rows = []
        for frontend in {spec.namespace: name for name, spec in self._frontend_of.items()}.values():
            for instance in self.instances(frontend):
                address = str(instance["transport"]["tcp"]).split("/", 1)[0]
                name = owner_of_port.get(int(address.rsplit(":", 1)[1]))
                if name is None:
                    continue
                group = self._group_of[name]
                rows.append(
                    {
                        "name": name,
                        "pid": self.pid(name),
                        "instance_id": str(instance["instance_id"]),
                        "role": str(group.role),
                        "model": group.model,
                        "namespace": group.namespace,
                    }
                )
        order = list(self._group_of)
        return sorted(rows, key=lambda row: (order.index(row["name"]), int(row["instance_id"])))

    def instance_ids(self, name: str) -> list[str]:
        """Decimal instance ids of one worker process."""
        return [row["instance_id"] for row in self.workers() if row["name"] == name]

    def wait_instances(self, count: int, frontend: str = "frontend-1", timeout_s: float = 60.0) -> None:
        self._until(
            lambda: len(self.instances(frontend)) == count,
            f"{frontend} does not see {count} instances",
            timeout_s,
        )

    def wait_ready(self) -> None:
        """Until every frontend sees all its instances, lists its models and answers a chat of each."""
        for name, spec in self._frontend_of.items():
            wanted = self.plan.instances(spec.namespace)
            models = set(self.plan.models(spec.namespace))
            self.wait_instances(wanted, name, self.ready_s_max)
            self._until(
                lambda name=name, models=models: models <= set(self.models(name)),  # type: ignore[misc]
                f"{name} does not list {', '.join(sorted(models))}",
            )
        expected = sum(group.count * group.per_process for group in self.plan.groups)
        if all(group.namespace in self._namespaces() for group in self.plan.groups):
            self._until(lambda: len(self.workers()) == expected, "an instance belongs to no process of ours")

    def state(self) -> dict[str, Any]:
        return {
            "release": self.release,
            "discovery": str(self.plan.discovery),
            "etcd": self.etcd_url,
            "file_store": str(self.file_store) if self.file_store else None,
            "frontends": self.frontend_urls(),
            "models": self.plan.models(),
            "workers": self.workers(),
            "ready_after_s": round(self.ready_after_s, 2) if self.ready_after_s is not None else None,
            "run_dir": str(self.run_dir),
        }

    # inside

    def _namespaces(self) -> set[str]:
        return {spec.namespace for spec in self._frontend_of.values()}

    def _add_children(self) -> None:
        if self.plan.discovery is Discovery.ETCD and self.etcd_url is None:
            self._add_etcd()
        env = fleet_plan.fleet_environment(os.environ, self.plan, self.run_dir, self.etcd_url)
        for group in self.plan.groups:
            for index in range(1, group.count + 1):
                name = f"{group.name}-{index}"
                own = {"DYN_NAMESPACE": group.namespace}
                if self.plan.system_ports:
                    own["DYN_SYSTEM_PORT"] = str(self._free_port())
                self._group_of[name] = group
                self._add(name, fleet_plan.worker_argv(self._python, self.plan, group), env | own)
        for spec in self.plan.frontends:
            port = spec.port or self._free_port()
            self._frontend_of[spec.name] = spec
            self._url_of[spec.name] = f"http://127.0.0.1:{port}"
            argv = fleet_plan.frontend_argv(self._python, self.plan, spec, port)
            self._add(spec.name, argv, env | {"DYN_NAMESPACE": spec.namespace})

    def _add_etcd(self) -> None:
        binary = shutil.which("etcd")
        if binary is None:
            raise FleetFailed("no etcd on this machine: apt-get install etcd-server")
        self.etcd_url = f"http://127.0.0.1:{self._free_port()}"
        peer_url = f"http://127.0.0.1:{self._free_port()}"
        argv = fleet_plan.etcd_argv(binary, self.run_dir / "etcd", self.etcd_url, peer_url)
        self._add("etcd", argv, dict(os.environ))

    def _add(self, name: str, argv: Sequence[str], env: dict[str, str]) -> None:
        self._nursery.add(Child(name, argv, env, self.run_dir / f"{name}.log", self._workdir))

    def _free_port(self) -> int:
        port = free_port(self._ports)
        self._ports.add(port)
        return port

    def _etcd_answers(self) -> bool:
        try:
            return get_json(f"{self.etcd_url}/health").get("health") == "true"
        except (OSError, ValueError):
            return False

    def _until(self, is_so: Callable[[], bool], complaint: str, timeout_s: float | None = None) -> None:
        deadline = time.monotonic() + (timeout_s or self.ready_s_max)
        while not is_so():
            for child in self._nursery.failed():
                raise FleetFailed(
                    f"{child.name} ended by itself with status {child.exit_status}; "
                    f"the end of {child.log}:\n{child.tail()}"
                )
            if time.monotonic() > deadline:
                tails = "\n".join(f"  {n}:\n{self._nursery[n].tail(6)}" for n in self._frontend_of)
                raise FleetFailed(f"{complaint}; logs in {self.run_dir}:\n{tails}")
            time.sleep(POLL_S)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, default=Path(".run/fleet"))
    parser.add_argument("--release", default=fleet_plan.DEFAULT_RELEASE, help="an ai-dynamo release")
    parser.add_argument("--discovery", choices=list(Discovery), default=Discovery.FILE, type=Discovery)
    parser.add_argument("--prefill", type=int, default=2)
    parser.add_argument("--decode", type=int, default=2)
    parser.add_argument("--aggregated", type=int, default=2)
    parser.add_argument("--lease-ttl", type=int, help="seconds a dead worker's etcd records stay")
    return parser.parse_args(argv)


def stay_on_loopback(release: str) -> None:
    """Releases that announce the primary address run where only loopback exists, if that is possible."""
    if fleet_plan.announces_loopback(release) or loopback.is_only_loopback():
        return
    try:
        loopback.enter()
    except loopback.NoNamespace as problem:
        print(f"fleet: {problem}: Dynamo {release} announces the primary address", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo fleet alone until SIGINT, SIGTERM or SIGHUP."""
    options = _parse(argv)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    plan = fleet_plan.demo_plan(options.prefill, options.decode, options.aggregated)
    plan = dataclasses.replace(plan, discovery=options.discovery, lease_ttl_s=options.lease_ttl)
    try:
        install_dynamo.install(options.release)
        stay_on_loopback(options.release)
        shutil.rmtree(options.run_dir, ignore_errors=True)
        with Fleet(plan, options.run_dir, release=options.release) as fleet:
            print(json.dumps(fleet.state()), flush=True)
            while not ended.wait(0.5):
                pass
    except (FleetFailed, ChildFailed, NoFreePort, install_dynamo.InstallFailed) as problem:
        print(f"fleet: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
