"""`picklog log copy`: one log into another place, and the proof that both are the same.

A copy goes on where it was; a log that does not begin at offset 0 takes the oldest checkpoint
that its records bridge along, since nothing could be folded otherwise. At the end both ends are
read anew, as any reader would, and digested: what was sent is no proof of what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint_store import CheckpointFolder
from app.cli_errors import say_error
from app.cli_output import ProgressBar
from app.kafka_places import brokers_told, is_kafka, kafka_place
from app.log_places import OpenLog, checkpoint_folder
from ingest.log.log_copy import (
    Base,
    CopyRefused,
    CopyTarget,
    LogDigest,
    copy_records,
    digest_log,
    place_to_go_on,
)
from ingest.log.segment_copy import SegmentCopy
from projections.events.ports import LogCorrupt, LogReader
from replay.fold_cursor import usable_checkpoints


class Copied(NamedTuple):
    """One run. copied: records of this run. base: offset of the checkpoint that it began with, if it did."""

    log_id: bytes
    copied: int
    base: int | None
    source: LogDigest
    target: LogDigest

    @property
    def is_equal(self) -> bool:
        """Whether both ends hold the same records at the same offsets."""
        return self.source == self.target


def copy_log(source: OpenLog, target: CopyTarget) -> Copied:
    """Copy everything that the source has now. Raises CopyRefused and what both ends raise."""
    reader = source.reader
    stop = reader.end_offset()
    base = None
    if target.log_id is None:
        base = base_of(source, stop)
        target.begin(reader.log_id, reader.first_offset(), base)
    elif target.log_id != reader.log_id:
        raise CopyRefused(
            f"the target holds log {target.log_id.hex()}, the source is {reader.log_id.hex()}: name an "
            "empty place"
        )
    there = target.reader()
    start = place_to_go_on(reader, there)
    if start < reader.first_offset():
        raise CopyRefused(
            f"the copy was begun for offset {start}, the source begins at {reader.first_offset()} now: copy "
            "into an empty place"
        )
    with ProgressBar(start, stop, "copying") as advance:
        copied = copy_records(reader, target, start, stop, advance)
    first = max(reader.first_offset(), there.first_offset())
    return Copied(
        reader.log_id,
        copied,
        None if base is None else base.info.offset,
        _digest(reader, first, stop, "reading the source"),
        _digest(there, first, stop, "reading the target"),
    )


def base_of(source: OpenLog, stop: int) -> Base | None:
    """The oldest good checkpoint whose tail is there; None for a log from offset 0. Raises CopyRefused."""
    first = source.reader.first_offset()
    if first == 0:
        return None
    checkpoints = source.checkpoints
    for info in usable_checkpoints(source.reader, checkpoints, stop - 1):
        try:
            for _ in checkpoints.read(info):
                pass
        except (LogCorrupt, FileNotFoundError):
            continue
        return Base(info, partial(checkpoints.read, info))
    raise CopyRefused(
        f"{source.name} begins at offset {first} and no checkpoint holds the state before it: nothing can be "
        "folded from there: copy it while its checkpoints are kept, or from a capture"
    )


@contextmanager
def open_target(where: Path) -> Iterator[CopyTarget]:
    """A data directory, made at need, or `kafka:FILE`. Raises LogError, OSError."""
    target = _topic(where) if is_kafka(where) else _directory(where)
    try:
        yield target
    finally:
        target.close()


def copy_document(source: str, target: str, done: Copied) -> dict[str, Any]:
    """What `log copy --json` says."""
    return {
        "source": source,
        "target": target,
        "log_id": done.log_id.hex(),
        "first_offset": done.source.first_offset,
        "end_offset": done.source.end_offset,
        "records": done.source.records,
        "copied": done.copied,
        "base": done.base,
        "source_digest": done.source.digest.hex(),
        "target_digest": done.target.digest.hex(),
        "equal": done.is_equal,
    }


def _directory(where: Path) -> CopyTarget:
    return SegmentCopy(where, CheckpointFolder(checkpoint_folder(where)))


def _topic(where: Path) -> CopyTarget:
    from ingest.log.kafka_copy import KafkaCopy

    with brokers_told(where):
        target = KafkaCopy.open(kafka_place(where))
    for what in target.warnings:
        say_error(what)
    return target


def _digest(reader: LogReader, first: int, stop: int, what: str) -> LogDigest:
    with ProgressBar(first, stop, what) as advance:
        return digest_log(reader, first, stop, advance)
