"""What was fetched before: verified blobs on disk, and bounded reads of any file.

A blob lies at `<cache_dir>/blobs/<64 hex digits>`, the checksum without its `blake3:`, since a
colon in a file's name breaks tools and other file systems. The folder is 0700, blobs are
0600. A blob is written under a temporary name, synced and renamed, so that it is there
whole or not at all. It is verified each time it is read: one that changed is removed. No
link, pipe or device is ever opened in the folder, whoever put it there.

Blobs together stay under a ceiling, the least lately used go first. Several processes may
share a folder: what one removes another fetches again.

All calls here block; see `artifact_thread`.

Sources: specification, "Artifacts"; requirement rows ART-06..08.
"""

from __future__ import annotations

import io
import itertools
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from blake3 import blake3

from projections.bounds import ARTIFACT_BYTES_MAX, ARTIFACT_CACHE_BYTES_MAX, MIB
from projections.registry.artifacts import CHECKSUM_PREFIX, is_checksum
from router.prompt.artifact_set import ArtifactResult

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_OVER_S: Final = 3600.0  # a temporary file that old is nobody's any more
_NUMBERS: Final = itertools.count()


class ArtifactUnusable(Exception):
    """A file is not had. result: what to count; the text names no place."""

    def __init__(self, result: ArtifactResult, detail: str) -> None:
        super().__init__(detail)
        self.result = result


def checksum_of(data: bytes) -> str:
    """`blake3:` and 64 hex digits."""
    return CHECKSUM_PREFIX + blake3(data).hexdigest()


def verified(data: bytes, checksum: str) -> bytes:
    """The data. Raises ArtifactUnusable where it is not what the checksum names."""
    if checksum_of(data) != checksum:
        raise ArtifactUnusable(ArtifactResult.CHECKSUM_MISMATCH, f"{len(data)} bytes have another checksum")
    return data


def read_local(path: str, bytes_max: int = ARTIFACT_BYTES_MAX) -> bytes:
    """A regular file of this machine; links to one are followed, as model caches are made of them.

    Raises ArtifactUnusable, also for what is no regular file; nothing else is ever opened.
    """
    try:
        _must_be_regular(os.stat(path))
        return _read(os.open(path, _READ), bytes_max)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "no path"
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, f"cannot be read: {reason}") from problem


class BlobCache:
    """The blobs below one cache directory. bytes_max: of all of them."""

    def __init__(self, cache_dir: Path, bytes_max: int = ARTIFACT_CACHE_BYTES_MAX) -> None:
        self._folder = cache_dir / "blobs"
        self._bytes_max = bytes_max

    def path_of(self, checksum: str) -> Path:
        """Where the blob of a checksum lies, or would."""
        return self._folder / _name_of(checksum)

    def read(self, checksum: str) -> bytes | None:
        """The verified blob, None where there is none.

        Raises ArtifactUnusable (EVICTED) for one that had been changed: it is gone now.
        Raises OSError where the folder is not ours or cannot be read.
        """
        name = _name_of(checksum)
        try:
            with self._opened(create=False) as folder:
                try:
                    _must_be_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
                    data = _read(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder), ARTIFACT_BYTES_MAX)
                    verified(data, checksum)
                except ArtifactUnusable as problem:
                    os.unlink(name, dir_fd=folder)
                    raise ArtifactUnusable(ArtifactResult.EVICTED, f"cached blob: {problem}") from problem
                os.utime(name, dir_fd=folder, follow_symlinks=False)
                return data
        except FileNotFoundError:
            return None

    def write(self, checksum: str, data: bytes) -> None:
        """Keep a verified blob, and make room for it. Raises OSError where the disk does not take it."""
        name = _name_of(checksum)
        temporary = f".{name}.{os.getpid()}.{next(_NUMBERS)}.tmp"
        with self._opened(create=True) as folder:
            try:
                with os.fdopen(os.open(temporary, _WRITE, 0o600, dir_fd=folder), "wb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except BaseException:
                _unlink(temporary, folder)
                raise
            self._trim(folder, name)

    @contextmanager
    def _opened(self, create: bool) -> Iterator[int]:
        """The folder itself, which must be ours and closed to others."""
        if create:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(self._folder, _FOLDER)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():
                raise PermissionError(1, "the folder of blobs belongs to another user", str(self._folder))
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.fchmod(folder, 0o700)
            yield folder
        finally:
            os.close(folder)

    def _trim(self, folder: int, kept: str) -> None:
        """Remove what nobody finished writing, and the least lately used blobs above the ceiling."""
        blobs: list[tuple[float, str, int]] = []
        now = time.time()
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if entry.name.startswith(".") and now - found.st_mtime > _LEFT_OVER_S:
                    _unlink(entry.name, folder)
                elif stat.S_ISREG(found.st_mode):
                    blobs.append((found.st_mtime, entry.name, found.st_size))
        used = sum(size for _, _, size in blobs)
        for _, name, size in sorted(blobs):
            if used <= self._bytes_max:
                break
            if name != kept:
                _unlink(name, folder)
                used -= size


def _name_of(checksum: str) -> str:
    """The file's name. Raises ValueError for what is no checksum: it would name other files."""
    if not is_checksum(checksum):
        raise ValueError("no blake3 checksum")
    return checksum[len(CHECKSUM_PREFIX) :]


def _must_be_regular(found: os.stat_result) -> None:
    """Looked at before it is opened, too: opening a device may do things."""
    if not stat.S_ISREG(found.st_mode):
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, "no regular file")


def _read(descriptor: int, bytes_max: int) -> bytes:
    """All of an open file. Raises ArtifactUnusable for one that is too large or not regular."""
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        _must_be_regular(found)
        if found.st_size > bytes_max:
            raise ArtifactUnusable(ArtifactResult.TOO_LARGE, f"{found.st_size} bytes")
        data = io.BytesIO()  # gives its bytes away uncopied: a join of 64 MiB keeps the interpreter's lock
        while part := file.read(MIB):
            if data.tell() + len(part) > bytes_max:
                raise ArtifactUnusable(ArtifactResult.TOO_LARGE, f"more than {bytes_max} bytes")
            data.write(part)
        return data.getvalue()


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:  # another process was first, or it is a folder of somebody's
        pass
