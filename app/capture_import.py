"""A data directory made of a capture: its parts become the files that they are the bytes of.

The base becomes a checkpoint, the parts of records become compressed segments of the log,
whose oldest header then names the base's chain head as the anchor. The directory is made
beside its place and renamed when it is whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson

from app.capture_reader import CaptureReader
from app.checkpoint_store import CheckpointFolder
from app.log_places import IMPORTED_NAME, checkpoint_folder
from ingest.log.segment_files import compressed_name, log_folder

COPY_BYTES = 4 << 20


def import_capture(reader: CaptureReader, data: Path) -> None:
    """Make `data`, which must not exist or be empty. The capture should have been checked whole.

    Raises OSError; then nothing of it stays.
    """
    data = data.absolute()
    made = data.with_name(f".{data.name}.{os.getpid()}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    try:
        log_folder(made).mkdir(mode=0o700, parents=True)
        made.chmod(0o700)
        with reader.path.open("rb") as source:
            for part in reader.records_parts:
                source.seek(part.position)
                target = log_folder(made) / compressed_name(part.first_offset)
                _copy(source.fileno(), part.position, part.bytes, target)
        base = reader.checkpoints()
        for info in base.list():
            folder = CheckpointFolder(checkpoint_folder(made))
            folder.write(reader.log_id, info.offset, info.check, info.time, base.read(info))
        _write(made / IMPORTED_NAME, orjson.dumps(reader.ends.manifest, option=orjson.OPT_INDENT_2))
        made.rename(data)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _copy(source: int, position: int, size: int, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while size > 0:
            data = os.pread(source, min(size, COPY_BYTES), position)
            if not data:
                raise OSError(5, "the capture became shorter while it was read")
            out.write(data)
            position += len(data)
            size -= len(data)
        out.flush()
        os.fsync(out.fileno())


def _write(target: Path, data: bytes) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
