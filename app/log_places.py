"""Where an offline command finds the log that it reads.

WHERE is a data directory; without one it is `.run/data`, which `make run` and
`picklog serve` write. Reading needs no owner and disturbs none: committed records only.
Capture files and Kafka are places of a later release and are refused by name, so that a
script learns it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app.checkpoint_store import CheckpointFolder
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_reader import SegmentReader
from projections.events.ports import CheckpointStore, LogReader

DEFAULT_DATA = Path(".run/data")
KAFKA_PREFIX = "kafka:"


class OpenLog(NamedTuple):
    """A log that is open for reading. name: how the user would name it again."""

    reader: LogReader
    checkpoints: CheckpointStore
    name: str


def checkpoint_folder(data: Path) -> Path:
    """`DIR/checkpoints` of a data directory."""
    return data / "checkpoints"


@contextmanager
def open_log(where: Path | None) -> Iterator[OpenLog]:
    """Open the log at `where`, or the default one, and close it again.

    Ends the command with status 2 for a place of a later release and 3 where there is no
    log. Raises LogCorrupt and OSError as the reader does; LogCorrupt also at the end, where
    the log goes on behind bytes that do not check: what was read is then not all of it.
    """
    data = _data_directory(where)
    reader = SegmentReader.open(data)
    try:
        yield OpenLog(reader, CheckpointFolder(checkpoint_folder(data)), str(data))
        reader.read(reader.end_offset(), 1)
    finally:
        reader.close()


def _data_directory(where: Path | None) -> Path:
    if where is None:
        if not DEFAULT_DATA.is_dir():
            fail(EXIT_UNREACHABLE, f"there is no {DEFAULT_DATA} here", "name a data directory with --log DIR")
        return DEFAULT_DATA
    if str(where).startswith(KAFKA_PREFIX):
        fail(EXIT_USAGE, "a log on Kafka is not in this release", "name a data directory with --log DIR")
    if where.is_file():
        fail(
            EXIT_USAGE,
            f"{where}: capture files are not in this release",
            "name a data directory with --log DIR",
        )
    if not where.exists():
        fail(EXIT_UNREACHABLE, f"{where}: no such directory", "name the directory given to `serve --data`")
    if not log_folder(where).exists() and stored_segments(where):
        fail(EXIT_USAGE, f"{where} holds segments itself", f"name the data directory, {where.parent}")
    return where
