"""How soon a replica is there: from a checkpoint and a tail, and from nothing, by the size of the log.

    python -m bench.replicas [--records N] [--kafka] [--plot FILE] [--json]

A log as the reference fleet would write it into a full index: 1,048,576 nodes held 8,388,608 times by 64
ranks, then load samples, 7,000 a second of log time, a tick each second. It is folded from its beginning
once, and its checkpoint is written where 60 s of it are left. Then a process of its own starts from that
checkpoint: the time from before it is spawned to a fold at the log's end, interpreter and imports included,
and its processor time, which other work on the machine stretches less.

At several sizes on the way: how long the fold from the beginning took until there, the memory of the
process, and how long a reader that follows takes to have what was just committed. With --kafka the log
is copied into a topic of a real broker too and a process starts from there.

Target: 10 million records, a full index, a tail of 60 s of samples: under 5 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint_store import CheckpointFolder
from app.collector import serving_collector
from app.fold_start import start_fold
from bench import floor
from bench.index_workload import BlockEvent, ceiling_chats, column
from bench.kv_fold import NAMESPACE, WRITER, fleet_facts
from deploy.demo import install_kafka
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.kafka_tail import KafkaTail
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.checkpoint import checkpoint_records
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened, Pinged
from projections.events.ports import LogReader, LogStore
from projections.events.signals import (
    KV_EVENT_HEAD,
    KvBatchReceived,
    KvOperation,
    SampleReceived,
    StorageTier,
)
from projections.fold import Fold
from projections.notices import Notice

RECORDS = 10_000_000
RANKS = 64
EVENTS_PER_RECORD = 16
SAMPLES_PER_S, TAIL_S = 7_000, 60
READ_RECORDS_MAX = 12_000  # of one read: a checkpoint is written behind a whole one
TAIL_RECORDS = TAIL_S * (SAMPLES_PER_S + 1) + READ_RECORDS_MAX
PER_COMMIT, COMMIT_BYTES = 1_000, 1 << 20
REPLICA = b"bench replica---"
READ_BYTES = 1 << 20
LAG_ROUNDS = 50
STARTS = 5
SIZES = (300_000, 1_000_000, 3_000_000, 10_000_000)
TARGET_S = 5.0
SETTINGS = SegmentSettings(reserve_bytes=0, durable=False)


class Size(NamedTuple):
    """Measured when the log had so many records. rebuild_s, rss_mb: of the fold from its beginning."""

    records: int
    lag_ms: float
    rebuild_s: float = 0.0
    rss_mb: float = 0.0


# The log ----------------------------------------------------------------------------------


def facts(records: int) -> Iterator[tuple[Any, ...]]:
    """The whole log, that many records."""
    count = 0
    for fact in _index():
        count += 1
        yield fact
    for number in range(records - count):
        if number % (SAMPLES_PER_S + 1) == SAMPLES_PER_S:
            yield ClockTicked(1_700_000_000_000_000, -1, (), 0, 0)
            continue
        worker, turn = number % RANKS, number // RANKS
        used, at_ms = number % 16_000, 1_700_000_000_000 + number // 7
        yield SampleReceived(
            NAMESPACE, (1 << 52) + RANKS + worker, 1, turn, turn, worker + 1, 0, None, None, used, at_ms, None
        )


def _index() -> Iterator[tuple[Any, ...]]:
    """The lane, the fleet, and blocks up to both ceilings."""
    yield LaneOpened(1, 0, b"", "new")
    yield from fleet_facts(RANKS)
    ids = [0] * RANKS
    number = 0
    for turn in ceiling_chats():
        for rank, events in groupby(turn, key=lambda event: event.rank):
            some = [*events]
            for start in range(0, len(some), EVENTS_PER_RECORD):
                number += 1
                yield _batch(rank, some[start : start + EVENTS_PER_RECORD], ids, number)


def _batch(rank: int, events: list[BlockEvent], ids: list[int], number: int) -> KvBatchReceived:
    heads, columns = [], []
    for event in events:
        ids[rank] += 1
        has_parent, size = event.parent is not None, len(event.names)
        heads.append(
            KV_EVENT_HEAD.pack(
                rank + 1, 0, ids[rank], KvOperation.STORED, StorageTier.DEVICE, has_parent, size
            )
        )
        parent = [] if event.parent is None else [event.parent]
        columns += [column(parent), column(event.tokens or []), column(event.names)]
    packed = b"".join(heads), b"".join(columns)
    return KvBatchReceived(NAMESPACE, (1 << 52) + rank, 1, number, number, *packed, 1_790_000_000_000)


def write(store: LogStore, reader: LogReader, records: int) -> list[Size]:
    """Commit the log; the lag of a reader at each size."""
    pending: list[bytes] = []
    size = 0
    found: list[Size] = []
    for number, fact in enumerate(facts(records), 1):
        pending.append(encode_record(1_000_000 + number * 143, WRITER, 1, number, fact))
        size += len(pending[-1])
        if len(pending) == PER_COMMIT or size > COMMIT_BYTES or number == records or number in SIZES:
            store.commit(pending)
            pending, size = [], 0
        if number in SIZES:
            found.append(Size(number, lag_ms(store, reader)))
    return found


def lag_ms(store: LogStore, reader: LogReader) -> float:
    """From the end of a commit until a reader that follows has the record, median, milliseconds."""
    taken = []
    position = store.end_offset()
    while reader.read(position, READ_BYTES):
        position = store.end_offset()
    for number in range(LAG_ROUNDS):
        ping = Pinged(REPLICA, number, position)
        store.commit([encode_record(1, REPLICA, 0, position + 1, ping)])
        began = time.perf_counter()
        while not (batches := reader.read(position, READ_BYTES)):
            time.sleep(0.0001)
        taken.append((time.perf_counter() - began) * 1000)
        position = batches[-1].first_offset + len(batches[-1].records)
    return statistics.median(taken)


# What is measured in processes of their own ---------------------------------------------------


def rebuild(folder: Path, records: int) -> None:
    """Fold from the beginning, write the checkpoint where a tail is left, print a line at each size."""
    serving_collector()
    fold, notices, position = Fold(), list[Notice](), 0
    began, paused, sizes, checkpointed = time.perf_counter(), 0.0, [*SIZES], False
    with closing(SegmentReader.open(folder)) as reader:
        end = reader.end_offset()
        while batches := reader.read(position, READ_BYTES):
            for batch in batches:
                fold.apply_batch(batch, notices)
                notices.clear()
            position = batches[-1].first_offset + len(batches[-1].records)
            if sizes and position >= sizes[0]:
                row = {
                    "records": sizes.pop(0),
                    "s": time.perf_counter() - began - paused,
                    "rss_mb": _rss_mb(),
                }
                print(json.dumps(row), flush=True)
            if not checkpointed and position >= min(records, end) - TAIL_RECORDS:
                checkpointed = True
                at = time.perf_counter()
                mark, store = fold.mark, CheckpointFolder(folder / "checkpoints")
                info = store.write(
                    reader.log_id, mark.offset, mark.check, mark.time, checkpoint_records(fold, reader.log_id)
                )
                paused = time.perf_counter() - at
                tail = end - 1 - mark.offset
                row = {"checkpoint_mb": info.size_bytes / 1e6, "checkpoint_s": paused, "tail_records": tail}
                print(json.dumps(row), flush=True)


def start(reader: LogReader, folder: Path, began: float) -> None:
    """Start from the checkpoint and fold the tail, as a process does. began: when it was spawned."""
    serving_collector()
    opened = time.monotonic()
    begun = start_fold(reader, CheckpointFolder(folder / "checkpoints"))
    loaded = time.monotonic()
    fold, notices, position, end = begun.fold, list[Notice](), begun.next_offset, reader.end_offset()
    while position < end:
        batches = reader.read(position, READ_BYTES)
        for batch in batches:
            fold.apply_batch(batch, notices)
            notices.clear()
            position = batch.first_offset + len(batch.records)
        if not batches:
            time.sleep(0.0005)
    done = time.monotonic()
    indexes = fold.state.kv.indexes
    row = {
        "from_checkpoint": begun.checkpoint is not None,
        "process_s": opened - began,
        "checkpoint_s": loaded - opened,
        "tail_s": done - loaded,
        "tail_records": end - begun.next_offset,
        "start_s": done - began,
        "start_processor_s": time.process_time(),
        "ownerships": sum(index.ownerships for index in indexes),
        "rss_mb": _rss_mb(),
    }
    print(json.dumps(row), flush=True)


def _rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(*words: str) -> list[dict[str, Any]]:
    """Rows that a process of its own prints."""
    argv = [sys.executable, "-m", "bench.replicas", *words, "--began", str(time.monotonic())]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=3_000)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measured(records: int, with_kafka: bool, work: Path) -> dict[str, Any]:
    """All figures."""
    log = SegmentLog.open_owner(work, SETTINGS)
    with closing(SegmentReader.open(work)) as reader:
        sizes = write(log, reader, records)
    log.close()
    rows = child("--role", "rebuild", "--folder", str(work), "--records", str(records))
    by_size = {row["records"]: row for row in rows if "records" in row}
    sizes = [
        one._replace(rebuild_s=by_size[one.records]["s"], rss_mb=by_size[one.records]["rss_mb"])
        for one in sizes
        if one.records in by_size
    ]
    starts = [child("--role", "start", "--folder", str(work))[0] for _ in range(STARTS)]
    found: dict[str, Any] = {
        "records": records,
        "sizes": [one._asdict() for one in sizes],
        "checkpoint": next(row for row in rows if "checkpoint_mb" in row),
        "segments": _median(starts),
    }
    if with_kafka:
        found["kafka"] = on_kafka(work)
    return found | {"floor": floor.loops_per_second() / floor.REFERENCE_LOOPS_PER_S}


def _median(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """The one in the middle, and the shortest of all."""
    ordered = sorted(starts, key=lambda row: row["start_s"])
    return ordered[len(ordered) // 2] | {"best_start_s": ordered[0]["start_s"]}


def on_kafka(work: Path) -> dict[str, Any]:
    """The same log in a topic, and a start from there."""
    from tests.live.kafka_broker import KafkaBroker

    broker = KafkaBroker(work / "kafka").start()
    try:
        place = KafkaPlace((broker.address(),), "bench", replication_factor=1)
        with closing(KafkaLog.open(place)) as topic, closing(SegmentReader.open(work)) as reader:
            position = 0
            while batches := reader.read(position, READ_BYTES):
                for batch in batches:
                    topic.commit(batch.records)
                position = batches[-1].first_offset + len(batches[-1].records)
        starts = [
            child("--role", "start", "--folder", str(work), "--servers", broker.address())[0]
            for _ in range(STARTS)
        ]
        return _median(starts)
    finally:
        broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    for name in ("role", "folder", "servers", "began"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "rebuild":
        rebuild(Path(options.folder), options.records)
        return
    if options.role == "start":
        folder = Path(options.folder)
        place = KafkaPlace((options.servers or "",), "bench")
        with closing(KafkaTail.open(place) if options.servers else SegmentReader.open(folder)) as reader:
            start(reader, folder, float(options.began))
        return
    if options.kafka and not install_kafka.is_installed():
        print("no Kafka here: python -m deploy.demo.install_kafka")
        return
    with tempfile.TemporaryDirectory(prefix="picklog-bench-", dir=Path.cwd()) as work:
        found = measured(options.records, options.kafka, Path(work))
    if options.plot is not None:
        from bench.replicas_plot import draw

        draw(found, options.plot)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
