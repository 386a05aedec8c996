"""The bytes of a capture file: compressed segments one after the other, and what they are.

    file  = head (64) | part ... | manifest | signature | tail (64)
    head  = "PICKCAP\\n" | version u16 | 64 u16 | flags u32 | capture id (16) | zeros (24) | xxh3-64
    part  = a compressed segment, byte for byte as in a log's folder
    tail  = "PICKCEND" | manifest at u64 | its bytes u32 | bytes of the signature u32
            | blake3 of head and manifest (32) | xxh3-64

The first part is the base (a checkpoint) where there is one, the others are records. The
chain runs through all of them: each header holds the head behind the part before it, and
the manifest, JSON, holds the last one. So the tail's digest stands for every byte in the
file, and that is what a signature signs. `docs/capture.md` describes the file for other
languages.

A file is written under a temporary name and renamed when it is whole: a crash, a full disk
or a refusal leaves nothing behind.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import orjson
import xxhash
from blake3 import blake3

from app.whole_file import target_of, told_as, unfinished_name
from ingest.log.segment_files import sync_folder
from ingest.log.segment_store import Packing
from projections.bounds import COMMIT_BATCH_BYTES_MAX, MIB
from projections.events.codec import owner_stamp
from projections.events.segment_format import (
    HEADER_BYTES,
    MARK_BYTES,
    IndexBuilder,
    SegmentHeader,
    chain_start,
    encode_batch,
    encode_footer,
    encode_header,
)

FORMAT_VERSION = 1
HEAD_BYTES = 64
TAIL_BYTES = 64
MANIFEST_BYTES_MAX = 64 * MIB
SIGNATURE_BYTES_MAX = 4096
PART_BYTES = 128 * MIB  # plain bytes after which the next part begins
BATCH_BYTES = MIB
BATCH_RECORDS = 16_384
COMPRESS_LEVEL = 1  # the disk is what an export waits for
HEAD_MAGIC = b"PICKCAP\n"
TAIL_MAGIC = b"PICKCEND"
HEAD = struct.Struct("<8sHHI16s24x")  # 56 bytes, the check word follows
TAIL = struct.Struct("<8sQII32s")
CHECK = struct.Struct("<Q")


class PartInfo(NamedTuple):
    """One part, as the manifest lists it.

    what: base or records. head: chain head behind it, digest: blake3 of its bytes in the file;
    both in hex.
    """

    what: str
    position: int
    bytes: int
    plain_bytes: int
    first_offset: int
    end_offset: int
    head: str
    digest: str


def checked(body: bytes) -> bytes:
    """The body with its check word."""
    return body + CHECK.pack(xxhash.xxh3_64_intdigest(body))


def manifest_digest(head: bytes, manifest: bytes) -> bytes:
    """What the tail holds, and a signature signs."""
    return blake3(head).update(manifest).digest()


class CaptureFile:
    """Writes one capture: a CaptureWriter. Use it in a `with` block; without `finish` nothing stays.

    Raises OSError as the file system does.
    """

    def __init__(self, path: Path, log_id: bytes, sign: Callable[[bytes], bytes] | None = None) -> None:
        """sign: makes a signature of a digest, see `app.capture_signature`; None for none."""
        self._path = target_of(path)
        self._temporary = unfinished_name(path)
        self._log_id = log_id
        self._sign = sign
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with told_as(path):
            self._out = os.fdopen(os.open(self._temporary, flags, 0o600), "wb", buffering=MIB)
        self._head = checked(HEAD.pack(HEAD_MAGIC, FORMAT_VERSION, HEAD_BYTES, 0, os.urandom(16)))
        self._out.write(self._head)
        self._position = HEAD_BYTES
        self._chain = bytes(32)
        self._parts: list[PartInfo] = []
        self._open: _OpenPart | None = None
        self._stamp = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._out.close()
        self._temporary.unlink(missing_ok=True)

    def base(self, log_id: bytes, time: int, records: Iterable[bytes]) -> None:
        """See capture.CaptureWriter."""
        self._log_id, self._stamp = log_id, time
        opening = self._begin("base", 0)
        for batch in _batches(records):
            opening.add(batch)
        self._end()

    def records(self, first_offset: int, records: Sequence[bytes]) -> None:
        """See capture.CaptureWriter. Small batches are joined; a jump of offsets begins a new part."""
        opened = self._open
        if opened is not None and (opened.end_offset != first_offset or opened.plain_bytes > PART_BYTES):
            self._end()
            opened = None
        if opened is None:
            opened = self._begin("records", first_offset)
        opened.add(records)

    def finish(self, manifest: dict[str, Any]) -> None:
        """See capture.CaptureWriter."""
        if self._open is not None:
            self._end()
        whole = {
            **manifest,
            "capture": self._head[16:32].hex(),
            "chain_head": self._chain.hex(),
            "parts": [part._asdict() for part in self._parts],
        }
        body = orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        digest = manifest_digest(self._head, body)
        signature = self._sign(digest) if self._sign is not None else b""
        tail = TAIL.pack(TAIL_MAGIC, self._position, len(body), len(signature), digest)
        self._write(body + signature + checked(tail))
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        self._temporary.rename(self._path)
        sync_folder(self._path.parent)

    def _begin(self, what: str, first_offset: int) -> _OpenPart:
        header = SegmentHeader(self._log_id, first_offset, os.urandom(MARK_BYTES), self._stamp, self._chain)
        self._open = _OpenPart(what, self._position, header, self._write)
        return self._open

    def _end(self) -> None:
        assert self._open is not None
        info = self._open.close()
        self._stamp = max(self._stamp, self._open.newest_stamp)
        self._parts.append(info)
        self._chain = bytes.fromhex(info.head)
        self._open = None

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._position += len(data)


class _OpenPart:
    """A compressed segment that is being written: batches in, zstd frames out."""

    def __init__(
        self, what: str, position: int, header: SegmentHeader, write: Callable[[bytes], None]
    ) -> None:
        self.end_offset = header.first_offset
        self.newest_stamp = 0
        self._what = what
        self._position = position
        self._header = header
        self._out = write
        self._digest = blake3()
        self._packing = Packing(COMPRESS_LEVEL)
        self._index = IndexBuilder()
        self._head = chain_start(header)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._plain = [encode_header(header)]  # of the frame that is being filled
        self._at = HEADER_BYTES  # where the next batch begins in the plain segment
        self._frame_offset = header.first_offset

    @property
    def plain_bytes(self) -> int:
        """Plain bytes so far."""
        return self._at + self._waiting_bytes

    def add(self, records: Sequence[bytes]) -> None:
        """Records at end_offset, end_offset + 1, ..."""
        size = sum(map(len, records))
        count = len(self._waiting) + len(records)
        if self._waiting and (self._waiting_bytes + size > BATCH_BYTES or count > BATCH_RECORDS):
            self._flush_batch()
        self._waiting += records
        self._waiting_bytes += size
        self.end_offset += len(records)
        if self._waiting_bytes > BATCH_BYTES or len(self._waiting) > BATCH_RECORDS:
            self._flush_batch()

    def close(self) -> PartInfo:
        """End the segment; what the manifest says of it."""
        self._flush_batch()
        footer, self._head = encode_footer(
            self._header, self.end_offset, self._index.entries, self._head, self._at
        )
        self._plain.append(footer)
        self._at += len(footer)
        self._flush_frame()
        table = self._packing.table()
        self._write(table)
        return PartInfo(
            self._what,
            self._position,
            self._packing.stored_bytes + len(table),
            self._packing.plain_bytes,
            self._header.first_offset,
            self.end_offset,
            self._head.hex(),
            self._digest.hexdigest(),
        )

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._out(data)

    def _flush_batch(self) -> None:
        first = self.end_offset - len(self._waiting)
        fits = 0 < len(self._waiting) <= BATCH_RECORDS and self._waiting_bytes <= 2 * BATCH_BYTES
        for batch in [self._waiting] if fits else _batches(self._waiting):
            data, self._head = encode_batch(self._header.mark, first, batch, self._head)
            before = len(self._index.entries)
            self._index.note(first, self._at)
            if len(self._index.entries) > before and before:  # each frame begins at an entry
                self._flush_frame()
                self._frame_offset = first
            self._plain.append(data)
            self._at += len(data)
            stamps = (stamp for stamp in map(owner_stamp, reversed(batch)) if stamp is not None)
            self.newest_stamp = next(stamps, self.newest_stamp)
            first += len(batch)
        self._waiting, self._waiting_bytes = [], 0

    def _flush_frame(self) -> None:
        self._write(self._packing.chunk(b"".join(self._plain), self._frame_offset))
        self._plain = []


def _batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Records in lists under the ceilings of a commit batch."""
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= BATCH_RECORDS or size + len(record) > COMMIT_BATCH_BYTES_MAX // 4):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch
