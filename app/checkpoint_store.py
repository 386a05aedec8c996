"""Where checkpoints are kept: one file each, in segment format, written whole or not at all.

A checkpoint's name says which position it is the state of, so that listing reads no file:
`<offset>-<check word>-<log time>.checkpoint`. It is written under a temporary name of its own,
synced and renamed; whatever is half written at a crash is removed at a later write.

Kept are the newest few, one an hour and one a day while their records last, under a byte
ceiling (decision 9). The newest one is never removed.

A mounted object store may know no sync of a folder, and no renaming. The first is then done without. For the
second a file is written under its name itself, synced and read back; until that is done, and after a kill in
between, it is one that does not check, which readers pass over as they do any other.

Replicas of one log may share the folder, also over a network file system: those that read
change nothing in it, and each file is checked whole before it is used. Files of another
log are not listed apart: give each log a folder of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ingest.log.segment_files import sync_folder
from projections.bounds import COMMIT_BATCH_BYTES_MAX, SECOND_US
from projections.events.ports import CheckpointInfo, LogCorrupt
from projections.events.segment_format import (
    HEADER_BYTES,
    MARK_BYTES,
    IndexBuilder,
    SegmentHeader,
    SegmentRefused,
    chain_start,
    decode_header,
    encode_batch,
    encode_footer,
    encode_header,
    frame_records,
)
from projections.events.segment_scan import Scan, StopKind, scan

HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
BATCH_RECORDS = 1024
STALE_S = 600.0  # unfinished for so long, by the file system's own clock: nobody writes it any more
FILE_BYTES_MAX = 4 << 30
REMEDY = "remove the file, an older checkpoint will be used"
# What mounts say of a call that they do not know. PostgreSQL too takes EBADF and EINVAL of a folder for that.
NO_FOLDER_SYNC = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF))
NO_RENAME = frozenset((errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))
_NAME = re.compile(r"(\d{20})-([0-9a-f]{16})-(\d{20})\.checkpoint")


class CheckpointFolder:
    """A `CheckpointStore` in one folder. keep: newest ones kept whatever their age."""

    def __init__(self, folder: Path, *, keep: int = 3, bytes_max: int = 10 << 30) -> None:
        self._folder = folder
        self._keep = max(1, keep)
        self._bytes_max = bytes_max

    def list(self) -> Sequence[CheckpointInfo]:
        """Kept checkpoints by name, oldest first. Their bytes are checked when read."""
        found: list[CheckpointInfo] = []
        try:
            entries = sorted(os.scandir(self._folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return found
        for entry in entries:
            try:
                info = named_checkpoint(entry.name, entry.stat().st_size)
            except FileNotFoundError:  # the follower let go of it meanwhile
                continue
            if info is not None:
                found.append(info)
        return found

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """Record bytes in order. Raises LogCorrupt before the first one where the file does not check."""
        path = self._folder / info.name
        if info.size_bytes > FILE_BYTES_MAX:
            raise LogCorrupt(f"{path}: {info.size_bytes} bytes are above the checkpoint ceiling")
        yield from state_file_records(path)

    def check(self, info: CheckpointInfo, log_id: bytes) -> str | None:
        """Why the file is no whole checkpoint of that log, None where it is. It is read to its end."""
        path = self._folder / info.name
        try:
            header, _ = _scanned(path, path.read_bytes())
        except (LogCorrupt, OSError) as problem:
            return str(problem)
        return None if header.log_id == log_id else f"{path}: it is of another log"

    def path_of(self, name: str) -> Path | None:
        """The file of a kept checkpoint; None for every other name."""
        path = self._folder / name
        return path if _NAME.fullmatch(name) is not None and path.is_file() else None

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """Write one checkpoint and remove those that need not be kept. Raises OSError."""
        name = checkpoint_name(offset, check, time)
        unfinished = self.unfinished(name)
        try:
            size = write_state_file(unfinished, log_id, time, records)
            self.finish(unfinished, name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self.prune()
        return CheckpointInfo(offset, check, time, size, name)

    def unfinished(self, name: str) -> Path:
        """Where to write what `finish` will give that name. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f".{name}.{os.urandom(4).hex()}.tmp"
        path.touch(0o600)
        now = path.stat().st_mtime  # the file system's clock: the folder may lie on another machine
        for other in self._folder.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if other.stat().st_mtime < now - STALE_S:
                    other.unlink()
        return path

    def finish(self, unfinished: Path, name: str) -> None:
        """Give a file that was written and synced its name. Raises OSError."""
        target = self._folder / name
        try:
            unfinished.rename(target)
        except OSError as problem:
            if problem.errno not in NO_RENAME:
                raise
            _write_in_place(unfinished, target)
            unfinished.unlink(missing_ok=True)
        try:
            sync_folder(self._folder)
        except OSError as problem:
            if problem.errno not in NO_FOLDER_SYNC:
                raise

    def expire(self, first_offset: int) -> None:
        """Remove those whose tail is gone, now that the log begins there; never the newest."""
        self._prune([info for info in self.list()[:-1] if info.offset + 1 < first_offset])

    def prune(self) -> None:
        """Remove those that need not be kept."""
        self._prune(surplus_checkpoints(self.list(), self._keep, self._bytes_max))

    def _prune(self, surplus: Sequence[CheckpointInfo]) -> None:
        for info in surplus:
            (self._folder / info.name).unlink(missing_ok=True)


def checkpoint_name(offset: int, check: int, time: int) -> str:
    """The file's name."""
    return f"{offset:020d}-{check:016x}-{time:020d}.checkpoint"


def named_checkpoint(name: str, size_bytes: int) -> CheckpointInfo | None:
    """What a file's name says; None for other files."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return CheckpointInfo(int(match[1]), int(match[2], 16), int(match[3]), size_bytes, name)


def surplus_checkpoints(infos: Sequence[CheckpointInfo], keep: int, bytes_max: int) -> list[CheckpointInfo]:
    """Those of `infos` (oldest first) that need not be kept.

    Kept: the newest `keep`, the newest of each hour and day of log time, as long as the
    sum of sizes stays within bytes_max; the newest is kept whatever its size.
    """
    hours: set[int] = set()
    days: set[int] = set()
    total = 0
    surplus: list[CheckpointInfo] = []
    for age, info in enumerate(reversed(infos)):
        hour, day = info.time // HOUR_US, info.time // DAY_US
        wanted = age < keep or hour not in hours or day not in days
        hours.add(hour)
        days.add(day)
        if age > 0 and (not wanted or total + info.size_bytes > bytes_max):
            surplus.append(info)
        else:
            total += info.size_bytes
    return surplus


def _scanned(path: Path, data: bytes, remedy: str = REMEDY) -> tuple[SegmentHeader, Scan]:
    """The whole file, checked. Raises LogCorrupt, which names the remedy."""
    try:
        header = decode_header(data)
    except SegmentRefused as refusal:
        raise LogCorrupt(f"{path}: {refusal}: {remedy}") from refusal
    found = scan(data, header)
    if found.stop.kind is not StopKind.SEALED:
        detail = found.stop.detail or "it was not finished"
        raise LogCorrupt(f"{path}: byte {found.stop.position}: {detail}: {remedy}")
    return header, found


def state_file_records(path: Path, remedy: str = REMEDY) -> Iterator[bytes]:
    """Records of a file that `write_state_file` wrote.

    Raises LogCorrupt, which names the remedy, before the first one; OSError.
    """
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise LogCorrupt(f"{path}: {size} bytes are above the checkpoint ceiling, {FILE_BYTES_MAX}")
    data = path.read_bytes()
    _, found = _scanned(path, data, remedy)
    for frame in found.batches:
        yield from frame_records(data, frame)


def write_state_file(path: Path, log_id: bytes, time: int, records: Iterator[bytes]) -> int:
    """Write records of a state as one sealed segment and sync it; its bytes. Raises OSError."""
    header = SegmentHeader(log_id, 0, os.urandom(MARK_BYTES), time, bytes(32))
    head, offset, position = chain_start(header), 0, HEADER_BYTES
    index = IndexBuilder()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=1 << 20) as out:
        out.write(encode_header(header))
        for batch in _batches(records):
            data, head = encode_batch(header.mark, offset, batch, head)
            index.note(offset, position)
            out.write(data)
            offset += len(batch)
            position += len(data)
        footer, _ = encode_footer(header, offset, index.entries, head, position)
        out.write(footer)
        out.flush()
        os.fsync(out.fileno())
    return position + len(footer)


def _write_in_place(source: Path, target: Path) -> None:
    """Write a finished file under its name, where nothing is renamed. Raises OSError, and then it is gone.

    A whole one of that name is the same state: it stays as it is, and nobody reads half of it.
    """
    data = source.read_bytes()
    with suppress(LogCorrupt, OSError):
        _scanned(target, target.read_bytes())
        return
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if target.read_bytes() != data:
            raise OSError(errno.EIO, "the file reads back otherwise than it was written", str(target))
    except BaseException:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        raise


def _batches(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Records in lists under both batch ceilings."""
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= BATCH_RECORDS or size + len(record) > COMMIT_BATCH_BYTES_MAX // 2):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch
