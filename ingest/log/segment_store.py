"""One stored segment as bytes at positions, whether it is plain or compressed.

A compressed segment is a run of ordinary zstd frames, each holding whole batches, about
1 MiB of them, followed by one skippable frame with a table of the run. `zstd -d` gives
back the plain segment, byte for byte, so the hash chain holds for both.

    table = "PLGZTAB1" | rows u32 | zeros u32 | row ... | plain bytes u64 | xxh3-64 | position u64
    row   = compressed position u64 | plain position u64 | first offset u64

`position` is where the skippable frame begins, so that the table is found from the end.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash
import zstandard

from ingest.log.segment_files import COMPRESSED, compressed_name, segment_name
from projections.events.ports import LogCorrupt
from projections.events.segment_format import (
    HEADER_BYTES,
    INDEX_ENTRIES_MAX,
    INDEX_STEP_BYTES,
    PAYLOAD_BYTES_MAX,
    TAIL_BYTES,
    Frame,
    IndexEntry,
    SegmentRefused,
    decode_header,
    footer_position,
    read_footer,
)

CHUNK_BYTES_MAX = 2 * INDEX_STEP_BYTES + PAYLOAD_BYTES_MAX  # of one zstd frame, uncompressed
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_TABLE_HEAD = struct.Struct("<8sII")
_TABLE_MAGIC = b"PLGZTAB1"
_TABLE_TAIL = struct.Struct("<QQQ")
_ROW = struct.Struct("<QQQ")


class Chunk(NamedTuple):
    """One zstd frame of a compressed segment."""

    stored: int
    plain: int
    first_offset: int


class Span(NamedTuple):
    """A stretch of a file that holds one segment: where it begins, its bytes."""

    position: int
    size: int


class StoredSegment:
    """An open segment file. Not for use by several threads at once."""

    def __init__(
        self, folder: Path, first_offset: int, name: str | None = None, within: Span | None = None
    ) -> None:
        """Open it, plain or compressed, or the file `name`. Raises FileNotFoundError, LogCorrupt.

        within: the part of that file that is a compressed segment.
        """
        self.name, self._fd = _open_either(folder, first_offset, name)
        self._within = within
        self._base = within.position if within is not None else 0
        self.is_compressed = COMPRESSED in self.name or within is not None
        self._chunks: list[Chunk] = []
        self._plain_bytes = 0
        self._cached = (-1, b"")
        try:
            if self.is_compressed:
                self._read_table()
            self.header = decode_header(self.read_at(0, HEADER_BYTES))
            if self.header.first_offset != first_offset:
                raise SegmentRefused(f"it says that it begins at offset {self.header.first_offset}")
        except SegmentRefused as refusal:
            os.close(self._fd)
            raise LogCorrupt(
                f"segment {self.name}: {refusal}: restore the file from a copy, or move it aside"
            ) from refusal

    def size(self) -> int:
        """Plain bytes, room taken ahead included."""
        return self._plain_bytes if self.is_compressed else os.fstat(self._fd).st_size

    def stored_bytes(self) -> int:
        """Bytes on disk as the file's length says."""
        return os.fstat(self._fd).st_size if self._within is None else self._within.size

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` plain bytes from `position`, fewer at the end. Raises LogCorrupt."""
        if not self.is_compressed:
            return os.pread(self._fd, size, position)
        parts: list[bytes] = []
        while size > 0 and position < self._plain_bytes:
            index = bisect_right(self._chunks, position, key=lambda chunk: chunk.plain) - 1
            chunk = self._chunk(index)
            part = chunk[position - self._chunks[index].plain :][:size]
            parts.append(part)
            position += len(part)
            size -= len(part)
        return b"".join(parts)

    def footer(self) -> tuple[Frame, list[IndexEntry]] | None:
        """The footer and its sparse index, None while the segment is open. Raises LogCorrupt."""
        size = self.size()
        try:
            position = footer_position(self.read_at(max(0, size - TAIL_BYTES), TAIL_BYTES), self.header)
            if position is None or position >= size:
                return None
            if size - position > TAIL_BYTES + 64 + 16 * INDEX_ENTRIES_MAX:
                raise SegmentRefused("the footer is longer than a footer may be")
            frame, entries = read_footer(self.read_at(position, size - position), 0, self.header, None)
        except SegmentRefused as refusal:
            raise LogCorrupt(f"segment {self.name}: {refusal}: restore it from a copy") from refusal
        return frame._replace(position=position, end=size), entries

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _chunk(self, index: int) -> bytes:
        if self._cached[0] == index:
            return self._cached[1]
        chunk = self._chunks[index]
        last = index + 1 == len(self._chunks)
        stored_end = self._table_at if last else self._chunks[index + 1].stored
        plain_end = self._plain_bytes if last else self._chunks[index + 1].plain
        stored = os.pread(self._fd, stored_end - chunk.stored, self._base + chunk.stored)
        try:
            plain = zstandard.ZstdDecompressor().decompress(stored, max_output_size=CHUNK_BYTES_MAX)
        except zstandard.ZstdError as problem:
            raise self._corrupt(f"zstd frame at byte {chunk.stored}: {problem}") from problem
        if len(plain) != plain_end - chunk.plain:
            raise self._corrupt(f"zstd frame at byte {chunk.stored} has another length than the table says")
        self._cached = (index, plain)
        return plain

    def _read_table(self) -> None:
        size, base = self.stored_bytes(), self._base
        tail = os.pread(self._fd, _TABLE_TAIL.size, base + max(0, size - _TABLE_TAIL.size))
        if len(tail) != _TABLE_TAIL.size:
            raise SegmentRefused("too short for a compressed segment")
        plain_bytes, check, position = _TABLE_TAIL.unpack(tail)
        length = size - position - _SKIPPABLE.size
        if not _TABLE_HEAD.size + _TABLE_TAIL.size <= length <= 64 + _ROW.size * INDEX_ENTRIES_MAX:
            raise SegmentRefused("no table at the end of the compressed segment")
        table = os.pread(self._fd, length, base + position + _SKIPPABLE.size)
        if xxhash.xxh3_64_intdigest(table[:-16]) != check:
            raise SegmentRefused("the check word of the compressed segment's table differs")
        magic, rows, _ = _TABLE_HEAD.unpack_from(table)
        if magic != _TABLE_MAGIC or length != _TABLE_HEAD.size + rows * _ROW.size + _TABLE_TAIL.size:
            raise SegmentRefused("no table at the end of the compressed segment")
        self._chunks = [
            Chunk(*_ROW.unpack_from(table, _TABLE_HEAD.size + row * _ROW.size)) for row in range(rows)
        ]
        self._plain_bytes, self._table_at = plain_bytes, position

    def _corrupt(self, detail: str) -> LogCorrupt:
        return LogCorrupt(f"segment {self.name}: {detail}: restore the file from a copy")


def _open_either(folder: Path, first_offset: int, name: str | None) -> tuple[str, int]:
    """The plain file, else the compressed one: it is there before the plain one goes."""
    names = (segment_name(first_offset), compressed_name(first_offset)) if name is None else (name,)
    for candidate in names:
        try:
            return candidate, os.open(folder / candidate, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(names[0])


def compressed_parts(segment: StoredSegment, entries: Sequence[IndexEntry], level: int) -> Iterator[bytes]:
    """The bytes of a sealed plain segment in compressed form, part by part.

    entries: the footer's sparse index: each zstd frame begins at one of its batches.
    """
    packing = Packing(level)
    starts = [(0, segment.header.first_offset)] + [(e.position, e.first_offset) for e in entries[1:]]
    size = segment.size()
    for index, (plain, offset) in enumerate(starts):
        end = starts[index + 1][0] if index + 1 < len(starts) else size
        yield packing.chunk(segment.read_at(plain, end - plain), offset)
    yield packing.table()


class Packing:
    """Makes the compressed form of one segment out of its plain bytes, chunk by chunk."""

    def __init__(self, level: int) -> None:
        self.stored_bytes = self.plain_bytes = 0
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._rows: list[bytes] = []

    def chunk(self, plain: bytes, first_offset: int) -> bytes:
        """One zstd frame. plain: whole batches, the segment's header before the first ones."""
        part: bytes = self._compressor.compress(plain)
        self._rows.append(_ROW.pack(self.stored_bytes, self.plain_bytes, first_offset))
        self.stored_bytes += len(part)
        self.plain_bytes += len(plain)
        return part

    def table(self) -> bytes:
        """The skippable frame that ends it."""
        head = _TABLE_HEAD.pack(_TABLE_MAGIC, len(self._rows), 0)
        body = head + b"".join(self._rows) + self.plain_bytes.to_bytes(8, "little")
        check = xxhash.xxh3_64_intdigest(body)
        table = body + check.to_bytes(8, "little") + self.stored_bytes.to_bytes(8, "little")
        return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(table)) + table
