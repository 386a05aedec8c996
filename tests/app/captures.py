"""Captures on disk, for tests of the file, its reader and the commands."""

from __future__ import annotations

from pathlib import Path

from app.capture_file import HEAD_BYTES, TAIL, CaptureFile, checked, manifest_digest
from app.capture_reader import CaptureReader
from projections.events.ports import CheckpointStore, LogReader
from replay.capture import Plan, manifest_of, plan_capture, write_capture


def capture_of(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    path: Path,
    start: int = 0,
    stop: int | None = None,
    **changes: object,
) -> Plan:
    """Capture a window of a log to a file; `changes` go into the manifest."""
    plan = plan_capture(reader, checkpoints, start, reader.end_offset() if stop is None else stop)
    with CaptureFile(path, reader.log_id) as file:
        written = write_capture(reader, checkpoints, plan, file)
        manifest = manifest_of(
            plan,
            log_id=reader.log_id,
            written=written,
            origin={"log_id": reader.log_id.hex(), "before": None, "after": None},
            product="picklog 0",
            written_at="2026-01-01T00:00:00Z",
            times=(None, None),
            is_redacted=False,
        )
        file.finish({**manifest, **changes})
    return plan


def with_manifest(path: Path, body: bytes) -> None:
    """Give a capture another manifest, with an end that fits it."""
    data = path.read_bytes()
    position = CaptureReader(path).ends.size_bytes
    tail = TAIL.pack(b"PICKCEND", position, len(body), 0, manifest_digest(data[:HEAD_BYTES], body))
    path.write_bytes(data[:position] + body + checked(tail))
