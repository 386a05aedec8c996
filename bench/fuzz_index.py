"""Long fuzz of the index against its oracle.

    python -m bench.fuzz_index [SECONDS] [--seed N] [--mode MODE]

Tells stories (tests/projections/kv/index_fuzz.py) in every mode of naming blocks until the time is over and,
in a run of a minute or more, a million steps are told, on as many processes as there are cores. Prints
its first seed, and for a failure the command that repeats it.
Exit status 1 when index and oracle disagreed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.projections.kv.index_fuzz import MODES, tell

STEPS_MIN = 1_000_000
LONG_S = 60
STORIES = 5
"""Stories of one mode that a process tells before it reports."""


def told(first: int, mode: str) -> tuple[int, str]:
    """Steps told, and what went wrong."""
    try:
        return tell(first, STORIES, (mode,)), ""
    except AssertionError as failure:
        return 0, f"{failure}\nrepeat: python -m bench.fuzz_index 0 --seed {first} --mode {mode}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz_index", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--mode", choices=MODES, default=None)
    asked = parser.parse_args()
    if asked.mode is not None and asked.seed is not None:
        steps, failure = told(asked.seed, asked.mode)
        print(failure or f"{steps} steps, index and oracle agree")
        return 1 if failure else 0
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    cores = len(os.sched_getaffinity(0))
    print(f"seed {seed}, modes {', '.join(MODES)}, {cores} processes", flush=True)
    began, steps = time.monotonic(), 0
    with ProcessPoolExecutor(cores) as pool:
        for batch in itertools.count():
            firsts = [seed + STORIES * (batch * cores + core) for core in range(cores)]
            jobs = [pool.submit(told, first, mode) for first in firsts for mode in MODES]
            for told_steps, failure in (job.result() for job in jobs):
                steps += told_steps
                if failure:
                    print(failure)
                    return 1
            if time.monotonic() - began > asked.seconds and (steps >= STEPS_MIN or asked.seconds < LONG_S):
                break
    print(f"{steps:,} steps in {time.monotonic() - began:.1f} s, index and oracle agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
