"""How many kv-events a second one core folds from a log: read, check, decode, apply.

Chats on 64 ranks, one event for a prefill of up to 128 blocks, one for each block of an answer, one for
each eviction, about the shape of a real engine's stream. Their records lie in segment files, 1, 4 or 16
events of a rank in each, and go through the reader, the check words and the fold with everything that a
serving process does to them: intake, the gate of live ranks, cursors, notices, a tick each second.
Beside it, in turns in the same run, Dynamo's RadixTree takes the same events, applied alone. All of
it, the floor loop too, is measured in CPU time of the process, since one thread does all the work.
The garbage collector is set as in every command that folds a log.

Target at 4 events a record, as the reference fleet sends them: 200,000 events/s, goal 400,000.

    python -m bench.kv_fold [--blocks N] [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from app.collector import reading_collector
from bench import floor
from bench.index_rivals import Dynamo, dynamo_is_here
from bench.index_workload import SIZES, BlockEvent, Chats, column
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, FoldModeAdopted, LaneOpened
from projections.events.discovery import KeyPut, Keyspace
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation, StorageTier
from projections.fold import Fold
from projections.fold_modes import KV_INDEX
from projections.notices import KvEventResult, KvNotice, Notice

SIZE = SIZES["chat-64"]
PER_RECORD = (1, 4, 16)
REFERENCE_RECORD = 4  # events, of the reference fleet
BLOCKS = 384_000
"""Stored in all: what 64 ranks keep and half as many again, as `bench.index` has it. The more of them,
the larger is the share of evictions: with 1,000,000 an event has 10.8 blocks in the mean and not 6.5."""
RECORDS_PER_S = 5_000  # of log time, as the reference fleet
PER_COMMIT = 100
READ_BYTES = 1 << 20
FLOOR_PER_S, GOAL_PER_S = 200_000, 400_000
WRITER = b"bench owner-----"
NAMESPACE = "dynamo"


def fleet_facts(ranks: int) -> Iterator[tuple[Any, ...]]:
    """The fold mode, and a worker for each rank."""
    yield FoldModeAdopted((KV_INDEX,))
    for worker in range(1, ranks + 1):
        names = {"component": "backend", "endpoint": "generate", "instance_id": worker}
        value = json.dumps({"type": "Endpoint", **names}).encode()
        key = f"backend/generate/{worker:x}"
        yield KeyPut(
            int(Keyspace.INSTANCES), NAMESPACE, key, worker, value, len(value), blake3(value).digest()
        )


class KvLog:
    """Writes a log of block events below `folder`. events, blocks: how many it holds."""

    def __init__(self, folder: Path) -> None:
        self._log = SegmentLog.open_owner(folder, SegmentSettings(reserve_bytes=0, durable=False))
        self._pending: list[bytes] = []
        self._number = 0
        self._ids = [0] * SIZE.ranks
        self.events = self.blocks = 0

    def begin(self) -> None:
        """The lane, the fold mode, and a worker for each rank."""
        self._say(LaneOpened(1, 0, b"", "new"))
        for fact in fleet_facts(SIZE.ranks):
            self._say(fact)

    def add(self, turn: list[BlockEvent], per_record: int) -> None:
        """The events of a turn, which are all of one rank."""
        for start in range(0, len(turn), per_record):
            self._batch(turn[start : start + per_record])

    def close(self) -> None:
        """Commit the rest."""
        self._flush()
        self._log.close()

    def _batch(self, events: list[BlockEvent]) -> None:
        rank = events[0].rank
        heads, columns = [], []
        for event in events:
            self._ids[rank] += 1
            is_stored = event.tokens is not None
            parent = event.parent if is_stored else None
            operation = KvOperation.STORED if is_stored else KvOperation.REMOVED
            heads.append(
                KV_EVENT_HEAD.pack(
                    rank + 1,
                    0,
                    self._ids[rank],
                    operation,
                    StorageTier.DEVICE,
                    parent is not None,
                    len(event.names),
                )
            )
            columns += [
                column([] if parent is None else [parent]),
                column(event.tokens or []),
                column(event.names),
            ]
            self.blocks += len(event.names)
        self.events += len(events)
        publisher, sequence = (1 << 52) + rank, self._number
        packed = b"".join(heads), b"".join(columns)
        self._say(KvBatchReceived(NAMESPACE, publisher, 1, sequence, sequence, *packed, 1_790_000_000_000))

    def _say(self, fact: tuple[Any, ...]) -> None:
        self._number += 1
        at = 1_000_000 + self._number * (1_000_000 // RECORDS_PER_S)
        self._pending.append(encode_record(at, WRITER, 1, self._number, fact))
        if self._number % RECORDS_PER_S == 0:
            self._say(ClockTicked(at, -1, (), 0, 0))
        if len(self._pending) >= PER_COMMIT:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._log.commit(self._pending)
            self._pending = []


def floor_speed() -> float:
    """Rounds a second of the floor loop."""
    began = time.process_time()
    for _ in range(floor.SLICES):
        floor.loop(floor.ROUNDS)
    return floor.SLICES * floor.ROUNDS / (time.process_time() - began)


def fold_speed(folder: Path, events: int) -> float:
    """Events a second of a fold of the whole log."""
    fold, notices = Fold(), list[Notice]()
    applied = position = 0
    reader = SegmentReader.open(folder)
    began = time.process_time()
    while batches := reader.read(position, READ_BYTES):
        for batch in batches:
            fold.apply_batch(batch, notices)
        position = batches[-1].first_offset + len(batches[-1].records)
        for notice in notices:
            if type(notice) is KvNotice and notice.result is KvEventResult.APPLIED:
                applied += notice.times
        notices.clear()
    took = time.process_time() - began
    reader.close()
    if applied != events:
        raise SystemExit(f"{applied} of {events} events were applied")
    return events / took


def rival_speed(turns: list[Any], events: int) -> float:
    """Events a second of Dynamo's tree, applied alone."""
    rival = Dynamo(SIZE.ranks)
    began = time.process_time()
    for turn in turns:
        rival.apply(turn)
    rival.settle()
    return events / (time.process_time() - began)


def measure(blocks: int, rounds: int, work: Path) -> dict[str, Any]:
    """Medians over rounds, in which every kind has its turn."""
    turns = [*Chats(SIZE).events(blocks)]
    logs = {}
    for per_record in PER_RECORD:
        log = KvLog(work / str(per_record))
        log.begin()
        for turn in turns:
            log.add(turn, per_record)
        log.close()
        logs[per_record] = log
    events, total = log.events, log.blocks
    ready = [*map(Dynamo(SIZE.ranks).ready, turns)] if dynamo_is_here() else []
    speeds: dict[int, list[float]] = {per_record: [] for per_record in PER_RECORD}
    rival, floors = list[float](), list[float]()
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        floors.append(floor_speed())
        for per_record in PER_RECORD:
            speeds[per_record].append(fold_speed(work / str(per_record), events))
        if ready:
            rival.append(rival_speed(ready, events))
    loops = statistics.median(floors)
    found: dict[str, Any] = {"events": events, "blocks": total, "floor_loops_per_s": loops}
    for per_record, some in speeds.items():
        speed = statistics.median(some)
        found[f"{per_record}_per_record"] = {
            "events_per_s": speed,
            "best_events_per_s": max(some),
            "blocks_per_s": speed * total / events,
            "on_reference_machine_per_s": speed / loops * floor.REFERENCE_LOOPS_PER_S,
            "of_dynamo": statistics.median(a / b for a, b in zip(some, rival, strict=True))
            if rival
            else None,
        }
    found["dynamo_apply_events_per_s"] = statistics.median(rival) if rival else None
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What people read of it."""
    mean = found["blocks"] / found["events"]
    yield f"{found['events']:,} kv-events of {mean:.1f} blocks in the mean, {SIZE.ranks} ranks"
    for per_record in PER_RECORD:
        one = found[f"{per_record}_per_record"]
        rival = f", {one['of_dynamo']:.2f}x Dynamo's apply alone" if one["of_dynamo"] else ""
        yield (
            f"  {per_record:>2} events a record: {one['events_per_s']:>9,.0f} events/s "
            f"(best {one['best_events_per_s']:,.0f}), {one['blocks_per_s']:,.0f} blocks/s; at the reference "
            f"machine's floor {one['on_reference_machine_per_s']:,.0f}{rival}"
        )
    reached = found[f"{REFERENCE_RECORD}_per_record"]["events_per_s"]
    for name, target in (("floor", FLOOR_PER_S), ("goal", GOAL_PER_S)):
        verdict = "met" if reached >= target else "missed"
        yield f"  {name} {target:,} events/s at {REFERENCE_RECORD} events a record: {verdict}"
    if not found["dynamo_apply_events_per_s"]:
        yield "  Dynamo is not installed for this Python: no ratio"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reading_collector()
    work = Path(tempfile.mkdtemp(prefix="picklog-kv-fold-"))
    try:
        found = measure(options.blocks, options.rounds, work)
    finally:
        shutil.rmtree(work)
    if options.json:
        print(json.dumps(found))
        return 0
    for line in lines(found):
        print(line)
    loops = found["floor_loops_per_s"]
    print(f"floor loop: {loops:,.0f} rounds/s here, {floor.REFERENCE_LOOPS_PER_S:,} on the reference machine")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
