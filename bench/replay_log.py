"""A log as a busy owner writes it, for the benchmarks of replay: samples, ticks, picks and ends.

Aggregated workers are sampled 7,000 times a second of log time; a replica
picks on the state as it stands, so that every pick can be repeated. Picks, the fold and the
picker are the real ones; only time is made up. Checkpoints and steps are written as a follower would.

    python -m bench.replay_log DIR [--records N] [--picks-every N]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from blake3 import blake3

from app.checkpoint_store import CheckpointFolder
from app.log_places import checkpoint_folder
from app.replay_steps import Steps
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.bounds import MIB
from projections.checkpoint import checkpoint_records
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, ConfigAdopted, LaneOpened, PickSettings, ReplicaStarted
from projections.events.discovery import KeyPut, Keyspace
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, Question
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.notices import Notice
from projections.view import Overlay
from router.picker.pick import pick

SAMPLES_PER_S = 7_000
TICK_US = 1_000_000
PER_COMMIT = 200
START_US = 1_790_000_000_000_000
OWNER, REPLICA = b"bench owner-----", b"bench replica---"
MODEL, NAMESPACE = "m", "dynamo"
SETTINGS = PickSettings("load_based", "file", (NAMESPACE,), (), 3_000_000)
STORE = SegmentSettings(segment_bytes=256 * MIB, reserve_bytes=0, durable=False)


class BusyLog:
    """Writes one log. checkpoint_s: log time between checkpoints."""

    def __init__(self, data: Path, workers: int, ranks: int, checkpoint_s: int = 60) -> None:
        self.store = SegmentLog.open_owner(data, STORE)
        self.checkpoints = CheckpointFolder(checkpoint_folder(data))
        self.steps = Steps(data)
        self.workers = workers
        self.ranks = ranks
        self.fold = Fold()
        self.time = START_US
        self._checkpoint_us = checkpoint_s * TICK_US
        self._notices: list[Notice] = []
        self._sequences = {OWNER: 0, REPLICA: 0}
        self._batch: list[bytes] = []
        self._offset = 0
        self._own_seq = 0
        self._rotations = (0, 0)
        self._open: PickMade | None = None

    def say(self, fact: tuple[object, ...], writer: bytes = OWNER) -> None:
        """One record, written and folded."""
        self._sequences[writer] += 1
        data = encode_record(self.time, writer, 1 if writer == OWNER else 0, self._sequences[writer], fact)
        self._batch.append(data)
        self.fold.apply(self._offset, data, self._notices)
        self._offset += 1
        if len(self._batch) >= PER_COMMIT:
            self.flush()

    def flush(self) -> None:
        """Commit what waits."""
        self._notices.clear()
        if self._batch:
            self.store.commit(self._batch)
            self._batch = []
            self.steps.offer(self.fold, self.store.log_id)

    def begin(self) -> None:
        """The lane, the settings, the fleet, its publishers and the replica."""
        self.say(LaneOpened(1, self.time, b"", "new"))
        self.say(ConfigAdopted(1, "start", b"d" * 16, "{}", SETTINGS))
        for worker in range(1, self.workers + 1):
            names = {"namespace": NAMESPACE, "component": "backend", "endpoint": "generate"}
            names = {**names, "instance_id": worker}  # type: ignore[dict-item]
            capacity = {
                "total_kv_blocks": 4_000,
                "max_num_batched_tokens": 8_192,
                "data_parallel_size": self.ranks,
            }
            card = {
                "display_name": MODEL,
                "worker_type": "aggregated",
                "kv_cache_block_size": 16,
                "runtime_config": capacity,
            }
            for keyspace, document in (
                (Keyspace.INSTANCES, {"type": "Endpoint", **names}),
                (Keyspace.CARDS, {"type": "Model", **names, "card_json": card}),
            ):
                value = json.dumps(document).encode()
                key = f"backend/generate/{worker:x}"
                self.say(
                    KeyPut(int(keyspace), NAMESPACE, key, worker, value, len(value), blake3(value).digest())
                )
            connected = SubscriptionState.CONNECTED, 1, Transport.DIRECT, "connected"
            self.say(SubscriptionChanged(Family.LOAD, NAMESPACE, (1 << 52) + worker, "backend", *connected))
        self.say(ReplicaStarted(REPLICA, "bench", "router", "0", "3", (), 62, ()), REPLICA)

    def run(self, records: int, picks_every: int) -> None:
        """Samples up to `records` records in all; a pick and its end after every `picks_every` of them.

        picks_every: 0 for none.
        """
        ticked_at = checkpointed_at = self.time
        number = 0
        while self._offset < records:
            self.time += TICK_US // SAMPLES_PER_S
            if self.time - ticked_at >= TICK_US:
                ticked_at += TICK_US
                self.say(ClockTicked(self.time, -1, (), 0, 0))
                if self.time - checkpointed_at >= self._checkpoint_us:
                    checkpointed_at = self.time
                    self.checkpoint()
            self._sample(number)
            number += 1
            if picks_every and number % picks_every == 0:
                self._pick(number)

    def checkpoint(self) -> None:
        """The state of the newest record."""
        self.flush()
        mark, log_id = self.fold.mark, self.store.log_id
        records = checkpoint_records(self.fold, log_id)
        self.checkpoints.write(log_id, mark.offset, mark.check, mark.time, records)

    def close(self) -> None:
        """Commit the rest and let go."""
        self.flush()
        self.store.close()

    def _sample(self, number: int) -> None:
        worker, turn = number % self.workers + 1, number // self.workers
        used = (number * 2_654_435_761 >> 7) % 3_000
        at_ms = self.time // 1000
        rank = turn % self.ranks
        publisher = (1 << 52) + worker
        self.say(
            SampleReceived(NAMESPACE, publisher, 1, turn, turn, worker, rank, None, None, used, at_ms, None)
        )

    def _pick(self, number: int) -> None:
        prefill, decode = self._rotations
        question = Question(
            f"request-{number}",
            0,
            MODEL,
            MODEL,
            self.time,
            self.time + 2_000,
            (NAMESPACE,),
            (),
            100 + number % 8_000,
            prefill,
            decode,
        )
        outcome = pick(self.fold.view(Overlay()), question, SETTINGS)
        self._rotations = (outcome.rotation_prefill, outcome.rotation_decode)
        pick_id = blake3(number.to_bytes(8, "big")).digest(16)
        fact = PickMade(pick_id, REPLICA, self._own_seq, self._offset - 1, 1, question, outcome, False)
        self._own_seq += 1
        before, self._open = self._open, fact
        self.say(fact, REPLICA)
        if before is not None:
            self._own_seq += 1
            end = (self.time, EndStatus.OK, Fault.NONE, 200, "shim", 90_000, 700_000, 900, 120, None)
            self.say(DispatchEnded(before.pick_id, REPLICA, self._own_seq, *end), REPLICA)


def build(data: Path, records: int, picks_every: int, workers: int = 64, ranks: int = 1) -> float:
    """Write a log of `records` records below `data`; seconds that it took."""
    began = time.perf_counter()
    log = BusyLog(data, workers, ranks)
    log.begin()
    log.run(records, picks_every)
    log.close()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="a new data directory; none: nothing is done")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--picks-every", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    if given.data is None:
        print("a log for the benchmarks of replay; name a new directory to write one")
        return 0
    seconds = build(given.data, given.records, given.picks_every, ranks=given.ranks)
    print(f"{given.records:,} records in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
