"""Requests a second of processor time with two router processes, beside one process that does all.

    python -m bench.router_group [ROUNDS]

`picklog serve` and `picklog serve --routers 2` stand before the same mock upstream and are loaded in turns
(see bench.relay: answers of 16 events at once). Counted is the processor time of every Picklog process: the
one and its follower; the parent, the owner, its follower and both routers.

A process that is asked by more clients at a time wakes less often for each request, so a router is compared
with the one process under as many clients as that has: 32 for each router. The same 32 clients before the
whole group, 16 for each router, are printed beside: the same load for both, and the lower figure.

Target: with two routers, of 32 clients each, at least 0.85 of the requests a second of processor time.
Below it the exit status is 1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import floor
from bench.relay import (
    BURST,
    Scenario,
    cpu_us,
    free_port,
    load,
    picklog,
    running,
    wait_for,
)

ROUNDS = 5
ROUTERS = 2
TARGET = 0.85
CLIENTS = 32  # of a router
REQUESTS = 2_560  # of a round
SETTLE_S = 3.0  # all processes of a group have come up and folded


class Turn(NamedTuple):
    """One round. cpu_us: by process, named by its command."""

    requests: int
    seconds: float
    cpu_us: dict[str, float]

    @property
    def cost_us(self) -> float:
        """Processor time of a request, of all processes, microseconds."""
        return sum(self.cpu_us.values()) / self.requests


def family(pid: int) -> dict[int, str]:
    """A process and all below it, with what each one is."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        try:
            words = Path(f"/proc/{one}/cmdline").read_bytes().decode().split("\0")
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # it has ended
            continue
        found[one] = named(words)
    return found


def named(words: list[str]) -> str:
    """The command of a process's arguments."""
    command = words[words.index("app") + 1] if "app" in words else Path(words[0]).name
    member = words[words.index("--member") + 1] if "--member" in words else ""
    return member or command


def turn(port: int, pid: int, scenario: Scenario) -> Turn:
    """One round of load."""
    members = family(pid)
    before = {one: cpu_us(one) for one in members}
    began = time.perf_counter()
    count = len(uvloop.run(load(port, scenario)))
    seconds = time.perf_counter() - began
    return Turn(count, seconds, {name: cpu_us(one) - before[one] for one, name in members.items()})


@contextmanager
def upstream(scenario: Scenario) -> Iterator[int]:
    """The mock's port."""
    port = free_port()
    words = ["bench.mock_upstream", str(port), str(scenario.chunks), str(scenario.gap_ms)]
    with running([sys.executable, "-m", *words], None) as child:
        wait_for(port, child, "/v1/models")
        yield port


def loaded(clients: int) -> Scenario:
    """So many clients at a time, and the same requests altogether whatever their number."""
    return BURST._replace(clients=clients, requests=REQUESTS // clients)


def compare(rounds: int, folder: Path) -> dict[tuple[int, int], list[Turn]]:
    """Rounds in turns, by the number of routers and of clients."""
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(BURST))
        ports: dict[int, tuple[int, int]] = {}
        for routers in (1, ROUTERS):
            (folder / str(routers)).mkdir()
            ports[routers] = stack.enter_context(
                picklog(folder / str(routers), behind, ("--routers", str(routers)), None)
            )
        time.sleep(SETTLE_S)
        found: dict[tuple[int, int], list[Turn]] = {
            (1, CLIENTS): [],
            (ROUTERS, ROUTERS * CLIENTS): [],
            (ROUTERS, CLIENTS): [],
        }
        for number in range(rounds + 1):
            for (routers, clients), turns in found.items():
                done = turn(*ports[routers], loaded(clients))
                if number:  # the first warms up
                    turns.append(done)
        return found


def ratio_of(alone: list[Turn], group: list[Turn]) -> float:
    """Requests a CPU-second of the group, of the one process's."""
    return statistics.median(one.cost_us / other.cost_us for one, other in zip(alone, group, strict=True))


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(floor.line())
    with tempfile.TemporaryDirectory(prefix="picklog-bench-") as text:
        found = compare(rounds, Path(text))
    for (routers, clients), turns in found.items():
        cost = statistics.median(one.cost_us for one in turns)
        rate = statistics.median(one.requests / one.seconds for one in turns)
        print(
            f"routers {routers}, clients {clients}: {cost:.0f} us of processor a request, "
            f"{rate:.0f} requests/s by the clock"
        )
        for name in turns[0].cpu_us:
            share = statistics.median(one.cpu_us.get(name, 0.0) / one.requests for one in turns)
            print(f"    {name:12} {share:6.0f} us")
    alone = found[1, CLIENTS]
    judged = ROUTERS * CLIENTS
    ratios = {clients: ratio_of(alone, found[ROUTERS, clients]) for clients in (judged, CLIENTS)}
    for clients, ratio in ratios.items():
        target = f"target {TARGET}" if clients == judged else "no target"
        print(
            f"requests a CPU-second with {ROUTERS} routers and {clients} clients, of one process's "
            f"with {CLIENTS}: {ratio:.2f} ({target})"
        )
    return 0 if ratios[judged] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
