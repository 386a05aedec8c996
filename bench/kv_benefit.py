"""What prefix-aware picks are worth: the same chats under four routers, on real mock workers.

    python -m bench.kv_benefit [--requests N] [--clients N] [--seed N] [--json] [--plot FILE.svg]

Each router stands before a fleet of its own with cold caches: 4 aggregated `dynamo.mocker` workers with
few blocks, so that caches compete, and a simulated engine slow enough for a prefill to be felt (a cold
prompt of 1,000 tokens takes some 90 ms). The traffic is that of `bench.kv_traffic`, closed loop.

- kv-aware: Picklog with `dynamo.kv.enabled: true` before a direct frontend
- kv-aware x6: the same with `dynamo.kv.prefill_load_scale: 6`, for engines whose prefill is slow
- load only: the same with `dynamo.kv` off
- round robin: the same with `dynamo.picker: round_robin`
- dynamo kv: Dynamo's own `dynamo.frontend --router-mode kv`, no Picklog

Compared are cached tokens as the workers report them (`usage.prompt_tokens_details.cached_tokens`), time to
the first token, and how evenly prompts are spread. Fails (exit 1) where kv-aware has not at least
WORTH_MIN times the cached share of either Picklog without prefixes, less than DYNAMO_MIN of that of Dynamo's
own router, a busiest worker above BUSIEST_MAX of all requests, or an unanswered request.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

from bench import floor, kv_traffic
from bench.kv_traffic import Load
from deploy.demo.addresses import free_port, get_json
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import PAIRED_MODEL, FleetPlan, FrontendSpec, Role, WorkerGroup
from deploy.demo.pins import pins_of
from replay.spread import gini, max_share

WORKERS: Final = 4
BLOCKS: Final = 512
SPEEDUP: Final = 0.25
DECODE_SPEEDUP: Final = 8
REQUESTS: Final = 400
CLIENTS: Final = 16
SEED: Final = 7
START_S_MAX: Final = 40.0
WORTH_MIN: Final = 1.4
DYNAMO_MIN: Final = 0.97
BUSIEST_MAX: Final = 0.40
_SELECTIONS: Final = re.compile(r"^continuum_dynamo_selection_total\{([^}]*)\} (\d+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="(\w+)"')


@dataclass(frozen=True, slots=True)
class Arm:
    """One router under test. dynamo: what is set below `dynamo:`; None stands for Dynamo's own KV router."""

    name: str
    dynamo: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm. Shares are 0 to 1, times milliseconds; busiest and gini are of requests a worker."""

    name: str
    requests: int
    failed: int
    cached_share: float
    first_byte_p50_ms: float
    first_byte_p90_ms: float
    seconds_p50_ms: float
    requests_per_s: float
    busiest: float
    gini: float
    gini_computed: float
    reasons: Mapping[str, int]


def arms() -> tuple[Arm, ...]:
    kv = {"enabled": True, "pinned_artifacts": list(pins_of())}
    return (
        Arm("kv-aware", {"kv": kv}),
        Arm("kv-aware x6", {"kv": {**kv, "prefill_load_scale": 6}}),
        Arm("load only", {}),
        Arm("round robin", {"picker": "round_robin"}),
        Arm("dynamo kv", None),
    )


def fleet_plan(arm: Arm) -> FleetPlan:
    extra = ("--decode-speedup-ratio", str(DECODE_SPEEDUP))
    group = WorkerGroup("agg", Role.AGGREGATED, WORKERS, blocks=BLOCKS, speedup=SPEEDUP, extra=extra)
    mode = "kv" if arm.dynamo is None else "direct"
    return FleetPlan((group,), (FrontendSpec("frontend-1", router_mode=mode),))


@contextmanager
def picklog_before(fleet: Fleet, folder: Path, dynamo: Mapping[str, Any]) -> Iterator[str]:
    """The URL of a whole `picklog serve` in front of a fleet."""
    port = free_port()
    config = {
        "server": {"bind_address": f"127.0.0.1:{port}"},
        "backends": [
            {
                "name": "frontend-1",
                "type": "openai",
                "role": "unified",
                "url": fleet.frontend_url(),
                "models": [PAIRED_MODEL],
            }
        ],
        "disaggregated_serving": {"enabled": True},
        "dynamo": {
            "enabled": True,
            "discovery": {"source": "file", "file": {"root": str(fleet.file_store), "namespace": "dynamo"}},
            "load": {"direct_allow_cidrs": ["127.0.0.0/8"]},
            "shim": {"backends": ["frontend-1"]},
            **dynamo,
        },
        "log": {"raw": {"enabled": False}, "retention": {"bytes": "256MiB"}},
        "checkpoints": {"bytes": "64MiB"},
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "app", "serve", "-c", str(file), "--data", str(folder / "data")]
    nursery = Nursery()
    nursery.add(Child("router", argv, dict(os.environ), folder / "router.log", Path.cwd()))
    nursery.start("router")
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S_MAX
        while not _is_ready(url):
            if nursery["router"].has_failed() or time.monotonic() > deadline:
                raise SystemExit(f"the router is not ready:\n{nursery['router'].tail()}")
            time.sleep(0.1)
        yield url
    finally:
        nursery.close(patience_s=20)


def _is_ready(url: str) -> bool:
    try:
        return bool(get_json(f"{url}/ready")["ready"] and get_json(f"{url}/v1/models")["data"])
    except (OSError, ValueError, KeyError):
        return False


def measure(arm: Arm, seed: int, clients: int, requests: int, pause_s: float) -> Figures:
    """One arm on a fresh fleet. First chats, which load artifacts, are not counted."""
    lists = kv_traffic.write_traffic(seed, clients, requests, pause_s)
    warm = kv_traffic.write_traffic(seed + 1, 1, 4)
    with tempfile.TemporaryDirectory(prefix="kv_benefit") as place:
        folder = Path(place)
        with Fleet(fleet_plan(arm), folder / "fleet") as fleet:
            names = {row["instance_id"]: row["name"] for row in fleet.workers()}
            if arm.dynamo is None:
                kv_traffic.run_clients(fleet.frontend_url(), warm)
                return figures_of(arm, kv_traffic.run_clients(fleet.frontend_url(), lists), names, {})
            with picklog_before(fleet, folder, arm.dynamo) as url:
                kv_traffic.run_clients(url, warm)
                before = reasons_of(url)
                load = kv_traffic.run_clients(url, lists)
                reasons = reasons_of(url)
                reasons.subtract(before)
                return figures_of(arm, load, names, {name: n for name, n in reasons.items() if n})


def reasons_of(url: str) -> Counter[str]:
    """Decode picks so far by reason, from the router's own metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for labels, count in _SELECTIONS.findall(text):
        named = dict(_LABEL.findall(labels))
        if named.get("phase") != "prefill":
            found[named["reason"]] += int(count)
    return found


def figures_of(arm: Arm, load: Load, names: Mapping[str, str], reasons: Mapping[str, int]) -> Figures:
    replies = load.replies
    if len(replies) < 2:
        raise SystemExit(f"{arm.name}: {load.failed} requests failed")
    requests = dict.fromkeys(names, 0)
    computed = dict.fromkeys(names, 0)
    for reply in replies:
        requests[reply.worker] += 1
        computed[reply.worker] += reply.prompt_tokens - reply.cached_tokens
    first = statistics.quantiles([reply.first_byte_s for reply in replies], n=10)
    return Figures(
        arm.name,
        len(replies),
        load.failed,
        sum(reply.cached_tokens for reply in replies) / sum(reply.prompt_tokens for reply in replies),
        statistics.median(reply.first_byte_s for reply in replies) * 1000,
        first[8] * 1000,
        statistics.median(reply.seconds for reply in replies) * 1000,
        len(replies) / load.seconds,
        max_share(requests.values()),
        gini(requests.values()),
        gini(computed.values()),
        reasons,
    )


def complaints(rows: Sequence[Figures]) -> list[str]:
    """What is not as it should be; empty when all is well."""
    found = [f"{row.name}: {row.failed} requests failed" for row in rows if row.failed]
    by_name = {row.name: row for row in rows}
    aware = by_name["kv-aware"]
    for name, least in (("load only", WORTH_MIN), ("round robin", WORTH_MIN), ("dynamo kv", DYNAMO_MIN)):
        if aware.cached_share < least * by_name[name].cached_share:
            found.append(
                f"cached share {aware.cached_share:.1%} is under {least} times that of {name}, "
                f"{by_name[name].cached_share:.1%}"
            )
    if aware.busiest > BUSIEST_MAX:
        found.append(f"the busiest worker has {aware.busiest:.1%} of all requests")
    return found


def table(rows: Sequence[Figures]) -> str:
    lines = [
        f"{'':<12} {'cached':>7} {'first token':>21} {'whole':>8} {'':>7} {'busiest':>8} {'Gini':>6}"
        f" {'Gini of':>9}  reasons",
        f"{'':<12} {'tokens':>7} {'p50 ms':>10} {'p90 ms':>10} {'p50 ms':>8} {'req/s':>7} {'worker':>8}"
        f" {'req.':>6} {'computed':>9}",
    ]
    for row in rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(row.reasons.items()))
        lines.append(
            f"{row.name:<12} {row.cached_share:>7.1%} {row.first_byte_p50_ms:>10.1f} "
            f"{row.first_byte_p90_ms:>10.1f} {row.seconds_p50_ms:>8.0f} {row.requests_per_s:>7.1f} "
            f"{row.busiest:>8.1%} {row.gini:>6.3f} {row.gini_computed:>9.3f}  {reasons}"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Figures], file: Path) -> None:
    """Cached share, first token and the busiest worker, one bar an arm."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    cached, first, spread = figure.subplots(1, 3)
    names = [row.name for row in rows]
    colours = [f"C{place}" for place in range(len(rows))]
    bars = cached.bar(names, [row.cached_share * 100 for row in rows], color=colours)
    cached.bar_label(bars, fmt="%.0f %%")
    cached.set(title="prompt tokens found cached", ylabel="%", ylim=(0, 100))
    bars = first.bar(names, [row.first_byte_p50_ms for row in rows], color=colours)
    first.bar_label(bars, fmt="%.0f")
    tails = [row.first_byte_p90_ms for row in rows]
    first.plot(names, tails, "k_", markersize=18, label="p90")
    first.set(title="time to the first token", ylabel="ms, p50", ylim=(0, max(tails) * 1.15))
    first.legend(loc="upper left")
    bars = spread.bar(names, [row.busiest * 100 for row in rows], color=colours)
    spread.bar_label(bars, fmt="%.0f %%")
    spread.axhline(100 / WORKERS, color="black", linewidth=0.8, linestyle="--")
    spread.set(title="requests at the busiest worker", ylabel="%, even is dashed", ylim=(0, 50))
    for axes in (cached, first, spread):
        axes.tick_params(axis="x", labelrotation=30)
    with rc_context({"svg.hashsalt": "picklog"}):
        figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--pause", type=float, default=kv_traffic.PAUSE_S, help="mean seconds of a client")
    parser.add_argument("--arm", action="append", help="only these, and no verdict")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = [arm for arm in arms() if not given.arm or arm.name in given.arm]
    rows = [measure(arm, given.seed, given.clients, given.requests, given.pause) for arm in wanted]
    found = [] if given.arm else complaints(rows)
    if given.plot is not None:
        draw(rows, given.plot)
    if given.json:
        print(json.dumps({"arms": [asdict(row) for row in rows], "complaints": found}))
    else:
        print(
            f"{given.requests} chats of {given.clients} clients, seed {given.seed}, {WORKERS} workers of "
            f"{BLOCKS} blocks of 16 tokens"
        )
        print(table(rows))
        print(floor.line())
        for line in found:
            print(f"MISSED: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
