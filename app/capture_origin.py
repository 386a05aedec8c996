"""Where the records of a capture came from: the log's id, and its chain heads around them.

With them somebody who holds the original log can tell that a capture, redacted or not, is of
this very stretch: the head before its first batch and the head behind its last one are what
`picklog log verify` computes there. Batches are not cut, so both name the offset that they
stand at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from app.capture_reader import CaptureReader
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_store import StoredSegment
from projections.events.segment_format import FRAME_HEAD_BYTES, HEADER_BYTES, chain_start, frame_size


class _Batch(NamedTuple):
    """One batch, and the chain heads on both sides of it; before: None where it is not known."""

    first_offset: int
    end_offset: int
    before: bytes | None
    after: bytes


def origin_of_directory(data: Path, log_id: bytes, first: int, stop: int) -> dict[str, Any]:
    """The origin of records [first, stop) of a data directory's log."""
    folder = log_folder(data)
    return {"log_id": log_id.hex(), **_heads(_segments(folder), first, stop)}


def origin_of_topic(log_id: bytes) -> dict[str, Any]:
    """The origin of records of a topic, where writers interleave and no chain is kept."""
    return {"log_id": log_id.hex(), **_heads(iter(()), 0, 0)}


def origin_of_capture(reader: CaptureReader, first: int, stop: int) -> dict[str, Any]:
    """The origin of records [first, stop) of a capture, which has one itself."""
    segments = (reader.segment(part) for part in reader.records_parts)
    return {
        "log_id": reader.log_id.hex(),
        **_heads(segments, first, stop),
        "capture": reader.ends.manifest.get("capture"),
        "origin": reader.ends.manifest.get("origin"),
    }


def _segments(folder: Path) -> Iterator[StoredSegment]:
    for first in stored_segments(folder):
        yield StoredSegment(folder, first)


def _heads(segments: Iterator[StoredSegment], first: int, stop: int) -> dict[str, Any]:
    """Head before the first batch that reaches beyond `first`, and behind the last before `stop`."""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    for segment in segments:
        try:
            if segment.header.first_offset >= stop:
                break
            footer = segment.footer()
            if footer is not None and footer[0].first_offset <= first:
                continue
            if before is None:
                for batch in _batches(segment, first):
                    if batch.end_offset > first:
                        if batch.before is not None:
                            before = _head(batch.first_offset, batch.before)
                        break
            for batch in _batches(segment, stop - 1):
                if batch.first_offset >= stop:
                    break
                after = _head(batch.end_offset, batch.after)
        finally:
            segment.close()
    return {"before": before, "after": after}


def _head(offset: int, head: bytes) -> dict[str, Any]:
    return {"offset": offset, "head": head.hex()}


def _batches(segment: StoredSegment, offset: int) -> Iterator[_Batch]:
    """Batches from one well before `offset` on, by their heads alone."""
    footer = segment.footer()
    entries = [entry for entry in footer[1] if entry.first_offset < offset] if footer is not None else []
    position, due = HEADER_BYTES, segment.header.first_offset
    head: bytes | None = chain_start(segment.header)
    if len(entries) > 2:
        due, position = entries[-2]
        head = None
    while True:
        frame = segment.read_at(position, FRAME_HEAD_BYTES)
        size = frame_size(frame, 0, segment.header.mark)
        if size is None:
            return
        count = int.from_bytes(frame[16:20], "little")
        after = frame[24:FRAME_HEAD_BYTES]
        yield _Batch(due, due + count, head, after)
        position, due, head = position + size, due + count, after
