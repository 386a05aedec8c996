"""How many load samples a second one core folds, from encoded records to the load store.

A log of samples as an owner writes it: 64 workers of 8 ranks, each record decoded, checked,
taken in by intake and stored; a tick every 7,000 samples, as the reference fleet makes them.
The figure of the fold alone and of decoding alone are printed as well.

    python -m bench.fold_samples [--records N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from blake3 import blake3

from bench import floor
from projections.events.codec import decode_record, encode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.discovery import KeyPut, Keyspace
from projections.events.ports import RecordBatch
from projections.events.signals import SampleReceived
from projections.fold import Fold
from projections.notices import Notice

WORKERS, RANKS = 64, 8
TICK_EVERY = 7_000
RECORDS = 280_000
ROUNDS = 5
BATCH = 1_000
GOAL_PER_S = 300_000
WRITER = b"bench owner-----"
NAMESPACE = "dynamo"


class _Log:
    """Encoded records of one owner, a microsecond apart."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def say(self, fact: tuple[object, ...]) -> None:
        number = len(self.records) + 1
        self.records.append(encode_record(1_000_000 + 140 * number, WRITER, 1, number, fact))


def fleet_log() -> list[bytes]:
    """The lane's opening and the keys of the fleet."""
    log = _Log()
    log.say(LaneOpened(1, 0, b"", "new"))
    for worker in range(1, WORKERS + 1):
        names = {"component": "backend", "endpoint": "generate", "instance_id": worker}
        body = {"display_name": "m", "worker_type": "decode", "runtime_config": {"data_parallel_size": RANKS}}
        key = f"backend/generate/{worker:x}"
        for keyspace, document in (
            (Keyspace.INSTANCES, {"type": "Endpoint", **names}),
            (Keyspace.CARDS, {"type": "Model", **names, "card_json": body}),
        ):
            value = json.dumps(document).encode()
            log.say(KeyPut(int(keyspace), NAMESPACE, key, worker, value, len(value), blake3(value).digest()))
    return log.records


def sample_log(start: int, count: int) -> list[bytes]:
    """Samples of all ranks in turn, as mock workers send them: only kv_used_blocks is set."""
    log = _Log()
    log.records = [b""] * start
    for number in range(count):
        if number % TICK_EVERY == TICK_EVERY - 1:
            log.say(ClockTicked(1_700_000_000_000_000, -1, (), 0, 0))
            continue
        worker, turn = number % WORKERS + 1, number // WORKERS
        publisher = (1 << 52) + worker
        at_ms = 1_700_000_000_000 + number // 7
        log.say(
            SampleReceived(
                NAMESPACE,
                publisher,
                1,
                turn,
                turn,
                worker,
                turn % RANKS,
                None,
                None,
                number % 900,
                at_ms,
                None,
            )
        )
    return log.records[start:]


def fold_speed(fleet: list[bytes], samples: list[bytes]) -> float:
    """Records a second of one fold of `samples`, notices taken and thrown away in batches."""
    fold = Fold()
    notices: list[Notice] = []
    fold.apply_batch(RecordBatch(0, fleet), notices)
    batches = [RecordBatch(len(fleet) + at, samples[at : at + BATCH]) for at in range(0, len(samples), BATCH)]
    began = time.perf_counter()
    for batch in batches:
        fold.apply_batch(batch, notices)
        notices.clear()
    took = time.perf_counter() - began
    held = len(fold.state.load)
    if held != WORKERS * RANKS:
        raise SystemExit(f"the fold holds {held} ranks, {WORKERS * RANKS} were sampled")
    return len(samples) / took


def decode_speed(samples: list[bytes]) -> float:
    """Records a second of decoding alone."""
    began = time.perf_counter()
    for offset, data in enumerate(samples):
        decode_record(offset, data)
    return len(samples) / (time.perf_counter() - began)


def measure(records: int) -> dict[str, float]:
    """Medians over ROUNDS, the floor loop measured between the rounds."""
    fleet = fleet_log()
    samples = sample_log(len(fleet), records)
    folds, decodes, floors = [], [], []
    for _ in range(ROUNDS):
        floors.append(floor.loops_per_second(3))
        folds.append(fold_speed(fleet, samples))
        decodes.append(decode_speed(samples))
    speed, rounds = statistics.median(folds), statistics.median(floors)
    return {
        "fold_samples_per_s": speed,
        "best_fold_samples_per_s": max(folds),
        "decode_per_s": statistics.median(decodes),
        "floor_loops_per_s": rounds,
        "samples_per_floor_loop": speed / rounds,
        "on_reference_machine_per_s": speed / rounds * floor.REFERENCE_LOOPS_PER_S,
        "goal_per_s": GOAL_PER_S,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.records)
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"fold of kv_metrics, records to load store: {found['fold_samples_per_s']:,.0f} records/s")
    print(f"  of which decoding alone runs at:         {found['decode_per_s']:,.0f} records/s")
    print(f"  at the reference machine's floor:        {found['on_reference_machine_per_s']:,.0f} records/s")
    print(f"  goal:                                    {GOAL_PER_S:,} records/s")
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
