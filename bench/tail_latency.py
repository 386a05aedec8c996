"""How long from an append to a reader in another process, the disk waited for.

One process appends a record every few milliseconds through the writer that the router
uses (group commit, fdatasync); a second process tails the same files and notes when it
sees each record. Both read the same monotonic clock.

    python -m bench.tail_latency [--records N] [--every-ms MS] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench import floor
from ingest.log.appends import Receipt
from ingest.log.log_writer import LogWriter, boot_us
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import decode_record
from projections.events.control import Pinged

RECORDS = 500
EVERY_MS = 10.0
GOAL_P50_MS = 5.0
WARM_UP = 20  # records that are not counted


def tail(folder: str, count: int, out: Connection) -> None:
    """The reader's process: (as_of of the record = time of its append, time seen) for each."""
    out.send(asyncio.run(_tail(Path(folder), count, out)))


async def _tail(folder: Path, count: int, out: Connection) -> list[int]:
    reader = SegmentReader.open(folder)
    out.send([])  # ready
    delays: list[int] = []
    offset = reader.end_offset()
    while len(delays) < count:
        await reader.wait(offset, 1.0)
        batches = reader.read(offset, 1 << 20)
        seen_at = boot_us()
        for batch in batches:
            for at, data in enumerate(batch.records, batch.first_offset):
                fact = decode_record(at, data).fact
                if isinstance(fact, Pinged):
                    delays.append(seen_at - fact.as_of)
            offset = batch.first_offset + len(batch.records)
    reader.close()
    return delays


def _note(taken: list[int], began: int, receipt: Receipt) -> None:
    taken.append(boot_us() - began)


async def append(log: SegmentLog, count: int, every_s: float) -> list[int]:
    """Append `count` pings; time to each one's acknowledgement, microseconds."""
    writer = await LogWriter.open(log)
    taken: list[int] = []
    for number in range(count):
        began = boot_us()
        writer.append(Pinged(writer.writer, number, began), on_done=partial(_note, taken, began))
        await asyncio.sleep(every_s)
    await writer.close()
    return taken


def measure(count: int, every_ms: float) -> dict[str, float]:
    """Milliseconds."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        log = SegmentLog.open_owner(Path(folder), SegmentSettings(reserve_bytes=0))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=tail, args=(folder, count + WARM_UP, theirs), daemon=True
        )
        process.start()
        ours.recv()
        taken = asyncio.run(append(log, count + WARM_UP, every_ms / 1000))[WARM_UP:]
        delays = ours.recv()[WARM_UP:]
        process.join(30)
        log.close()
    figures: dict[str, float] = {}
    for name, values in (("acknowledged", taken), ("seen", delays)):
        cuts = statistics.quantiles(values, n=100)
        figures |= {f"{name}_p50_ms": cuts[49] / 1000, f"{name}_p99_ms": cuts[98] / 1000}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--every-ms", type=float, default=EVERY_MS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(max(100, arguments.records), arguments.every_ms)
    if arguments.json:
        print(json.dumps(figures | {"floor_loops_per_s": floor.loops_per_second()}))
        return 0
    print(
        f"append to acknowledgement: p50 {figures['acknowledged_p50_ms']:.2f} ms, "
        f"p99 {figures['acknowledged_p99_ms']:.2f} ms"
    )
    print(
        f"append to a reader in another process: p50 {figures['seen_p50_ms']:.2f} ms, "
        f"p99 {figures['seen_p99_ms']:.2f} ms (goal: p50 under {GOAL_P50_MS:.0f} ms)"
    )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
