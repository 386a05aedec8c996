"""How fast records become durable: segment files against SQLite in WAL mode, same durability.

Both write the same records and wait for the disk at each commit (SQLite: `synchronous=full`):
in group commits of 1 MiB, as a busy writer makes them (`log.fsync.every_bytes`), and 100
records a commit, where the disk's own delay decides more than the engine. Then without
waiting for the disk: facts that are ready in memory get envelope, check word, batch and
chain, and are written.

    python -m bench.segment_append [--records N] [--json] [--dir DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import floor
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.bounds import MIB
from projections.events.codec import encode_record
from projections.events.signals import SampleReceived

RECORDS = 50_000
FEW = 100
GROUP_BYTES = MIB
READY_BATCH = 1_000
SIZES = (200, 1_024)
ROUNDS = 5
GOAL_RATIO = 2.0
GOAL_READY_PER_S = 500_000
WRITER = b"bench writer----"
PLAIN = SegmentSettings(reserve_bytes=0, compress_level=0)


def segments(records: list[bytes], step: int, folder: Path) -> float:
    """Seconds to commit all records to a segment log."""
    log = SegmentLog.open_owner(folder, PLAIN)
    began = time.perf_counter()
    for start in range(0, len(records), step):
        log.commit(records[start : start + step])
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def sqlite(records: list[bytes], step: int, folder: Path) -> float:
    """Seconds to commit all records to a table of offset and bytes."""
    base = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    base.execute("PRAGMA journal_mode=wal")
    base.execute("PRAGMA synchronous=full")
    base.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, record BLOB NOT NULL)")
    began = time.perf_counter()
    for start in range(0, len(records), step):
        base.execute("BEGIN")
        rows = enumerate(records[start : start + step], start)
        base.executemany("INSERT INTO log VALUES (?, ?)", rows)
        base.execute("COMMIT")
    seconds = time.perf_counter() - began
    base.close()
    return seconds


def ready(count: int, folder: Path) -> float:
    """Seconds to envelope, check, chain and write samples, without waiting for the disk."""
    at_ms = 1_790_000_000_000
    facts = [
        SampleReceived("dynamo", 7 + n % 64, 1, n, n, 9 + n % 64, n % 8, n % 4096, None, n % 99, at_ms)
        for n in range(READY_BATCH)
    ]
    settings = SegmentSettings(reserve_bytes=0, compress_level=0, durable=False, allocate_bytes=64 * MIB)
    log = SegmentLog.open_owner(folder, settings)
    began = time.perf_counter()
    sequence = 0
    for _ in range(count // READY_BATCH):
        batch = []
        for fact in facts:
            sequence += 1
            batch.append(encode_record(1_790_000_000_000_000 + sequence, WRITER, 1, sequence, fact))
        log.commit(batch)
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def _rates(place: Path, count: int, *acts: Callable[[Path], float]) -> list[float]:
    """Records a second of each, the best of ROUNDS, in fresh folders, round by round in turn.

    The best one, because whatever else uses the disk only ever takes away.
    """
    best = [0.0] * len(acts)
    for _ in range(ROUNDS):
        for index, act in enumerate(acts):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                best[index] = max(best[index], count / act(Path(folder)))
    return best


def measure(place: Path, count: int) -> dict[str, float]:
    """All figures, records a second and ratios."""
    figures: dict[str, float] = {}
    for size in SIZES:
        records = [os.urandom(size) for _ in range(count)]
        for name, step in (("group", GROUP_BYTES // size), ("few", FEW)):
            ours, theirs = _rates(
                place, count, partial(segments, records, step), partial(sqlite, records, step)
            )
            figures |= {f"segments_{name}_{size}": ours, f"sqlite_{name}_{size}": theirs}
            figures[f"ratio_{name}_{size}"] = ours / theirs
    many = 10 * count
    (figures["ready"],) = _rates(place, many, partial(ready, many))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--dir", type=Path, default=None, help="where to write: a real disk")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.dir or Path.cwd(), max(READY_BATCH, arguments.records))
    if arguments.json:
        print(json.dumps(figures | {"floor_loops_per_s": floor.loops_per_second()}))
        return 0
    tails = {"group": f" (goal {GOAL_RATIO:.1f})", "few": ""}
    for name, text in (("group", "1 MiB a commit"), ("few", f"{FEW} a commit")):
        for size in SIZES:
            names = [f"{what}_{name}_{size}" for what in ("segments", "sqlite", "ratio")]
            ours, theirs, ratio = (figures[one] for one in names)
            print(
                f"append, {size} B, {text}, synced: segments {ours:,.0f}/s, SQLite WAL {theirs:,.0f}/s, "
                f"ratio {ratio:.2f}{tails[name]}"
            )
    print(
        f"append of samples, not synced, with envelope, check word and chain: {figures['ready']:,.0f}/s "
        f"(goal {GOAL_READY_PER_S:,})"
    )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
