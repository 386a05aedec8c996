"""How fast a log is read: segment files of load samples to batches of bytes, and to records.

Bytes alone (frames found, chain followed, records cut), then with each record decoded and
its check word compared; from a plain segment and from a compressed one.

    python -m bench.log_replay_read [--records N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from bench import floor
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from ingest.log.segment_upkeep import compress_sealed
from projections.bounds import MIB
from projections.events.codec import decode_record, encode_record
from projections.events.signals import SampleReceived

RECORDS = 300_000
PER_COMMIT = 200
ROUNDS = 3
READ_BYTES = MIB
WRITER = b"bench writer----"
SETTINGS = SegmentSettings(segment_bytes=16 * MIB, reserve_bytes=0, durable=False)


def write(folder: Path, count: int) -> None:
    """A log of samples as 64 workers of 8 ranks send them."""
    log = SegmentLog.open_owner(folder, SETTINGS)
    for start in range(0, count, PER_COMMIT):
        log.commit([_record(number) for number in range(start, start + PER_COMMIT)])
    log.close()


def _record(number: int) -> bytes:
    worker, rank, blocks = number % 64, number // 64 % 8, number % 4096
    at_ms = 1_790_000_000_000 + number
    fact = SampleReceived(
        "dynamo", 7 + worker, 1, number, number, 9 + worker, rank, blocks, None, blocks, at_ms
    )
    return encode_record(1_790_000_000_000_000 + number, WRITER, 1, number + 1, fact)


def read(folder: Path, decode: bool) -> float:
    """Records a second over the whole log, median of ROUNDS."""
    rates = []
    for _ in range(ROUNDS):
        reader = SegmentReader.open(folder)
        offset = reader.first_offset()
        began = time.perf_counter()
        while batches := reader.read(offset, READ_BYTES):
            if decode:
                for batch in batches:
                    for at, data in enumerate(batch.records, batch.first_offset):
                        decode_record(at, data)
            offset = batches[-1].first_offset + len(batches[-1].records)
        rates.append(offset / (time.perf_counter() - began))
        reader.close()
    return statistics.median(rates)


def measure(count: int) -> dict[str, float]:
    """Records a second."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, count)
        figures = {"bytes_plain": read(folder, False), "records_plain": read(folder, True)}
        log = SegmentLog.open_owner(folder, SETTINGS)
        compress_sealed(log)
        figures["compression"] = _compression(log)
        log.close()
        figures |= {"bytes_compressed": read(folder, False), "records_compressed": read(folder, True)}
    return figures


def _compression(log: SegmentLog) -> float:
    infos = list(log.manifest.values())
    return sum(info.plain_bytes for info in infos) / sum(info.stored_bytes for info in infos)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(max(PER_COMMIT, arguments.records))
    if arguments.json:
        print(json.dumps(figures | {"floor_loops_per_s": floor.loops_per_second()}))
        return 0
    for form in ("plain", "compressed"):
        print(
            f"read of samples, {form} segments: {figures[f'bytes_{form}']:,.0f} records/s as bytes, "
            f"{figures[f'records_{form}']:,.0f}/s decoded"
        )
    print(f"compressed segments take 1/{figures['compression']:.1f} of the plain ones")
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
