"""The floor: a loop of plain Python that every absolute figure of a benchmark is stated with.

A figure such as "300,000 records/s" means little on another machine. So each benchmark prints, measured
in the same run, how many rounds a second this fixed loop makes, and how many it made on the reference
machine: divide the two to translate a figure. The loop does what the fold does most: look up a dict by a
tuple, build a small tuple, add integers, branch. It must never change; REFERENCE_LOOPS_PER_S goes with it.

    python -m bench.floor
"""

from __future__ import annotations

import statistics
import sys
import time

ROUNDS = 50_000
SLICES = 9
REFERENCE_LOOPS_PER_S = 4_500_000
REFERENCE_MACHINE = "2 cores of a cloud machine, CPython 3.11.7"
"""Median of SLICES on the reference machine, otherwise idle."""


def loop(rounds: int) -> int:
    """One slice of the floor loop; returns a number that depends on every round."""
    held: dict[tuple[int, int], tuple[int, int, int]] = {}
    total = 0
    for step in range(rounds):
        key = (step & 1023, step & 7)
        before = held.get(key)
        if before is None:
            held[key] = (step, 1, step & 255)
        else:
            held[key] = (step, before[1] + 1, before[2] ^ (step & 255))
            total += before[1]
    return total


def loops_per_second(slices: int = SLICES, rounds: int = ROUNDS) -> float:
    """Median over `slices` slices, rounds a second of this process's one thread."""
    speeds = []
    for _ in range(slices):
        began = time.perf_counter()
        loop(rounds)
        speeds.append(rounds / (time.perf_counter() - began))
    return statistics.median(speeds)


def line() -> str:
    """What a benchmark prints beside its figures."""
    measured = loops_per_second()
    share = measured / REFERENCE_LOOPS_PER_S
    return (
        f"floor loop: {measured:,.0f} rounds/s here, {REFERENCE_LOOPS_PER_S:,} on the reference machine "
        f"({REFERENCE_MACHINE}): this machine is at {share:.2f} of it"
    )


def main() -> int:
    print(line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
