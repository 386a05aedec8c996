"""Opening a log for writing: what a crash left behind is put right, or the opening refused.

A torn tail is cut at the first batch that does not check: the footer is written over it,
so that the cut is sealed before anything new, and the next segment begins at the next
multiple of 2^20: an offset that somebody may have been told is never used twice. Where
the durable mark says that more had been acknowledged than is found, or a good batch
follows a bad one, records are damaged that were durable: that is reported, never cut.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ingest.log.durable_mark import MARK_NAME, DurableMarkReader, acknowledged_end
from ingest.log.manifest import SegmentInfo, SegmentState, read_manifest, write_manifest
from ingest.log.segment_files import (
    UNFINISHED,
    Disk,
    compressed_name,
    segment_name,
    stored_segments,
)
from ingest.log.segment_reader import corrupt_at
from ingest.log.segment_store import StoredSegment
from projections.bounds import OFFSET_JUMP
from projections.events.codec import owner_stamp
from projections.events.ports import LogCorrupt
from projections.events.segment_format import (
    HEAD_BYTES,
    HEADER_BYTES,
    MARK_BYTES,
    IndexBuilder,
    SegmentHeader,
    chain_start,
    encode_footer,
    encode_header,
    frame_records,
)
from projections.events.segment_scan import Scan, StopKind, scan

NEXT_NAME = f"next{UNFINISHED}"


@dataclass(slots=True)
class OpenTail:
    """The segment that the next batch goes to, and the place in it.

    allocated: bytes of the file that are taken already, zeros from `position` on.
    """

    fd: int
    header: SegmentHeader
    position: int
    allocated: int
    end_offset: int
    head: bytes
    index: IndexBuilder
    newest_stamp: int


def recover(folder: Path, disk: Disk) -> tuple[OpenTail, dict[int, SegmentInfo]]:
    """The tail to write at, and the manifest put right. Raises LogCorrupt, OSError."""
    for path in sorted(folder.glob(f"*{UNFINISHED}")):
        disk.remove(path)
    firsts = stored_segments(folder)
    for first in firsts:
        if (folder / segment_name(first)).exists():  # compression was not finished
            disk.remove(folder / compressed_name(first))
    if not firsts:
        _check_mark_alone(folder)
        now_us = time.time_ns() // 1000  # log time begins at the wall time of the log's creation
        header = SegmentHeader(os.urandom(16), 0, os.urandom(MARK_BYTES), now_us, bytes(HEAD_BYTES))
        return begin_segment(disk, folder, header, now_us), {}
    newest = StoredSegment(folder, firsts[-1])
    try:
        log_id = newest.header.log_id
        manifest = _checked_manifest(folder, log_id, firsts[:-1])
        found = scan(newest.read_at(0, newest.size()), newest.header)
        if found.stop.kind is StopKind.CORRUPT:
            stop = found.stop
            raise corrupt_at(newest.name, stop.offset, stop.position, stop.detail)
        _check_mark(folder, newest, found)
        stamp = max(newest.header.created, _newest_stamp(newest, found))
    finally:
        newest.close()
    before = manifest.get(firsts[-2]) if len(firsts) > 1 else None
    if before is not None and before.head != newest.header.previous_head.hex():
        raise LogCorrupt(
            f"segment {newest.name} does not continue the one before it: restore what is missing"
        )
    if found.stop.kind is StopKind.CLEAN and not newest.is_compressed:
        return _go_on(disk, folder, newest, found, stamp), manifest
    return _seal_and_jump(disk, folder, newest, found, stamp, manifest), manifest


def begin_segment(disk: Disk, folder: Path, header: SegmentHeader, stamp: int = 0) -> OpenTail:
    """A new segment, durable under its name before anything is written to it."""
    fd = prepare_segment(disk, folder, header)
    name_segment(disk, folder, header)
    first = header.first_offset
    return OpenTail(fd, header, HEADER_BYTES, HEADER_BYTES, first, chain_start(header), IndexBuilder(), stamp)


def prepare_segment(disk: Disk, folder: Path, header: SegmentHeader) -> int:
    """A durable file with the header, not yet named; replaces an earlier attempt."""
    disk.remove(folder / NEXT_NAME)
    fd = disk.create(folder / NEXT_NAME)
    try:
        disk.write(fd, encode_header(header), 0)
        disk.sync(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def name_segment(disk: Disk, folder: Path, header: SegmentHeader) -> None:
    """Give the prepared file its name."""
    disk.rename(folder / NEXT_NAME, folder / segment_name(header.first_offset))
    disk.sync_folder(folder)


def _go_on(disk: Disk, folder: Path, newest: StoredSegment, found: Scan, stamp: int) -> OpenTail:
    fd = disk.open(folder / newest.name)
    disk.sync(fd)  # what a killed process wrote may still be in memory only
    index = IndexBuilder()
    for entry in found.entries:
        index.note(*entry)
    position = found.stop.position
    allocated = os.fstat(fd).st_size
    return OpenTail(fd, newest.header, position, allocated, found.end_offset, found.head, index, stamp)


def _seal_and_jump(
    disk: Disk,
    folder: Path,
    newest: StoredSegment,
    found: Scan,
    stamp: int,
    manifest: dict[int, SegmentInfo],
) -> OpenTail:
    """Seal the segment where it stops to check (unless it is sealed), go on at the next 2^20."""
    end, head, size = found.end_offset, found.head, found.stop.position
    if found.stop.kind is not StopKind.SEALED:
        footer, head = encode_footer(newest.header, end, found.entries, found.head, size)
        fd = disk.open(folder / newest.name)
        try:
            disk.write(fd, footer, size)
            size += len(footer)
            disk.truncate(fd, size)
            disk.sync(fd)
        finally:
            os.close(fd)
    else:
        size = newest_size(folder, newest.header.first_offset)
    first = newest.header.first_offset
    state = SegmentState.COMPRESSED if newest.is_compressed else SegmentState.SEALED
    stored = (folder / newest.name).stat().st_size
    previous = newest.header.previous_head.hex()
    manifest[first] = SegmentInfo(
        first, end, newest.header.created, stamp, size, stored, previous, head.hex(), state
    )
    header = SegmentHeader(
        newest.header.log_id, (end // OFFSET_JUMP + 1) * OFFSET_JUMP, os.urandom(MARK_BYTES), stamp, head
    )
    tail = begin_segment(disk, folder, header, stamp)
    write_manifest(disk, folder, header.log_id, manifest)
    return tail


def newest_size(folder: Path, first: int) -> int:
    """Plain size of a sealed segment."""
    segment = StoredSegment(folder, first)
    try:
        return segment.size()
    finally:
        segment.close()


def _check_mark(folder: Path, newest: StoredSegment, found: Scan) -> None:
    """Refuse a tail that is shorter than what had been acknowledged."""
    try:
        mark = DurableMarkReader(folder, newest.header.log_id)
    except (FileNotFoundError, ValueError):
        return
    durable = mark.end_offset()
    mark.close()
    if durable > found.end_offset:
        raise LogCorrupt(
            f"segment {newest.name}, byte {found.stop.position}: records {found.end_offset} to {durable - 1} "
            f"were acknowledged and do not check ({found.stop.detail or 'nothing is there'}): restore the "
            f"file from a copy, or accept their loss by removing {folder / MARK_NAME}"
        )


def _check_mark_alone(folder: Path) -> None:
    """Refuse to begin a log where one was whose segments went."""
    durable = acknowledged_end(folder)
    if durable:
        raise LogCorrupt(
            f"{folder}: records up to {durable - 1} were acknowledged and no segment is there: restore the "
            f"segments from a copy, or accept their loss by removing {folder / MARK_NAME}"
        )


def _newest_stamp(segment: StoredSegment, found: Scan) -> int:
    """Log time of the newest owner's record in the segment, 0 if none is near its end."""
    for frame in reversed(found.batches[-4096:]):
        data = segment.read_at(frame.position, frame.end - frame.position)
        moved = frame._replace(position=0, end=frame.end - frame.position)
        for record in reversed(frame_records(data, moved)):
            stamp = owner_stamp(record)
            if stamp is not None:
                return stamp
    return 0


def _checked_manifest(folder: Path, log_id: bytes, sealed: list[int]) -> dict[int, SegmentInfo]:
    """The manifest for exactly these sealed segments; the ones it does not know are looked into."""
    known = read_manifest(folder, log_id)
    manifest: dict[int, SegmentInfo] = {}
    before: SegmentInfo | None = None
    for first in sealed:
        info = known.get(first)
        if info is None or not info.head:
            info = describe_sealed(folder, first, log_id)
        plain = (folder / segment_name(first)).exists()
        info = info._replace(state=SegmentState.SEALED if plain else SegmentState.COMPRESSED)
        if before is not None and info.previous_head != before.head:
            raise LogCorrupt(
                f"segment {segment_name(first)} does not continue the one before it (ends at offset "
                f"{before.end_offset}): restore what is missing, or move the older ones aside"
            )
        manifest[first] = before = info
    return manifest


def describe_sealed(folder: Path, first: int, log_id: bytes) -> SegmentInfo:
    """What the manifest should say of a sealed segment, from the segment itself. Raises LogCorrupt."""
    segment = StoredSegment(folder, first)
    try:
        footer = segment.footer()
        if footer is None:
            raise LogCorrupt(
                f"segment {segment.name} has no footer though later ones follow: restore it from a copy"
            )
        if segment.header.log_id != log_id:
            raise LogCorrupt(f"segment {segment.name} is of another log: move it aside")
        state = SegmentState.COMPRESSED if segment.is_compressed else SegmentState.SEALED
        later = [other for other in stored_segments(folder) if other > first]
        following = StoredSegment(folder, later[0]) if later else None
        last_time = following.header.created if following is not None else segment.header.created
        if following is not None:
            following.close()
        return SegmentInfo(
            first,
            footer[0].first_offset,
            segment.header.created,
            last_time,
            segment.size(),
            segment.stored_bytes(),
            segment.header.previous_head.hex(),
            footer[0].head.hex(),
            state,
        )
    finally:
        segment.close()
