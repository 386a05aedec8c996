"""What is known of each segment without opening it: `manifest.json`, replaced as a whole.

The segments themselves are the truth; the manifest saves looking into them, for `stat`,
for retention by age and for finding times. A missing or odd manifest is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import orjson

from ingest.log.segment_files import Disk, write_whole

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1
MANIFEST_BYTES_MAX = 64 << 20


class SegmentState(StrEnum):
    """Where a segment stands in its life."""

    OPEN = "open"
    SEALED = "sealed"
    COMPRESSED = "compressed"


class SegmentInfo(NamedTuple):
    """One segment. Times are log times of owner records in it, 0 where it holds none.

    plain_bytes, stored_bytes: size before and after compression.
    previous_head, head: chain before and after it, in hex; `head` is "" while it is open.
    """

    first_offset: int
    end_offset: int
    first_time: int
    last_time: int
    plain_bytes: int
    stored_bytes: int
    previous_head: str
    head: str
    state: SegmentState


def read_manifest(folder: Path, log_id: bytes) -> dict[int, SegmentInfo]:
    """Segments by first offset; {} where there is no manifest of this log."""
    try:
        path = folder / MANIFEST_NAME
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            return {}
        document = orjson.loads(path.read_bytes())
        if document["format"] != MANIFEST_FORMAT or document["log_id"] != log_id.hex():
            return {}
        found = [
            SegmentInfo._make([*(row[name] for name in SegmentInfo._fields[:-1]), SegmentState(row["state"])])
            for row in document["segments"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {info.first_offset: info for info in found}


def write_manifest(disk: Disk, folder: Path, log_id: bytes, segments: Mapping[int, SegmentInfo]) -> None:
    """Replace the manifest, durably."""
    document = {
        "format": MANIFEST_FORMAT,
        "log_id": log_id.hex(),
        "segments": [segments[first]._asdict() for first in sorted(segments)],
    }
    write_whole(disk, folder / MANIFEST_NAME, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
