"""What a mock fleet consists of, and the command lines and environment that make it.

A plan names groups of workers and the frontends before them; it starts nothing. `demo_plan()`
is the fleet of `make run`: a prefill and a decode pool for one model, aggregated workers for a
second one, and one direct-mode frontend that serves both, all in the namespace `dynamo`.

The same flags work in releases 1.4.2, 1.5.0 and 1.6.1. Three of the variables are traps:
DYN_TCP_RPC_HOST is an address, DYN_TCP_RESPONSE_STREAM_HOST is an interface name (given an
address, the frontend never lists a model), and DYN_EVENT_PLANE_HOST exists from 1.6 on only.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

DEMO_FOLDER = Path(__file__).resolve().parent
TINY_MODEL = DEMO_FOLDER / "tiny-chat"
RELEASES = ("1.6.1", "1.5.0", "1.4.2")
DEFAULT_RELEASE = RELEASES[0]
ANNOUNCES_LOOPBACK_SINCE = (1, 6)
PAIRED_MODEL = "tiny-chat"
AGGREGATED_MODEL = "tiny-solo"


class Role(StrEnum):
    """What a worker does, spelled as in `--disaggregation-mode`."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "agg"


COMPONENT_OF_ROLE = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.AGGREGATED: "backend"}


class Discovery(StrEnum):
    FILE = "file"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """`count` worker processes alike, called `NAME-1`, `NAME-2`, ...

    blocks: KV blocks of one rank (few make `removed` events). dp: data-parallel ranks of one
    instance. per_process: instances in one process. speedup: simulated time is divided by it;
    0 removes it.
    """

    name: str
    role: Role
    count: int
    model: str = PAIRED_MODEL
    namespace: str = "dynamo"
    component: str = ""
    block_size: int = 16
    blocks: int = 1024
    dp: int = 1
    per_process: int = 1
    speedup: float = 10.0
    extra: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"dyn://{self.namespace}.{self.component or COMPONENT_OF_ROLE[self.role]}.generate"


@dataclass(frozen=True, slots=True)
class FrontendSpec:
    """One `dynamo.frontend` of a namespace. Port 0: a free one. router_mode: `direct` executes pins."""

    name: str
    namespace: str = "dynamo"
    port: int = 0
    extra: tuple[str, ...] = ()
    router_mode: str = "direct"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    groups: tuple[WorkerGroup, ...]
    frontends: tuple[FrontendSpec, ...] = (FrontendSpec("frontend-1"),)
    discovery: Discovery = Discovery.FILE
    lease_ttl_s: int | None = None
    system_ports: bool = False
    model_dir: Path = TINY_MODEL
    environment: Mapping[str, str] = field(default_factory=dict)

    def models(self, namespace: str | None = None) -> list[str]:
        """Served names in the plan's order, of one namespace or of all."""
        wanted = [g.model for g in self.groups if namespace in (None, g.namespace) and g.count]
        return list(dict.fromkeys(wanted))

    def instances(self, namespace: str) -> int:
        """How many instances of `generate` a frontend of the namespace is to see."""
        return sum(g.count * g.per_process for g in self.groups if g.namespace == namespace)


def demo_plan(prefill: int = 2, decode: int = 2, aggregated: int = 2, *, frontend_port: int = 0) -> FleetPlan:
    """The fleet of `make run`; at least two workers of every role make a pick a choice."""
    return FleetPlan(
        groups=(
            WorkerGroup("prefill", Role.PREFILL, prefill),
            WorkerGroup("decode", Role.DECODE, decode),
            WorkerGroup("agg", Role.AGGREGATED, aggregated, model=AGGREGATED_MODEL),
        ),
        frontends=(FrontendSpec("frontend-1", port=frontend_port),),
    )


def pair_plan(prefill: int = 2, decode: int = 2, **settings: object) -> FleetPlan:
    """Prefill and decode workers of one model. `settings` go to both groups."""
    return FleetPlan(
        groups=(
            WorkerGroup("prefill", Role.PREFILL, prefill, **settings),  # type: ignore[arg-type]
            WorkerGroup("decode", Role.DECODE, decode, **settings),  # type: ignore[arg-type]
        )
    )


def aggregated_plan(workers: int = 2, **settings: object) -> FleetPlan:
    """Aggregated workers of one model. `settings` go to the group."""
    return FleetPlan(groups=(WorkerGroup("agg", Role.AGGREGATED, workers, **settings),))  # type: ignore[arg-type]


def release_numbers(release: str) -> tuple[int, ...]:
    """`1.6.1` -> (1, 6, 1); raises ValueError for anything but numbers and dots."""
    return tuple(int(part) for part in release.split("."))


def announces_loopback(release: str) -> bool:
    """Whether the release's publishers can be told to announce 127.0.0.1."""
    return release_numbers(release)[:2] >= ANNOUNCES_LOOPBACK_SINCE


def worker_argv(python: Path, plan: FleetPlan, group: WorkerGroup) -> list[str]:
    return [
        str(python), "-m", "dynamo.mocker",
        "--model-path", str(plan.model_dir),
        "--model-name", group.model,
        "--endpoint", group.endpoint,
        "--disaggregation-mode", str(group.role),
        "--block-size", str(group.block_size),
        "--num-gpu-blocks-override", str(group.blocks),
        "--speedup-ratio", str(group.speedup),
        "--data-parallel-size", str(group.dp),
        "--num-workers", str(group.per_process),
        *_planes(plan), *group.extra,
    ]  # fmt: skip


def frontend_argv(python: Path, plan: FleetPlan, frontend: FrontendSpec, port: int) -> list[str]:
    return [
        str(python), "-m", "dynamo.frontend",
        "--http-host", "127.0.0.1",
        "--http-port", str(port),
        "--router-mode", frontend.router_mode,
        "--namespace", frontend.namespace,
        *_planes(plan), *frontend.extra,
    ]  # fmt: skip


def etcd_argv(etcd: str, data_dir: Path, client_url: str, peer_url: str) -> list[str]:
    return [
        etcd, "--name", "fleet", "--data-dir", str(data_dir),
        "--listen-client-urls", client_url, "--advertise-client-urls", client_url,
        "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
        "--initial-cluster", f"fleet={peer_url}",
    ]  # fmt: skip


def fleet_environment(
    base: Mapping[str, str], plan: FleetPlan, run_dir: Path, etcd_url: str | None
) -> dict[str, str]:
    """The environment of every Dynamo process, over `base`; proxies are kept away from loopback."""
    env = {name: text for name, text in base.items() if not name.startswith(("DYN_", "ETCD_", "PYTHON"))}
    env.update(
        {
            "HOME": str(run_dir),  # a frontend caches model cards there
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "NO_COLOR": "1",
            "DYN_LOG": "info",
            "DYN_DISCOVERY_BACKEND": str(plan.discovery),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "DYN_SELF_HOST_METADATA": "1" if plan.system_ports else "0",
        }
    )
    if plan.discovery is Discovery.FILE:
        env["DYN_FILE_KV"] = str(run_dir / "file-kv")
    elif etcd_url is not None:
        env["ETCD_ENDPOINTS"] = etcd_url
    if plan.lease_ttl_s is not None:
        env["ETCD_LEASE_TTL"] = str(plan.lease_ttl_s)
    env.update(plan.environment)
    return env


def _planes(plan: FleetPlan) -> Sequence[str]:
    return ("--discovery-backend", str(plan.discovery), "--request-plane", "tcp", "--event-plane", "zmq")
