"""Where an offline command finds the log that it reads.

WHERE is a data directory, a capture file, or `kafka:FILE`, the topic that a configuration names;
without one it is `.run/data`, which `make run` and `picklog serve` write. Reading needs no owner
and disturbs none: committed records only. A topic is seen as it stood when it was opened, unless
the command follows.

A capture holds records from before its window, so that the window's picks can be asked;
so does a directory that one was imported to. Their readers say where the window begins,
and the mark `begin` means that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import orjson

from app.capture_reader import CaptureReader, CaptureUnreadable
from app.checkpoint_store import CheckpointFolder
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail
from app.kafka_places import brokers_told, is_kafka, kafka_config, place_of, raw_place_of, topics_told
from ingest.log.raw_frames import FrameFinder, KeptFrames
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_reader import SegmentReader
from projections.events.ports import CheckpointStore, LogReader

DEFAULT_DATA = Path(".run/data")
IMPORTED_NAME = "capture.json"  # the manifest of the capture that a data directory was made of


class OpenLog(NamedTuple):
    """A log that is open for reading. name: how the user would name it again.

    data: its data directory, None for a capture file and a topic. may_grow: not for a capture.
    frames: opens the raw frames beside it, None for a capture, which has none. source: what a reader
    that reads ahead reads from, and may return nothing of before its end; None for one that does not.
    """

    reader: LogReader
    checkpoints: CheckpointStore
    name: str
    data: Path | None = None
    may_grow: bool = True
    frames: Callable[[], AbstractContextManager[FrameFinder]] | None = None
    source: LogReader | None = None


class ImportedReader(SegmentReader):
    """The log of a data directory that a capture was imported to."""

    window_start = 0


def checkpoint_folder(data: Path) -> Path:
    """`DIR/checkpoints` of a data directory."""
    return data / "checkpoints"


@contextmanager
def open_log(where: Path | None, follows: bool = False) -> Iterator[OpenLog]:
    """Open the log at `where`, or the default one, and close it again.

    follows: of a topic, what is appended meanwhile is seen too. Ends the command with status 2 for
    a file that is no whole capture or a topic that is no log, and 3 where there is none. Raises
    LogCorrupt and OSError as the reader does; LogCorrupt also at the end, where the log goes on
    behind bytes that do not check: what was read is then not all of it.
    """
    if where is not None and is_kafka(where):
        with brokers_told(where), _open_topic(where, follows) as opened:
            yield opened
        return
    if where is not None and where.is_file():
        with _open_capture(where) as opened:
            yield opened
        return
    data = _data_directory(where)
    reader = _directory_reader(data)
    try:
        checkpoints = CheckpointFolder(checkpoint_folder(data))
        yield OpenLog(
            reader,
            checkpoints,
            str(data),
            data,
            frames=lambda: nullcontext(KeptFrames(data, reader.log_id)),
        )
        reader.read(reader.end_offset(), 1)
    finally:
        reader.close()


def data_directory(opened: OpenLog) -> Path:
    """Its data directory. Ends the command with status 2 for a capture or a topic: no segments."""
    if opened.data is None and opened.may_grow:
        fail(EXIT_USAGE, f"{opened.name} has no data directory", "name one with --log DIR")
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
        yield OpenLog(reader, reader.checkpoints(), str(path), may_grow=False)
    finally:
        reader.close()


@contextmanager
def _open_topic(where: Path, follows: bool) -> Iterator[OpenLog]:
    config = kafka_config(where)
    from app.topic_checkpoints import TopicCheckpoints
    from ingest.log.kafka_base import BaseCheckpoint
    from ingest.log.kafka_raw_reader import KafkaKeptFrames
    from ingest.log.kafka_reader import KafkaReader

    with topics_told():
        reader = KafkaReader.open(place_of(config.log.kafka), follows)
    checkpoints: CheckpointStore = BaseCheckpoint(reader)
    if config.checkpoints.folder is not None:
        checkpoints = TopicCheckpoints(
            CheckpointFolder(Path(config.checkpoints.folder)), BaseCheckpoint(reader)
        )
    try:
        yield OpenLog(
            reader,
            checkpoints,
            str(where),
            frames=lambda: closing(KafkaKeptFrames.open(raw_place_of(config.log.kafka), reader.log_id)),
        )
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
    if not where.exists():
        remedy = "name the directory given to `serve --data`, or a capture"
        fail(EXIT_UNREACHABLE, f"{where}: no such file or directory", remedy)
    if not log_folder(where).exists() and stored_segments(where):
        fail(EXIT_USAGE, f"{where} holds segments itself", f"name the data directory, {where.parent}")
    return where
