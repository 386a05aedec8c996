"""States that disagreed with the owner's, written aside for whoever looks for the cause (decision 10).

A fold that disagreed is given up, and what it held would be gone with it. It is written as a checkpoint
is, in a folder that nobody begins from: `DIR/aside/<replica>-<offset>.state`, the newest KEPT of them.
Writing is done in a thread, while the fold still stands for picks but folds nothing any more; it may
fail, and then one line says so.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from app.checkpoint_store import write_state_file
from projections.bounds import MIB
from projections.checkpoint import checkpoint_records
from projections.fold import Fold

KEPT = 2
BYTES_MAX = 1024 * MIB  # of one file: a larger state is not written
FOLDER = "aside"
STALE_NS = 600_000_000_000  # not written for so long: nobody writes it any more

log = structlog.get_logger("picklog")


class Aside:
    """The folder in one data directory, for one replica at a time."""

    def __init__(self, data: Path, replica: bytes) -> None:
        self._folder = data / FOLDER
        self._replica = replica
        self._writing: asyncio.Task[None] | None = None

    def begin(self, fold: Fold, log_id: bytes) -> str:
        """Begin to write the state of a fold that goes no further; the file's name, or why there is none."""
        if self._writing is not None and not self._writing.done():
            return "not written: the one before is still being written"
        path = self._folder / f"{self._replica.hex()}-{fold.mark.offset:020d}.state"
        self._writing = asyncio.create_task(self._write(path, fold, log_id))
        return str(path)

    async def written(self) -> None:
        """Return when nothing is being written."""
        if self._writing is not None:
            await self._writing

    async def _write(self, path: Path, fold: Fold, log_id: bytes) -> None:
        try:
            size = await asyncio.to_thread(_write_whole, path, fold, log_id)
        except Exception as problem:  # whatever is wrong with a wrong state must not cost the process
            log.error("the state that disagreed is not written aside", file=str(path), cause=repr(problem))
        else:
            log.info("the state that disagreed is written aside", file=str(path), bytes=size)


def _write_whole(path: Path, fold: Fold, log_id: bytes) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    try:
        size = write_state_file(
            unfinished, log_id, fold.mark.time, _bounded(checkpoint_records(fold, log_id))
        )
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _remove_old(path)
    return size


def _remove_old(newest: Path) -> None:
    """Keep the newest KEPT files, this one whatever the clock says; and nothing that a kill left unfinished.

    Other processes of the machine write and remove in the same folder. What cannot be removed stays.
    """
    ages: list[tuple[int, Path]] = []
    with suppress(OSError):
        now = newest.stat().st_mtime_ns  # the file system's clock
        for one in newest.parent.iterdir():
            with suppress(FileNotFoundError):
                written_at = one.stat().st_mtime_ns
                if one.suffix == ".state" and one != newest:
                    ages.append((written_at, one))
                elif one.suffix == ".tmp" and written_at < now - STALE_NS:
                    one.unlink()
        for _, one in sorted(ages, reverse=True)[KEPT - 1 :]:
            one.unlink(missing_ok=True)


def _bounded(records: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for record in records:
        size += len(record)
        if size > BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        yield record
