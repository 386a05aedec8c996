"""Rows of the shadow as JSON lines, for a site that keeps no SQL audit.

`DIR/shadow.jsonl`, one row a line with the name of its table; at FILE_BYTES_MAX the file
becomes `shadow.jsonl.1` and a new one begins, so both together hold at most twice that. A row is
written again after a crash in the middle of a batch: readers keep the last one of an offset.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from app.shadow import Rows, SinkAway
from projections.bounds import MIB

FILE_NAME = "shadow.jsonl"
FILE_BYTES_MAX = 64 * MIB
FILES_BYTES_MAX = 2 * FILE_BYTES_MAX
_TAIL_BYTES = 1 << 20


class JsonLinesSink:
    """A RowSink in a data directory."""

    def __init__(self, data: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = data / FILE_NAME
        self._bytes_max = bytes_max

    async def mark(self, shadow_config: str) -> int:
        """See RowSink. Looks at the end of the file alone."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                lines = file.read().splitlines()
        except OSError:
            return -1
        return max((offset for line in lines for offset in _marks(line, shadow_config)), default=-1)

    async def write(self, rows: Rows) -> None:
        """See RowSink."""
        lines = [_line("shadow_picks", row) for row in rows.shadow]
        lines += [_line("verifications", row) for row in rows.verifications]
        try:
            await asyncio.to_thread(self._append, b"".join(lines))
        except OSError as problem:
            raise SinkAway(f"{self._path}: {problem.strerror or problem}") from problem

    async def close(self) -> None:
        """See RowSink."""

    def _append(self, data: bytes) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # a crash tore the last line: the next row is none of it
            try:
                written = 0
                while written < len(data):
                    written += os.write(fd, data[written:])
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if size + len(data) > self._bytes_max:
            self._path.replace(self._path.with_name(FILE_NAME + ".1"))


def _marks(line: bytes, shadow_config: str) -> Iterator[int]:
    """The offset of a line that is a row of this shadow. Lines may be torn, or written by others."""
    try:
        row = orjson.loads(line)
    except ValueError:
        return
    if isinstance(row, dict) and (row.get("table"), row.get("shadow_config")) == (
        "shadow_picks",
        shadow_config,
    ):
        offset = row.get("log_offset")
        if type(offset) is int:
            yield offset


def _line(table: str, row: Any) -> bytes:
    return orjson.dumps({"table": table, **row._asdict()}) + b"\n"
