"""How fast `log verify` checks a log of large records: check words, order, chain.

    python -m bench.log_verify [--records N] [--bytes N]

The records are discovery keys with random values, so that nothing of them compresses away. The
peer is blake3 over the same bytes in one go, as the chain has to hash every one of them.
Target: 300 MB/s on records of 1 KB.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from blake3 import blake3

from bench import floor
from ingest.log.log_check import check_log
from ingest.log.segment_files import log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.bounds import MIB
from projections.events.codec import encode_record
from projections.events.discovery import KeyPut, Keyspace

RECORDS = 300_000
RECORD_BYTES = 1_024
PER_COMMIT = 256
ROUNDS = 3
GOAL_MB_S = 300
WRITER = b"bench writer----"


def write(data: Path, count: int, size: int) -> int:
    """A log of `count` records of about `size` bytes; the bytes of all of them."""
    log = SegmentLog.open_owner(data, SegmentSettings(reserve_bytes=0, durable=False))
    total = sequence = 0
    while sequence < count:
        batch = []
        for _ in range(min(PER_COMMIT, count - sequence)):
            sequence += 1
            value = os.urandom(max(1, size - 120))
            fact = KeyPut(
                Keyspace.CARDS, "dynamo", f"k{sequence}", sequence, value, len(value), blake3(value).digest()
            )
            batch.append(encode_record(1_790_000_000_000_000 + sequence, WRITER, 1, sequence, fact))
        log.commit(batch)
        total += sum(map(len, batch))
    log.close()
    return total


def hashed(data: Path) -> float:
    """Seconds to read every segment and hash it."""
    began = time.perf_counter()
    for path in sorted(log_folder(data).glob("*.seg")):
        blake3(path.read_bytes()).digest()
    return time.perf_counter() - began


def checked(data: Path, end: int) -> float:
    """Seconds of `check_log` over the whole log, which must be sound."""
    began = time.perf_counter()
    found = check_log(log_folder(data), end, lambda _: None)
    seconds = time.perf_counter() - began
    if found.first_bad is not None:
        raise SystemExit(f"the log is not sound: {found.first_bad}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--bytes", type=int, default=RECORD_BYTES)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        total = write(data, given.records, given.bytes)
        rounds = [(hashed(data), checked(data, given.records)) for _ in range(ROUNDS)]
    peer, ours = (min(row[place] for row in rounds) for place in (0, 1))
    print(
        f"log verify of {given.records:,} records of {total // given.records} bytes:"
        f" {total / ours / 1e6:,.0f} MB/s (goal {GOAL_MB_S}), {given.records / ours:,.0f} records/s;"
        f" {ours / peer:.1f} times reading and hashing"
    )
    print(f"the log took {total / MIB:,.0f} MiB")
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
