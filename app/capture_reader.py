"""A capture file as a log: read only, whole, at the offsets that its records always had.

Opening looks at both ends and at the manifest; records are checked as they are read, like
those of any log. `check_whole` reads all of them and compares the chain with the manifest.
The base is the one checkpoint of such a log.

What is wrong at opening (no capture, cut short, of a newer release) is CaptureUnreadable;
bytes inside that do not check are LogCorrupt, as everywhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import orjson
import xxhash
from blake3 import blake3

from app.capture_file import (
    CHECK,
    FORMAT_VERSION,
    HEAD,
    HEAD_BYTES,
    HEAD_MAGIC,
    MANIFEST_BYTES_MAX,
    SIGNATURE_BYTES_MAX,
    TAIL,
    TAIL_BYTES,
    TAIL_MAGIC,
    PartInfo,
    manifest_digest,
)
from ingest.log.segment_store import Span, StoredSegment
from projections.events.codec import RecordRefused, decode_record
from projections.events.held import CheckpointOpened
from projections.events.kinds import SCHEMA
from projections.events.ports import CheckpointInfo, LogCorrupt, LogError, OffsetGone, RecordBatch
from projections.events.segment_format import (
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    INDEX_ENTRIES_MAX,
    SegmentRefused,
    chain_start,
    frame_records,
    frame_size,
    read_footer,
    read_frame,
)
from projections.events.segment_format import TAIL_BYTES as TAIL_OF_SEGMENT
from projections.fold_modes import FOLD_MODES

SEGMENT_MAGIC = b"PICKLOG\n"
PARTS_MAX = 1 << 16
READ_BYTES = 4 << 20
FOOTER_BYTES_MAX = FRAME_HEAD_BYTES + 16 * INDEX_ENTRIES_MAX + TAIL_OF_SEGMENT
RECORDS = "records"
BASE = "base"


class CaptureUnreadable(LogError):
    """A file that is no capture, not a whole one, or of a newer release; says which and what to do."""


class Ends(NamedTuple):
    """What stands at both ends of a capture file."""

    manifest: dict[str, Any]
    digest: bytes
    signature: bytes
    size_bytes: int


class CaptureReader:
    """LogReader over a capture file. For one thread.

    window_start: offset of the first record whose pick can be asked; records before it are
    there to be folded.
    """

    def __init__(self, path: Path) -> None:
        """Raises CaptureUnreadable, OSError."""
        self.path = path
        self.ends = read_ends(path)
        manifest = self.ends.manifest
        try:
            self.parts = [_part(row) for row in manifest["parts"]]
            self._log_id = bytes.fromhex(manifest["log_id"])
            self._first = int(manifest["first_offset"])
            self._end = int(manifest["end_offset"])
            self.window_start = int(manifest["window"]["from"])
        except (KeyError, TypeError, ValueError) as problem:
            _unreadable(path, f"its manifest lacks {problem}", "capture it again")
        self._check_places(manifest)
        self.records_parts = [part for part in self.parts if part.what == RECORDS]
        self._starts = [part.first_offset for part in self.records_parts]
        self._cursor: _Cursor | None = None

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._log_id

    def first_offset(self) -> int:
        """See LogReader."""
        return self._first

    def end_offset(self) -> int:
        """See LogReader."""
        return self._end

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader. A capture never grows."""
        await asyncio.sleep(timeout_s)

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        if start < self._first:
            raise OffsetGone(start, self._first)
        if start >= self._end:
            return []
        cursor = self._cursor
        if cursor is None or cursor.offset != start:
            cursor = self._cursor = self._seek(start)
        found: list[RecordBatch] = []
        size = 0
        while cursor.offset < self._end and (size < bytes_max or not found):
            batch = cursor.take()
            if batch is None:
                following = cursor.index + 1
                if following >= len(self.records_parts):
                    break
                cursor.close()
                cursor = self._cursor = self._cursor_at(following)
                continue
            skip = max(0, start - batch.first_offset)
            if skip < len(batch.records):
                found.append(RecordBatch(batch.first_offset + skip, batch.records[skip:]))
                size += sum(map(len, batch.records))
        return found

    def checkpoints(self) -> CaptureCheckpoints:
        """The base as a checkpoint store."""
        return CaptureCheckpoints(self)

    def segment(self, part: PartInfo) -> StoredSegment:
        """One part, open. Raises LogCorrupt."""
        span = Span(part.position, part.bytes)
        segment = StoredSegment(self.path.parent, part.first_offset, self.path.name, span)
        place = self.parts.index(part)
        before = self.parts[place - 1].head if place else bytes(32).hex()
        if segment.header.log_id != self._log_id or segment.header.previous_head.hex() != before:
            segment.close()
            raise LogCorrupt(f"{self.path}: part {place} does not continue the chain: copy it again")
        return segment

    def check_whole(self, on_progress: Callable[[int], None] | None = None) -> int:
        """Read every byte; the number of records, base left out. Raises LogCorrupt."""
        records = 0
        for index, part in enumerate(self.parts):
            if self._stored_digest(part) != part.digest:
                raise LogCorrupt(f"{self.path}: part {index} was changed: copy it again from where it came")
            cursor = _Cursor(self, part, index)
            try:
                while (batch := cursor.take()) is not None:
                    if part.what == RECORDS:
                        records += len(batch.records)
                    if on_progress is not None:
                        on_progress(cursor.offset if part.what == RECORDS else self._first)
                if (cursor.head or b"").hex() != part.head or cursor.offset != part.end_offset:
                    raise LogCorrupt(f"{self.path}: part {index} does not end as the manifest says")
            finally:
                cursor.close()
        chain = self.parts[-1].head if self.parts else ""
        said = self.ends.manifest
        if chain != said.get("chain_head") or records != said.get("records"):
            raise LogCorrupt(f"{self.path}: its records are not those that the manifest names")
        return records

    def _stored_digest(self, part: PartInfo) -> str:
        digest, position, left = blake3(), part.position, part.bytes
        with self.path.open("rb") as file:
            file.seek(position)
            while left > 0 and (data := file.read(min(left, READ_BYTES))):
                digest.update(data)
                left -= len(data)
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _check_places(self, manifest: dict[str, Any]) -> None:
        """Parts must lie one behind the other and be of this release's making."""
        position = HEAD_BYTES
        for part in self.parts:
            if part.position != position or part.bytes < 0 or part.what not in (BASE, RECORDS):
                _unreadable(self.path, "its manifest names parts that are not there", "capture it again")
            position += part.bytes
        if position != self.ends.size_bytes or len(self.parts) > PARTS_MAX:
            _unreadable(self.path, "its manifest names parts that are not there", "capture it again")
        ends = [(part.first_offset, part.end_offset) for part in self.parts if part.what == RECORDS]
        said = (manifest["first_offset"], manifest["end_offset"])
        if any(first > end for first, end in ends) or (ends and said != (ends[0][0], ends[-1][1])):
            _unreadable(self.path, "its manifest names other offsets than its parts hold", "capture it again")
        schema, modes = manifest.get("schema", 0), manifest.get("fold_modes", [])
        product = manifest.get("product", "a newer release")
        if not isinstance(schema, int) or schema > SCHEMA:
            detail = f"its records have schema {schema}, written by {product}; this release reads {SCHEMA}"
            _unreadable(self.path, detail, "update picklog")
        if not isinstance(modes, list) or not all(type(mode) is int and mode in FOLD_MODES for mode in modes):
            _unreadable(
                self.path,
                f"its fold mode {modes}, of {product}, is newer than this release",
                "update picklog",
            )

    def _seek(self, start: int) -> _Cursor:
        if self._cursor is not None:
            self._cursor.close()
        index = max(0, bisect_right(self._starts, start) - 1)
        cursor = self._cursor_at(index)
        cursor.seek(start)
        return cursor

    def _cursor_at(self, index: int) -> _Cursor:
        return _Cursor(self, self.records_parts[index], index)


class _Cursor:
    """A place between two batches of one part. head: None where the chain before is not known."""

    def __init__(self, reader: CaptureReader, part: PartInfo, index: int) -> None:
        self.index = index
        self.offset = part.first_offset
        self._reader = reader
        self._segment = reader.segment(part)
        self._position = HEADER_BYTES
        self.head: bytes | None = chain_start(self._segment.header)

    def seek(self, start: int) -> None:
        """Go to the last indexed batch at or before `start`."""
        footer = self._segment.footer()
        entries = footer[1] if footer is not None else []
        place = bisect_right(entries, start, key=lambda entry: entry.first_offset) - 1
        if place > 0:
            self.offset, self._position = entries[place]
            self.head = None

    def take(self) -> RecordBatch | None:
        """The next batch, None at the end of the part. Raises LogCorrupt."""
        segment, position = self._segment, self._position
        head = segment.read_at(position, FRAME_HEAD_BYTES)
        mark = segment.header.mark
        size = frame_size(head, 0, mark)
        try:
            if size is None:
                if segment.size() - position > FOOTER_BYTES_MAX:
                    raise SegmentRefused("no batch begins here")
                rest = segment.read_at(position, segment.size() - position)
                frame, _ = read_footer(rest, 0, segment.header, self.head)
                if frame.first_offset != self.offset:
                    raise SegmentRefused(f"a footer of offset {frame.first_offset}, {self.offset} is due")
                self.head = frame.head
                return None
            data = segment.read_at(position, size)
            frame = read_frame(data, 0, mark, self.head)
            if frame.first_offset != self.offset:
                raise SegmentRefused(f"a batch of offset {frame.first_offset}, {self.offset} is due")
            records = frame_records(data, frame)
        except SegmentRefused as refusal:
            raise LogCorrupt(
                f"{self._reader.path}, offset {self.offset}: {refusal}: copy it again from where it came"
            ) from refusal
        self._position += size
        self.offset += frame.records
        self.head = frame.head
        return RecordBatch(frame.first_offset, records)

    def close(self) -> None:
        """Close the part."""
        self._segment.close()


class CaptureCheckpoints:
    """The base of a capture as a CheckpointStore that takes nothing."""

    def __init__(self, reader: CaptureReader) -> None:
        self._reader = reader

    def list(self) -> Sequence[CheckpointInfo]:
        """See CheckpointStore."""
        base = next((part for part in self._reader.parts if part.what == BASE), None)
        if base is None:
            return []
        try:
            opened = decode_record(0, next(self._records(base))).fact
        except (StopIteration, RecordRefused):
            opened = None
        if not isinstance(opened, CheckpointOpened):
            raise LogCorrupt(f"{self._reader.path}: its base is no checkpoint: capture it again")
        return [CheckpointInfo(opened.offset, opened.check, opened.time, base.plain_bytes, BASE)]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        for part in self._reader.parts:
            if part.what == BASE:
                yield from self._records(part)

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """See CheckpointStore. Raises OSError: a capture is read only."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self._reader.path))

    def _records(self, part: PartInfo) -> Iterator[bytes]:
        cursor = _Cursor(self._reader, part, 0)
        try:
            while (batch := cursor.take()) is not None:
                yield from batch.records
        finally:
            cursor.close()


def _part(row: dict[str, Any]) -> PartInfo:
    """One row of the manifest. Raises TypeError, ValueError for anything else."""
    part = PartInfo(**row)
    for value, default in zip(part, _A_PART, strict=True):
        if type(value) is not type(default):
            raise ValueError("the right kinds of values")
    return part


_A_PART = PartInfo("", 0, 0, 0, 0, 0, "", "")


def read_ends(path: Path) -> Ends:
    """Head, manifest and tail, checked against each other. Raises CaptureUnreadable, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        _check_head(path, head)
        if size < HEAD_BYTES + TAIL_BYTES:
            _unreadable(path, "it is cut short: its end is missing", "copy it again")
        file.seek(size - TAIL_BYTES)
        tail = file.read(TAIL_BYTES)
        magic, position, length, signed, digest = TAIL.unpack_from(tail)
        if magic != TAIL_MAGIC or not _checks(tail):
            _unreadable(path, "it is cut short or damaged: its end is not that of a capture", "copy it again")
        if (
            length > MANIFEST_BYTES_MAX
            or signed > SIGNATURE_BYTES_MAX
            or position + length + signed + TAIL_BYTES != size
        ):
            _unreadable(path, f"it has {size} bytes, its end speaks of others", "copy it again")
        file.seek(position)
        manifest, signature = file.read(length), file.read(signed)
    if manifest_digest(head, manifest) != digest:
        _unreadable(path, "its manifest is damaged: the digest differs", "copy it again")
    try:
        document = orjson.loads(manifest)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        _unreadable(path, "its manifest is no JSON object", "capture it again")
    return Ends(document, digest, signature, position)


def _check_head(path: Path, head: bytes) -> None:
    if head[: len(SEGMENT_MAGIC)] == SEGMENT_MAGIC:
        _unreadable(path, "a single segment is no capture", "name its data directory with --log DIR")
    if not head.startswith(HEAD_MAGIC):
        _unreadable(path, "no capture: its first 8 bytes differ", "name one that `picklog capture` made")
    if len(head) < HEAD_BYTES:
        _unreadable(path, "it is cut short", "copy it again")
    _, version, size, flags, _ = HEAD.unpack_from(head)
    if version > FORMAT_VERSION or size != HEAD_BYTES or flags:
        detail = f"capture format {version} is newer than this release reads ({FORMAT_VERSION})"
        _unreadable(path, detail, "update picklog")
    if not _checks(head):
        _unreadable(path, "its head is damaged: the check word differs", "copy it again")


def _checks(block: bytes) -> bool:
    word: int = CHECK.unpack_from(block, len(block) - CHECK.size)[0]
    return word == xxhash.xxh3_64_intdigest(block[: -CHECK.size])


def _unreadable(path: Path, what: str, remedy: str) -> NoReturn:
    raise CaptureUnreadable(f"{path}: {what}: {remedy}")
