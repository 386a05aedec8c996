"""Raw frames as received, kept beside the log for a while: `DIR/raw/`.

A frame is keyed by the offset of the record that was made from it; the record holds the
frame's xxh3-64, so that a found frame can be told from a wrong one. Frames help to decode
anew and are no part of the truth: they are written without fdatasync, are the first to go
when room is short, and expire by age and bytes of their own. Frames whose grammar holds
token ids never come here (decision 12). A log on Kafka keeps its frames on a topic: `kafka_raw_topic`.

    file  = "PLRAW\\0\\0\\1" | log id (16) | entry ...
    entry = offset u64 | log time u64 | bytes u32 | xxh3-64 of the frame u64 | frame
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import xxhash

from ingest.log.segment_files import make_folder
from projections.bounds import GIB, KV_FRAME_BYTES_MAX, MIB, SECOND_US

RAW_SUFFIX = ".raw"
BYTES_UNLIMITED = -1  # of a topic alone
FILES_INDEXED = 2  # a scout reads ahead of the fold: both may stand in different files
_MAGIC = b"PLRAW\0\0\1"
_HEAD_BYTES = 24
_ENTRY = struct.Struct("<QQIQ")


@dataclass(frozen=True, slots=True)
class RawSettings:
    """age_us: log time kept. bytes_max: of all files. file_bytes: a file is closed beyond this."""

    age_us: int = 3600 * SECOND_US
    bytes_max: int = 10 * GIB
    file_bytes: int = 64 * MIB


@dataclass(slots=True)
class _RawFile:
    path: Path
    first_offset: int
    size: int
    last_time: int


def raw_folder(data: Path) -> Path:
    """`DIR/raw` of a data directory."""
    return data / "raw"


def raw_digest(frame: bytes) -> int:
    """The link between a record and its frame: xxh3-64."""
    return xxhash.xxh3_64_intdigest(frame)


class FrameKeeper(Protocol):
    """Where an owner's raw frames go. Nothing raises: what is not kept is counted."""

    @property
    def dropped(self) -> int:
        """Frames that were not kept, since start."""

    def put(self, offset: int, frame: bytes, at_us: int) -> None:
        """Keep the frame behind the record at `offset`, written at log time `at_us`.

        Offsets grow from call to call. Frames above KV_FRAME_BYTES_MAX are dropped.
        """

    def drop(self) -> None:
        """Count a frame that was dropped before it came here."""

    def close(self) -> None:
        """Behind the last `put`. May block a few seconds."""


class FrameFinder(Protocol):
    """Frames that are kept, by the offsets of their records."""

    def first_offset(self) -> int | None:
        """Offset of the record that the oldest kept frame belongs to, None without frames of this log."""

    def get(self, offset: int, digest: int) -> bytes | Lost:
        """The frame behind the record at `offset`, whose record holds `digest`. May raise LogError."""


class RawFrames:
    """FrameKeeper of segments: `DIR/raw/`. Errors of the disk lose frames."""

    def __init__(self, data: Path, log_id: bytes, settings: RawSettings) -> None:
        self._folder = raw_folder(data)
        self._log_id = log_id
        self._settings = settings
        self._fd: int | None = None
        self.dropped = 0
        make_folder(self._folder)
        self._files = [
            _RawFile(path, first, _size(path), _last_time(path)) for first, path in _stored(self._folder)
        ]

    def put(self, offset: int, frame: bytes, at_us: int) -> None:
        """See FrameKeeper."""
        if len(frame) > KV_FRAME_BYTES_MAX:
            self.dropped += 1
            return
        data = _ENTRY.pack(offset, at_us, len(frame), raw_digest(frame)) + frame
        try:
            newest = self._file_for(offset, len(data))
            assert self._fd is not None
            if os.pwrite(self._fd, data, newest.size) != len(data):
                raise OSError("short write")
        except OSError:
            self.dropped += 1
            self.close()
            return
        newest.size += len(data)
        newest.last_time = at_us
        self._expire(at_us)

    def drop(self) -> None:
        """See FrameKeeper."""
        self.dropped += 1

    def close(self) -> None:
        """See FrameKeeper. The next `put` begins a new file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _file_for(self, offset: int, size: int) -> _RawFile:
        if self._fd is not None and self._files[-1].size + size <= self._settings.file_bytes:
            return self._files[-1]
        self.close()
        path = self._folder / f"{offset:020d}{RAW_SUFFIX}"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.pwrite(self._fd, _MAGIC + self._log_id, 0)
        self._files = [file for file in self._files if file.path != path]
        self._files.append(_RawFile(path, offset, _HEAD_BYTES, 0))
        return self._files[-1]

    def _expire(self, at_us: int) -> None:
        total = sum(file.size for file in self._files) if len(self._files) > 1 else 0
        while len(self._files) > 1:
            oldest = self._files[0]
            is_old = oldest.last_time < at_us - self._settings.age_us
            if not is_old and total <= self._settings.bytes_max:
                break
            with suppress(OSError):
                oldest.path.unlink(missing_ok=True)
            total -= oldest.size
            self._files.pop(0)


class Lost(Enum):
    """Why a frame cannot be had."""

    GONE = "it was never kept, or has expired"
    DAMAGED = "its bytes are not those that were kept"


class KeptFrames:
    """FrameFinder of what was kept at opening, for walks over a whole log: files are indexed once.

    At most FILES_INDEXED indexes are held, of 20 bytes a frame. A file that expires meanwhile
    holds no frame.
    """

    def __init__(self, data: Path, log_id: bytes) -> None:
        self._log_id = log_id
        self._files = _stored(raw_folder(data))
        self._indexes: dict[Path, _Index] = {}

    def first_offset(self) -> int | None:
        """See FrameFinder."""
        for _, path in self._files:
            index = self._index(path)
            if index.offsets:
                return index.offsets[0]
        return None

    def get(self, offset: int, digest: int) -> bytes | Lost:
        """See FrameFinder."""
        at = bisect_right(self._files, offset, key=lambda file: file[0]) - 1
        if at < 0:
            return Lost.GONE
        path = self._files[at][1]
        index = self._index(path)
        place = bisect_left(index.offsets, offset)
        if place == len(index.offsets):
            return Lost.DAMAGED if index.is_broken else Lost.GONE
        if index.offsets[place] != offset:
            return Lost.GONE
        try:
            with path.open("rb") as file:
                file.seek(index.places[place])
                frame = file.read(index.sizes[place])
        except OSError:
            return Lost.GONE
        return frame if raw_digest(frame) == digest else Lost.DAMAGED

    def _index(self, path: Path) -> _Index:
        found = self._indexes.pop(path, None)
        if found is None:
            found = _Index.of(path, self._log_id)
        self._indexes[path] = found
        while len(self._indexes) > FILES_INDEXED:
            del self._indexes[next(iter(self._indexes))]
        return found


class _Index(NamedTuple):
    """Offsets of records, ascending, with the places and sizes of their frames in the file.

    is_broken: what follows the last of them is no entry.
    """

    offsets: array[int]
    places: array[int]
    sizes: array[int]
    is_broken: bool

    @classmethod
    def of(cls, path: Path, log_id: bytes) -> _Index:
        found = cls(array("Q"), array("Q"), array("I"), False)
        try:
            with path.open("rb") as file:
                if file.read(_HEAD_BYTES) != _MAGIC + log_id:
                    return found
                for place, (offset, _, size, _) in _entries(file):
                    if not found.offsets or offset > found.offsets[-1]:  # else it stands there twice
                        found.offsets.append(offset)
                        found.places.append(place)
                        found.sizes.append(size)
                return found._replace(is_broken=file.tell() < os.fstat(file.fileno()).st_size)
        except OSError:
            return found


def _entries(file: BinaryIO) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """(place of the frame, its entry) from behind the head up to the first that is none.

    The file is left behind the last entry. Frames are passed over, not read.
    """
    end = os.fstat(file.fileno()).st_size
    at = _HEAD_BYTES
    while True:
        file.seek(at)
        head = file.read(_ENTRY.size)
        if len(head) < _ENTRY.size:
            break
        entry = _ENTRY.unpack(head)
        frame_at = at + _ENTRY.size
        if entry[2] > KV_FRAME_BYTES_MAX or frame_at + entry[2] > end:
            break
        yield frame_at, entry
        at = frame_at + entry[2]
    file.seek(at)


def _last_time(path: Path) -> int:
    """Log time of the newest entry of a file from an earlier run, 0 if it holds none."""
    try:
        with path.open("rb") as file:
            return max((entry[1] for _, entry in _entries(file)), default=0)
    except OSError:
        return 0


def _stored(folder: Path) -> list[tuple[int, Path]]:
    """(first offset, file), ascending. What is no plain file is none of ours, and may never end."""
    found = []
    for path in folder.glob(f"*{RAW_SUFFIX}"):
        is_named = len(path.stem) == 20 and path.stem.isascii() and path.stem.isdigit()
        if is_named and path.is_file() and not path.is_symlink():
            found.append((int(path.stem), path))
    return sorted(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
