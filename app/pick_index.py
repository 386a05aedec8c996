"""Where picks and their ends stand: a file for each sealed segment, from ids to offsets.

    file  = magic (8) | log id (16) | first offset u64 | stop offset u64 | entries u32 | zeros u32
            | last pick u64 (all ones without one) | keys u64 ... | distances u32 ... | xxh3-64
    key   = xxh3-64 of a letter and an id: p pick id, r request id, e the pick id of an end
    entries are sorted by key; a distance is from the first offset

The segment that is written to has a file too, which lags: what it does not hold is scanned, and
added once it is OPEN_LAG_RECORDS. A file that is missing or does not fit is made anew from the
segment, and kept where the disk takes it. An entry is a hint: whoever follows it reads the
record and compares the id.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import xxhash

from ingest.log.segment_files import log_folder, stored_segments
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, PickMade
from projections.events.ports import LogReader
from replay.log_walk import Progress, batches_of, record_at

_HEAD = struct.Struct("<8s16sQQIIQ")
_MAGIC = b"PLPICKS1"
_CHECK = struct.Struct("<Q")
_NO_PICK = (1 << 64) - 1
_INDEXED = (int(Kind.PICK_MADE), int(Kind.DISPATCH_ENDED))
DISTANCE_MAX = (1 << 32) - 1
OPEN_LAG_RECORDS = 200_000
SUFFIX, OPEN_SUFFIX = ".picks", ".open-picks"


class _Part(NamedTuple):
    """One segment's index. last_pick: offset of its newest pick, None where it has none."""

    first: int
    stop: int
    last_pick: int | None
    keys: memoryview
    distances: memoryview

    def offsets(self, key: int) -> Iterator[int]:
        place = bisect_left(self.keys, key)
        while place < len(self.keys) and self.keys[place] == key:
            yield self.first + self.distances[place]
            place += 1


class PickIndex:
    """The index of one data directory. Raises what reading the log raises."""

    def __init__(self, data: Path, reader: LogReader, on_progress: Progress | None = None) -> None:
        self._folder = data / "index"
        self._reader = reader
        firsts = stored_segments(log_folder(data))
        self._parts = [self._part(first, stop, on_progress) for first, stop in pairwise(firsts)]
        if firsts:
            self._parts.append(self._open_part(firsts[-1], on_progress))
        self._forget(set(firsts))

    @property
    def indexed_end(self) -> int:
        """Records from this offset on are in no index."""
        return self._parts[-1].stop if self._parts else self._reader.first_offset()

    def picks(self, name: str) -> Iterator[int]:
        """Offsets that may hold the pick of this id or request id, newest segment first."""
        keys = [_key(b"r", name.encode("utf-8", "surrogatepass"))]
        try:
            keys.append(_key(b"p", bytes.fromhex(name)))
        except ValueError:
            pass
        for part in reversed(self._parts):
            yield from sorted((offset for key in keys for offset in part.offsets(key)), reverse=True)

    def ends(self, pick_id: bytes) -> Iterator[int]:
        """Offsets that may hold the end of a pick, oldest first."""
        for part in self._parts:
            yield from sorted(part.offsets(_key(b"e", pick_id)))

    def last_pick(self) -> int | None:
        """Offset of the newest pick in the sealed segments."""
        return next((p.last_pick for p in reversed(self._parts) if p.last_pick is not None), None)

    def _part(self, first: int, stop: int, on_progress: Progress | None) -> _Part:
        path = self._folder / f"{first:020d}{SUFFIX}"
        held = _read(path, self._reader.log_id, first, stop)
        if held is None:
            content = _build(self._reader, first, stop, on_progress)
            self._keep(path, content)
            held = _taken(memoryview(content), self._reader.log_id, first, stop)
            assert held is not None
        return held

    def _open_part(self, first: int, on_progress: Progress | None) -> _Part:
        """What is held of the newest segment; brought up to its end where it lags far behind."""
        path = self._folder / f"{first:020d}{OPEN_SUFFIX}"
        end = max(first, self._reader.end_offset())
        held = _read(path, self._reader.log_id, first, None)
        if held is None or held.stop > end:
            held = _Part(first, first, None, memoryview(b"").cast("Q"), memoryview(b"").cast("I"))
        if end - held.stop < OPEN_LAG_RECORDS:
            return held
        content = _build(self._reader, first, end, on_progress, held)
        self._keep(path, content)
        found = _taken(memoryview(content), self._reader.log_id, first, end)
        assert found is not None
        return found

    def _keep(self, path: Path, content: bytes) -> None:
        """Write the file, whole or not at all; a disk that takes nothing costs time alone."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError:
            if self._folder.is_dir():
                unfinished.unlink(missing_ok=True)

    def _forget(self, firsts: set[int]) -> None:
        """Remove files of segments that retention removed."""
        try:
            for path in self._folder.glob("*picks"):
                gone = path.stem.isdecimal() and int(path.stem) not in firsts
                if gone or (path.suffix == OPEN_SUFFIX and int(path.stem) != max(firsts, default=-1)):
                    path.unlink(missing_ok=True)
        except OSError:
            pass


def _key(letter: bytes, name: bytes) -> int:
    return xxhash.xxh3_64_intdigest(letter + name)


def _build(
    reader: LogReader, first: int, stop: int, on_progress: Progress | None, held: _Part | None = None
) -> bytes:
    """The file of a segment up to `stop`; `held`: what is known of its beginning."""
    entries: list[tuple[int, int]] = []
    last_pick = _NO_PICK
    if held is not None:
        entries += zip(held.keys, held.distances, strict=True)
        last_pick = _NO_PICK if held.last_pick is None else held.last_pick
    for batch in batches_of(reader, first if held is None else held.stop, stop):
        for place, data in enumerate(batch.records):
            if (data[3] or data[5]) not in _INDEXED:  # as kind_byte, without its call
                continue
            offset = batch.first_offset + place
            record = record_at(offset, data)
            fact = record.fact if record is not None else None
            distance = min(offset - first, DISTANCE_MAX)
            if isinstance(fact, PickMade):
                last_pick = offset
                name = fact.question.request_id.encode("utf-8", "surrogatepass")
                entries += ((_key(b"p", fact.pick_id), distance), (_key(b"r", name), distance))
            elif isinstance(fact, DispatchEnded):
                entries.append((_key(b"e", fact.pick_id), distance))
        if on_progress is not None:
            on_progress(batch.first_offset)
    entries.sort()
    keys, distances = array("Q", (key for key, _ in entries)), array("I", (away for _, away in entries))
    body = _HEAD.pack(_MAGIC, reader.log_id, first, stop, len(entries), 0, last_pick)
    body += keys.tobytes() + distances.tobytes()
    return body + _CHECK.pack(xxhash.xxh3_64_intdigest(body))


def _read(path: Path, log_id: bytes, first: int, stop: int | None) -> _Part | None:
    """The file where it is there, whole and of this segment. stop: None takes any."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    return _taken(content, log_id, first, stop)


def _taken(content: memoryview, log_id: bytes, first: int, stop: int | None) -> _Part | None:
    if len(content) < _HEAD.size + _CHECK.size:
        return None
    magic, theirs, begins, ends, count, _, last = _HEAD.unpack_from(content)
    size = _HEAD.size + 12 * count
    wanted = (_MAGIC, log_id, first, ends if stop is None else stop, size + _CHECK.size)
    if (magic, theirs, begins, ends, len(content)) != wanted:
        return None
    if _CHECK.unpack_from(content, size)[0] != xxhash.xxh3_64_intdigest(content[:size]):
        return None
    keys = content[_HEAD.size : _HEAD.size + 8 * count].cast("Q")
    distances = content[_HEAD.size + 8 * count : size].cast("I")
    return _Part(first, ends, None if last == _NO_PICK else last, keys, distances)
