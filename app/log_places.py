"""Where an offline command finds the log that it reads.

WHERE is a data directory or a capture file; without one it is `.run/data`, which `make run`
and `picklog serve` write. Reading needs no owner and disturbs none: committed records only.
Kafka is a place of a later release and is refused by name, so that a script learns it at
once.

A capture holds records from before its window, so that the window's picks can be asked;
so does a directory that one was imported to. Their readers say where the window begins,
and the mark `begin` means that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson

from app.capture_reader import CaptureReader, CaptureUnreadable
from app.checkpoint_store import CheckpointFolder
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_reader import SegmentReader
from projections.events.ports import CheckpointStore, LogReader

DEFAULT_DATA = Path(".run/data")
KAFKA_PREFIX = "kafka:"
IMPORTED_NAME = "capture.json"  # the manifest of the capture that a data directory was made of


class OpenLog(NamedTuple):
    """A log that is open for reading. name: how the user would name it again.

    data: its data directory, None for a capture file.
    """

    reader: LogReader
    checkpoints: CheckpointStore
    name: str
    data: Path | None = None


class ImportedReader(SegmentReader):
    """The log of a data directory that a capture was imported to."""

    window_start = 0


def checkpoint_folder(data: Path) -> Path:
    """`DIR/checkpoints` of a data directory."""
    return data / "checkpoints"


@contextmanager
def open_log(where: Path | None) -> Iterator[OpenLog]:
    """Open the log at `where`, or the default one, and close it again.

    Ends the command with status 2 for a place of a later release or a file that is no whole
    capture, and 3 where there is no log. Raises LogCorrupt and OSError as the reader does;
    LogCorrupt also at the end, where the log goes on behind bytes that do not check: what was
    read is then not all of it.
    """
    if where is not None and where.is_file() and not str(where).startswith(KAFKA_PREFIX):
        with _open_capture(where) as opened:
            yield opened
        return
    data = _data_directory(where)
    reader = _directory_reader(data)
    try:
        yield OpenLog(reader, CheckpointFolder(checkpoint_folder(data)), str(data), data)
        reader.read(reader.end_offset(), 1)
    finally:
        reader.close()


def data_directory(opened: OpenLog) -> Path:
    """Its data directory. Ends the command with status 2 for a capture, which has no segments to look at."""
    if opened.data is None:
        fail(EXIT_USAGE, f"{opened.name} is a capture", f"use `picklog capture show {opened.name}`")
    return opened.data


@contextmanager
def _open_capture(path: Path) -> Iterator[OpenLog]:
    try:
        reader = CaptureReader(path)
    except CaptureUnreadable as problem:
        fail(EXIT_USAGE, str(problem))
    try:
        yield OpenLog(reader, reader.checkpoints(), str(path))
    finally:
        reader.close()


def _directory_reader(data: Path) -> SegmentReader:
    """Its reader; one that knows its window where the log was imported from a capture."""
    try:
        manifest = orjson.loads((data / IMPORTED_NAME).read_bytes())
        start = int(manifest["window"]["from"])
    except (OSError, ValueError, KeyError, TypeError):
        return SegmentReader.open(data)
    reader = ImportedReader(log_folder(data))
    reader.window_start = start
    return reader


def _data_directory(where: Path | None) -> Path:
    if where is None:
        if not DEFAULT_DATA.is_dir():
            fail(EXIT_UNREACHABLE, f"there is no {DEFAULT_DATA} here", "name a data directory with --log DIR")
        return DEFAULT_DATA
    if str(where).startswith(KAFKA_PREFIX):
        fail(EXIT_USAGE, "a log on Kafka is not in this release", "name a data directory with --log DIR")
    if not where.exists():
        remedy = "name the directory given to `serve --data`, or a capture"
        fail(EXIT_UNREACHABLE, f"{where}: no such file or directory", remedy)
    if not log_folder(where).exists() and stored_segments(where):
        fail(EXIT_USAGE, f"{where} holds segments itself", f"name the data directory, {where.parent}")
    return where
