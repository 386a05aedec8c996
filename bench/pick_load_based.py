"""How long a load-based pick takes, with its candidate tables and their digest.

Fleets of aggregated workers (one phase) and of prefill and decode workers, at 200 requests
a second and 14 samples a second of each rank, and again with no sample after the first, so
that every dispatch weighs. Each round is one pick on a view made for it, as a router does;
the pick enters the overlay and later the ledger, so rotations and costs move. Run it alone on a core:

    taskset -c 0 python -m bench.pick_load_based

Targets (64 ranks): p50 under 150 microseconds, p99 under 500.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from types import MappingProxyType

from bench import floor
from projections.events.control import PickSettings
from projections.events.envelope import Record
from projections.events.kinds import Kind
from projections.events.picks import PickMade, Question
from projections.events.signals import SampleReceived
from projections.identity import WorkerKey
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role, Worker
from projections.view import Overlay, View
from router.picker.pick import pick

ROUNDS = 3_000
WARM_UP = 200
UNFOLDED = 4  # own picks that the as-of does not hold yet
REQUESTS_PER_S = 200
SAMPLES_PER_S = 14  # of each rank, as in the reference fleet
NOW = 1_000_000_000
SETTINGS = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000)
WRITER = b"w" * 16


def a_worker(instance_id: int, role: Role, ranks: int) -> Worker:
    """A worker of `ranks` ranks with ordinary capacities."""
    return Worker(
        key=WorkerKey("dynamo", instance_id),
        role=role,
        model="m",
        component=role.label,
        endpoint="generate",
        dp_start_rank=0,
        dp_size=ranks,
        dp_declared=ranks > 1,
        block_size=16,
        total_kv_blocks=16_384,
        max_num_batched_tokens=8_192,
        max_num_seqs=256,
        context_length=32_768,
        disaggregated_endpoint=None,
        has_card=True,
        enable_eagle=False,
        first_seen=0,
        last_updated=0,
    )


def a_fleet(workers: list[Worker]) -> Fleet:
    """These workers, published."""
    held = {worker.key: worker for worker in sorted(workers)}
    return Fleet(1, MappingProxyType(held), (), MappingProxyType({}), {})


class Publishers:
    """Samples of every rank in turn."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.load = LoadStore()
        self._ranks = [(worker.key, rank) for worker in fleet.workers.values() for rank in worker.ranks()]
        self._sequence = 0

    def publish(self, count: int, stamp: int) -> None:
        """The next `count` ranks report."""
        for _ in range(count):
            self._sequence += 1
            sequence = self._sequence
            (namespace, instance_id), rank = self._ranks[sequence % len(self._ranks)]
            busy = sequence * 7_919 % 900
            load = (busy, busy * 4, busy)
            fact = SampleReceived(namespace, 1, 1, sequence, sequence, instance_id, rank, *load, 0)
            record = Record(0, 0, Kind.SAMPLE_RECEIVED, stamp, WRITER, 1, sequence, fact)
            self.load.apply_sample(record, self.fleet)

    def publish_all(self, stamp: int) -> None:
        """Every rank reports once."""
        self.publish(len(self._ranks), stamp)


def a_question(number: int, rotations: tuple[int, int]) -> Question:
    """A prompt of 1,000 to 9,000 tokens, 5 ms after the one before."""
    asked_at = NOW + number * (1_000_000 // REQUESTS_PER_S)
    tokens = 1_000 + number * 7_919 % 8_000
    return Question("r", 1, "m", "m", asked_at, asked_at + 800, ("dynamo",), (), tokens, *rotations)


def durations(fleet: Fleet, rounds: int, samples_a_pick: int) -> list[float]:
    """Microseconds of each pick, of this thread's CPU time: other processes do not count."""
    publishers, ledger = Publishers(fleet), Ledger()
    publishers.publish_all(NOW)
    waiting: deque[PickMade] = deque()
    overlay = Overlay()
    rotations = (0, 0)
    taken = []
    for number in range(WARM_UP + rounds):
        question = a_question(number if samples_a_pick else number % 500, rotations)
        publishers.publish(samples_a_pick, question.asked_at)
        ledger.prune(question.asked_at)
        began = time.thread_time_ns()
        outcome = pick(View(0, fleet, publishers.load, ledger, overlay), question, SETTINGS)
        taken.append((time.thread_time_ns() - began) / 1_000)
        rotations = (outcome.rotation_prefill, outcome.rotation_decode)
        fact = PickMade(number.to_bytes(16, "big"), WRITER, number, 0, 1, question, outcome)
        overlay.add_pick(fact)
        waiting.append(fact)
        if len(waiting) > UNFOLDED:
            folded = waiting.popleft()
            overlay.folded(folded.own_seq + 1)
            ledger.apply_pick(
                Record(number, 0, Kind.PICK_MADE, question.asked_at, WRITER, 0, number, folded), fleet
            )
    return sorted(taken[WARM_UP:])


def line(name: str, taken: list[float]) -> str:
    """One figure."""
    p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    return f"{name:<44} p50 {p50:8.1f} us   p99 {p99:8.1f} us"


def fleets() -> dict[str, Fleet]:
    """The fleets that are measured."""

    def of(role: Role, first: int, count: int, ranks: int) -> list[Worker]:
        return [a_worker(first + place, role, ranks) for place in range(count)]

    both = of(Role.PREFILL, 1, 4, 8) + of(Role.DECODE, 101, 4, 8)
    pairs = of(Role.PREFILL, 1, 64, 1) + of(Role.DECODE, 101, 64, 1)
    return {
        "64 ranks: 64 aggregated workers": a_fleet(of(Role.AGGREGATED, 1, 64, 1)),
        "64 ranks: 8 aggregated workers of 8": a_fleet(of(Role.AGGREGATED, 1, 8, 8)),
        "64 ranks: 32 prefill and 32 decode": a_fleet(both),
        "128 ranks: 64 prefill and 64 decode workers": a_fleet(pairs),
        "512 ranks: 64 aggregated workers of 8": a_fleet(of(Role.AGGREGATED, 1, 64, 8)),
        "1,024 ranks: 128 aggregated workers of 8": a_fleet(of(Role.AGGREGATED, 1, 128, 8)),
    }


def main() -> int:
    """Measure every fleet."""
    for name, fleet in fleets().items():
        ranks = sum(worker.dp_size for worker in fleet.workers.values())
        rounds = min(ROUNDS, ROUNDS * 128 // ranks)
        print(line(name, durations(fleet, rounds, max(1, ranks * SAMPLES_PER_S // REQUESTS_PER_S))))
        print(line("  the same, nothing answered", durations(fleet, rounds, 0)))
    print(floor.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
