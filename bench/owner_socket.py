"""What a router pays for appending through the owner: its socket against commits in the owner itself.

Batches of 10 picks are made durable one after the other, as a router's writer does: by one
thread of the owner, then by one router process over the owner's socket, then by three at
once, which share commits. Each figure is the best of five rounds in turn, on fresh logs;
whatever else uses the disk only ever takes away. Without waiting for the disk the socket's
own cost shows: frames, the owner's check of each record, two ways between processes.

    python -m bench.owner_socket [--commits N] [--json] [--dir DIR]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from bench import floor
from ingest.log.grouped_store import GroupedStore
from ingest.log.owner_socket import OwnerSocket
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from ingest.log.socket_store import SocketStore
from projections.events.codec import encode_record
from projections.events.picks import Chosen, Outcome, PhaseOutcome, PickMade, PickReason, Question

COMMITS = 1_000
RECORDS = 10
ROUNDS = 5
ROUTERS = 3
START_S = 60.0
SOCKET_NAME = "owner.sock"
WRITER = b"bench writer----"
PROCESSES = multiprocessing.get_context("spawn")
WAYS = ("direct", "one", "three")
NAMES = {"direct": "in the owner", "one": "1 router", "three": f"{ROUTERS} routers"}


class Figures(NamedTuple):
    """rate: commits a second of all writers; median, p99: of one commit, microseconds."""

    rate: float
    median: float
    p99: float


def batch() -> list[bytes]:
    """Records of one commit."""
    none = PhaseOutcome(PickReason.NO_PREFILL_POOL, None, 0, None, b"")
    rows = bytes(8 * 48)
    phase = PhaseOutcome(PickReason.LOAD, Chosen(9, 0, False, 5, 1), 64, None, rows)
    outcome = Outcome("dynamo", none, phase, 0, 0, bytes(16))
    records = []
    for number in range(RECORDS):
        question = Question(f"r{number}", 0, "m", "m", 1000, 1001, ("dynamo",), (), 512, 0, 0)
        pick = PickMade(number.to_bytes(16, "big"), WRITER, 2 * number, -1, 1, question, outcome)
        records.append(encode_record(1_790_000_000_000_000, WRITER, 0, number + 1, pick))
    return records


def timed(commit: Callable[[list[bytes]], int], commits: int) -> list[float]:
    """Seconds of each commit."""
    records = batch()
    spans = []
    for _ in range(commits):
        began = time.perf_counter()
        commit(records)
        spans.append(time.perf_counter() - began)
    return spans


def figures(spans: list[float], seconds: float) -> Figures:
    """seconds: from the first commit's beginning to the last one's end."""
    cuts = statistics.quantiles(spans, n=100)
    return Figures(len(spans) / seconds, statistics.median(spans) * 1e6, cuts[98] * 1e6)


def direct(commits: int, durable: bool, data: Path) -> Figures:
    """One thread of the owner."""
    log = SegmentLog.open_owner(data, settings(durable))
    began = time.perf_counter()
    spans = timed(log.commit, commits)
    seconds = time.perf_counter() - began
    log.close()
    return figures(spans, seconds)


def through(routers: int, commits: int, durable: bool, data: Path) -> Figures:
    """Processes of their own, `commits` by each, begun together."""
    log = SegmentLog.open_owner(data, settings(durable))
    door = OwnerSocket(data / SOCKET_NAME, GroupedStore(log))
    gate, told = PROCESSES.Barrier(routers + 1), PROCESSES.SimpleQueue()
    children = [PROCESSES.Process(target=route, args=(data, commits, gate, told)) for _ in range(routers)]
    for child in children:
        child.start()
    gate.wait(START_S)
    began = time.perf_counter()
    spans = [span for _ in children for span in told.get()]
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
    assert log.end_offset() == RECORDS * (commits + 1) * routers
    door.close()
    log.close()
    return figures(spans, seconds)


def route(data: Path, commits: int, gate: Barrier, told: SimpleQueue[list[float]]) -> None:
    """A router process; its first commit connects and is not timed."""
    reader = SegmentLog.open_reader(data)
    store = SocketStore(data / SOCKET_NAME, reader)
    store.commit(batch())
    gate.wait(START_S)
    told.put(timed(store.commit, commits))
    store.close()
    reader.close()


def settings(durable: bool) -> SegmentSettings:
    """Nothing else at work."""
    return SegmentSettings(reserve_bytes=0, compress_level=0, durable=durable)


def measure(place: Path, commits: int) -> dict[str, Figures]:
    """The best round of each way, by rate; synced and not."""
    best: dict[str, Figures] = {}
    for durable, suffix in ((True, ""), (False, "_unsynced")):
        acts = (
            partial(direct, commits, durable),
            partial(through, 1, commits, durable),
            partial(through, ROUTERS, commits, durable),
        )
        for _ in range(ROUNDS):
            for way, act in zip(WAYS, acts, strict=True):
                with tempfile.TemporaryDirectory(dir=place) as folder:
                    found = act(Path(folder))
                best[way + suffix] = max(found, best.get(way + suffix, found))
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=COMMITS, help="of each writer and round")
    parser.add_argument("--dir", type=Path, default=None, help="where to write: a real disk")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    best = measure(arguments.dir or Path.cwd(), max(100, arguments.commits))
    if arguments.json:
        told = {
            f"{way}_{name}": value for way, each in best.items() for name, value in each._asdict().items()
        }
        print(json.dumps(told | {"floor_loops_per_s": floor.loops_per_second()}))
        return 0
    for suffix, text in (("", "synced"), ("_unsynced", "not synced")):
        base = best["direct" + suffix]
        for way in WAYS:
            found = best[way + suffix]
            print(
                f"{RECORDS} picks a commit, {text}, {NAMES[way]}: {found.rate:,.0f} commits/s "
                f"(ratio {found.rate / base.rate:.2f}), median {found.median:,.0f} us "
                f"(ratio {found.median / base.median:.2f}), p99 {found.p99:,.0f} us"
            )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
