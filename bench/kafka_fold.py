"""How fast a replica takes a log in from a real Kafka, against the embedded log, and how soon a pick is seen.

Each figure is of the product's own parts, with a broker on this machine beside them:

* Read and fold of a log of samples from a topic, as a replica does it at its start, as a ratio of reading and
  folding the very same records from segments, in the same run and in turns. By processor time too, since
  the broker takes a part of the machine that a broker of its own would not. Floor 0.5, goal 0.6.
* A pick at one process to its fold at another one, both following the topic: from its acknowledgement, and
  from the append. p50 under 15 ms, p99 under 100 ms.

    python -m bench.kafka_fold [--records N] [--picks N] [--every-ms MS] [--json]

Needs `python -m deploy.demo.install_kafka`; without it one line says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from app.collector import serving_collector
from app.log_tail import LogTail, monotonic_us
from app.tail import Seen, Tail
from bench import floor
from bench.fold_samples import NAMESPACE, fleet_log, sample_log
from deploy.demo import install_kafka
from ingest.log.appends import Receipt
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.kafka_tail import KafkaTail
from ingest.log.log_writer import LogWriter
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.events.control import PickSettings
from projections.events.picks import PickMade, Question
from projections.events.ports import LogReader, LogStore
from projections.fold import Fold
from projections.notices import Notice
from projections.view import Overlay
from router.picker.pick import pick

RECORDS = 300_000
PER_COMMIT = 200
READ_BYTES = 1 << 20
ROUNDS = 5
PICKS, EVERY_MS, WARM_UP = 1_000, 20.0, 50
P50_MS_MAX, P99_MS_MAX = 15.0, 100.0
PICK_SETTINGS = PickSettings("load_based", "file", (NAMESPACE,), (), 3_000_000)
FLOOR_RATIO, GOAL_RATIO = 0.5, 0.6
SETTINGS = SegmentSettings(reserve_bytes=0, durable=False)


class Closing(LogReader, Protocol):
    def close(self) -> None: ...


class Rates(NamedTuple):
    """Records a second by the clock and of this process's processor time."""

    clock: float
    processor: float


def write(store: LogStore, ready: list[bytes]) -> None:
    for start in range(0, len(ready), PER_COMMIT):
        store.commit(ready[start : start + PER_COMMIT])


def fold_from(opened: Callable[[], Closing], count: int) -> Rates:
    """Read and fold all of a log, in slices as a process does it."""
    serving_collector()
    reader = opened()
    fold, notices, position = Fold(), list[Notice](), reader.first_offset()
    last = position + count
    clock, processor = time.perf_counter(), time.process_time()
    while position < last:
        batches = reader.read(position, READ_BYTES)
        for batch in batches:
            fold.apply_batch(batch, notices)
            notices.clear()
            position = batch.first_offset + len(batch.records)
        if not batches:
            time.sleep(0.0005)
    rates = Rates(count / (time.perf_counter() - clock), count / (time.process_time() - processor))
    reader.close()
    return rates


def ratio(place: KafkaPlace, folder: Path, records: int) -> dict[str, float]:
    """Medians of ROUNDS in turns."""
    fleet = fleet_log()
    ready = fleet + sample_log(len(fleet), records)
    log = SegmentLog.open_owner(folder, SETTINGS)
    write(log, ready)
    log.close()
    topic = KafkaLog.open(place)
    write(topic, ready)
    topic.close()
    pairs = [
        (
            fold_from(lambda: SegmentReader.open(folder), len(ready)),
            fold_from(lambda: KafkaTail.open(place), len(ready)),
        )
        for _ in range(ROUNDS)
    ]
    return {
        "segments_per_s": statistics.median(one.clock for one, _ in pairs),
        "kafka_per_s": statistics.median(other.clock for _, other in pairs),
        "ratio_clock": statistics.median(other.clock / one.clock for one, other in pairs),
        "ratio_processor": statistics.median(other.processor / one.processor for one, other in pairs),
    }


class Process:
    """One process that follows a topic: fold, and the time at which each pick was folded, microseconds."""

    def __init__(self, place: KafkaPlace) -> None:
        serving_collector()
        self.seen: dict[bytes, int] = {}
        self.reader = KafkaTail.open(place)
        self.tail = Tail(Fold(), bytes(16), monotonic_us(), watched=frozenset((PickMade,)))
        self._shell = LogTail(
            self.reader,
            self.tail,
            on_ping=None,
            on_notices=lambda *_: None,
            on_folded=lambda: None,
            on_seen=self._note,
        )

    async def run(self) -> None:
        await self._shell.run()

    def _note(self, seen: Seen) -> None:
        self.seen[seen.fact[0]] = monotonic_us()


def watch(place: KafkaPlace, count: int, out: Connection) -> None:
    """The other process: when it folded each pick."""
    out.send(asyncio.run(_watch(place, count, out)))


async def _watch(place: KafkaPlace, count: int, out: Connection) -> dict[bytes, int]:
    process = await asyncio.to_thread(Process, place)
    following = asyncio.create_task(process.run())
    while process.tail.next_offset < process.reader.end_offset():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    out.send({})  # ready
    async with asyncio.timeout(120):
        while len(process.seen) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    following.cancel()
    process.reader.close()
    return process.seen


class Marks(NamedTuple):
    """When each pick was appended, and when its acknowledgement came, microseconds."""

    appended: dict[bytes, int]
    acknowledged: dict[bytes, int]


def _acknowledged(marks: Marks, pick_id: bytes, _: Receipt) -> None:
    marks.acknowledged[pick_id] = monotonic_us()


async def make_picks(place: KafkaPlace, count: int, every_s: float) -> Marks:
    """Pick on an own fold of the topic and append, as a router does."""
    process = await asyncio.to_thread(Process, place)
    store = await asyncio.to_thread(KafkaLog.open, place)
    writer = await LogWriter.open(store, is_owner=False)
    following = asyncio.create_task(process.run())
    while process.tail.next_offset < process.reader.end_offset():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    marks = Marks({}, {})
    for number in range(1, count + 1):
        fold, at = process.tail.fold, process.tail.log_time(monotonic_us())
        question = Question(f"bench-{number}", 0, "m", "m", at, at, (NAMESPACE,), (), 400, 0, number)
        pick_id = number.to_bytes(16, "big")
        outcome = pick(fold.view(Overlay()), question, PICK_SETTINGS)
        made = PickMade(pick_id, writer.writer, number, fold.mark.offset, 1, question, outcome)
        marks.appended[pick_id] = monotonic_us()
        writer.append(made, on_done=partial(_acknowledged, marks, pick_id))
        await asyncio.sleep(every_s)
    await writer.close()
    following.cancel()
    process.reader.close()
    store.close()
    return marks


def visible(place: KafkaPlace, count: int, every_ms: float) -> dict[str, float]:
    """Milliseconds from pick to fold elsewhere; the topic has a fleet."""
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=watch, args=(place, count + WARM_UP, theirs), daemon=True
    )
    other.start()
    ours.recv()
    marks = asyncio.run(make_picks(place, count + WARM_UP, every_ms / 1000))
    seen: dict[bytes, int] = ours.recv()
    other.join(30)
    late = sorted(seen)[WARM_UP:]
    figures: dict[str, float] = {}
    for name, from_when in (("acknowledged", marks.acknowledged), ("appended", marks.appended)):
        cuts = statistics.quantiles([seen[one] - from_when[one] for one in late], n=100)
        figures |= {f"{name}_to_seen_p50_ms": cuts[49] / 1000, f"{name}_to_seen_p99_ms": cuts[98] / 1000}
    taken = statistics.quantiles([marks.acknowledged[one] - marks.appended[one] for one in late], n=100)
    return figures | {"acknowledged_p50_ms": taken[49] / 1000, "acknowledged_p99_ms": taken[98] / 1000}


def measured(records: int, picks: int, every_ms: float) -> dict[str, Any]:
    """All figures of one run."""
    from tests.live.kafka_broker import KafkaBroker

    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder) / "kafka").start()
        try:
            place = KafkaPlace((broker.address(),), "bench", replication_factor=1)
            found = ratio(place, Path(folder) / "data", records)
            other = place._replace(topic="picks")
            store = KafkaLog.open(other)
            fleet = fleet_log()
            write(store, fleet + sample_log(len(fleet), 2_000))
            store.close()
            found |= visible(other, picks, every_ms)
        finally:
            broker.close()
    return found | {"floor": floor.loops_per_second() / floor.REFERENCE_LOOPS_PER_S}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--picks", type=int, default=PICKS)
    parser.add_argument("--every-ms", type=float, default=EVERY_MS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not install_kafka.is_installed():
        print("no Kafka here: python -m deploy.demo.install_kafka")
        return
    found = measured(options.records, options.picks, options.every_ms)
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"read and fold: {found['segments_per_s']:,.0f} records/s from segments, "
        f"{found['kafka_per_s']:,.0f}/s from Kafka"
    )
    print(
        f"ratio by the clock {found['ratio_clock']:.2f}, by processor time {found['ratio_processor']:.2f} "
        f"(floor {FLOOR_RATIO}, goal {GOAL_RATIO})"
    )
    for name, text in (
        ("acknowledged_to_seen", "acknowledged pick to its fold in another process"),
        ("appended_to_seen", "appended pick to its fold in another process"),
        ("acknowledged", "appended pick to its acknowledgement"),
    ):
        print(f"{text}: p50 {found[f'{name}_p50_ms']:.2f} ms, p99 {found[f'{name}_p99_ms']:.2f} ms")
    print(f"(p50 under {P50_MS_MAX:.0f} ms, p99 under {P99_MS_MAX:.0f} ms)")
    print(f"floor loop at {found['floor']:.2f} of the reference machine")


if __name__ == "__main__":
    main()
