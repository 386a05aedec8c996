"""Requests a second of processor time with two router processes, beside one process that does all.

    python -m bench.router_group [ROUNDS]

`picklog serve` and `picklog serve --routers 2` stand before the same mock upstream and get the same load in
turns (see bench.relay: answers of 16 events at once, 32 clients). Counted is the processor time of every
Picklog process: the one and its follower; the parent, the owner, its follower and both routers.

Target: with two routers at least 0.85 of the requests a second of processor time.
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


def compare(rounds: int, folder: Path) -> dict[int, list[Turn]]:
    """Rounds in turns, by the number of routers."""
    with ExitStack() as stack:
        behind = stack.enter_context(upstream(BURST))
        ports: dict[int, tuple[int, int]] = {}
        for routers in (1, ROUTERS):
            (folder / str(routers)).mkdir()
            ports[routers] = stack.enter_context(
                picklog(folder / str(routers), behind, ("--routers", str(routers)), None)
            )
        time.sleep(SETTLE_S)
        found: dict[int, list[Turn]] = {routers: [] for routers in ports}
        for number in range(rounds + 1):
            for routers, (port, pid) in ports.items():
                done = turn(port, pid, BURST)
                if number:  # the first warms up
                    found[routers].append(done)
        return found


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(floor.line())
    with tempfile.TemporaryDirectory(prefix="picklog-bench-") as text:
        found = compare(rounds, Path(text))
    for routers, turns in found.items():
        cost = statistics.median(one.cost_us for one in turns)
        rate = statistics.median(one.requests / one.seconds for one in turns)
        print(f"routers {routers}: {cost:.0f} us of processor a request, {rate:.0f} requests/s by the clock")
        for name in turns[0].cpu_us:
            share = statistics.median(one.cpu_us.get(name, 0.0) / one.requests for one in turns)
            print(f"    {name:12} {share:6.0f} us")
    ratio = statistics.median(
        one.cost_us / other.cost_us for one, other in zip(found[1], found[ROUTERS], strict=True)
    )
    print(f"requests a CPU-second with {ROUTERS} routers, of one process: {ratio:.2f} (target {TARGET})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
