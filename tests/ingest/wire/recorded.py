"""Recordings that the wire tests share; `tests/recordings/README.md` tells their form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgpack

RECORDINGS = Path(__file__).parents[2] / "recordings"

Frames = list[bytes]


def recorded_messages(path: Path) -> list[Frames]:
    """Frames of every message of a recording, in the order in which they came."""
    with gzip.open(path) as file:
        rows = msgpack.Unpacker(file, raw=True)
        return [frames for _received_ns, _endpoint, frames in rows]


def recorded_lines(name: str) -> list[dict[str, object]]:
    """Objects of a recording of lines."""
    with gzip.open(RECORDINGS / name, "rt") as file:
        return [json.loads(line) for line in file]


def sample_recordings() -> list[Path]:
    """Every recording of `kv_metrics`."""
    return sorted(RECORDINGS.glob("kv_metrics-*.msgpack.gz"))


def event_recordings() -> list[Path]:
    """Every recording of `kv-events`."""
    return sorted(RECORDINGS.glob("kv_events-*.msgpack.gz"))
