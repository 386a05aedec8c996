"""The command line of the long fuzzers in `bench/`: seconds, seed, target, case."""

from __future__ import annotations

import argparse
import random
import time

from tests.fuzz import mutate
from tests.fuzz.mutate import Target

FAILURES_SHOWN_MAX = 5


def fuzz(command: str, description: str, targets: list[Target]) -> int:
    """Run what the command line asks for; the exit status, 1 when a decoder broke a promise.

    command: how a case is repeated, without its options.
    """
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--target", choices=[target.name for target in targets], default=None)
    parser.add_argument("--case", type=int, default=None)
    asked = parser.parse_args()
    chosen = [target for target in targets if asked.target in (None, target.name)]
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    print(f"seed {seed}, targets {', '.join(target.name for target in chosen)}", flush=True)
    if asked.case is not None:
        if asked.target is None or asked.seed is None:
            parser.error("--case needs --target and --seed")
        failure = mutate.failure_of(chosen[0], seed, asked.case)
        print(failure.report(command) if failure else "no promise broken")
        return 1 if failure else 0
    return run(command, chosen, seed, asked.seconds)


def run(command: str, chosen: list[Target], seed: int, seconds: float) -> int:
    """Fuzz for a time; report counts and failures; return the exit status."""
    began = time.monotonic()
    shown, count = 0, 0
    for count, failure in mutate.failures_until(chosen, seed, began + seconds):  # noqa: B007 - last value is used
        if failure:
            print(failure.report(command), flush=True)
            shown += 1
            if shown == FAILURES_SHOWN_MAX:
                break
    print(f"{count} cases in {time.monotonic() - began:.1f} s, {shown} broken promises")
    return 1 if shown else 0
