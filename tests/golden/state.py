"""What a golden log is held to; `python -m tests.golden.state FOLDER` prints it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingest.log.segment_reader import SegmentReader
from projections.events.ports import RecordBatch
from projections.fold import Fold
from replay.verify import verify


def state_of(folder: Path) -> dict[str, Any]:
    """What a golden log is held to: counts, digests, verdicts."""
    reader = SegmentReader.open(folder)
    try:
        fold = Fold()
        records = 0
        for batch in _batches(reader):
            for index, data in enumerate(batch.records):
                fold.apply(batch.first_offset + index, data, [])
                records += 1
        report = verify(reader, None)
        return {
            "records": records,
            "digests": {name: str(digest) for name, digest in fold.digests()},
            "picks": report.picks,
            "equal": report.equal,
            "different": report.different,
            "unverifiable": report.unverifiable,
        }
    finally:
        reader.close()


def _batches(reader: SegmentReader) -> Iterator[RecordBatch]:
    position = reader.first_offset()
    while batches := reader.read(position, 1 << 20):
        yield from batches
        position = batches[-1].first_offset + len(batches[-1].records)


if __name__ == "__main__":
    print(json.dumps(state_of(Path(sys.argv[1]))))
