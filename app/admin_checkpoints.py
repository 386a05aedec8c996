"""`GET /admin/checkpoints` and `/admin/checkpoints/NAME`: what a replica without a checkpoint fetches.

A file is sent as it lies there; whoever receives it checks it. Few are sent at the same time, and a
receiver that stops reading is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import orjson
from aiohttp import web

from app.admin_auth import Handlers
from app.checkpoint_store import CheckpointFolder
from router.ingress.answers import json_answer
from router.ingress.chat import request_id_of
from router.ingress.errors import ErrorCode, RequestRefused

LISTED_MAX: Final = 1_000
SENT_AT_ONCE_MAX: Final = 2
PART_BYTES: Final = 1 << 20
PART_S_MAX: Final = 30.0  # a receiver that takes longer for a part has left


class CheckpointRoutes:
    """Handlers over one folder. log_id: of the log that its checkpoints are of."""

    def __init__(self, folder: CheckpointFolder, log_id: Callable[[], bytes]) -> None:
        self._folder = folder
        self._log_id = log_id
        self._sending = 0

    def handlers(self) -> Handlers:
        """By path below /admin."""
        return {"/checkpoints": {"GET": self.listed}, "/checkpoints/{name}": {"GET": self.file}}

    async def listed(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/checkpoints: the log's id, and what there is, newest first."""
        found = await asyncio.to_thread(self._folder.list)
        rows = [{"name": one.name, "size_bytes": one.size_bytes} for one in reversed(found[-LISTED_MAX:])]
        document = {"log_id": self._log_id().hex(), "checkpoints": rows}
        return json_answer(orjson.dumps(document), request_id_of(request))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/checkpoints/NAME: its bytes."""
        path = await asyncio.to_thread(self._folder.path_of, request.match_info["name"])
        if path is None:
            raise RequestRefused(ErrorCode.NOT_FOUND, "There is no such checkpoint.")
        if self._sending >= SENT_AT_ONCE_MAX:
            raise RequestRefused(ErrorCode.RATE_LIMITED, "Others fetch checkpoints just now: try again.")
        self._sending += 1
        try:
            return await _sent(request, path)
        finally:
            self._sending -= 1


async def _sent(request: web.Request, path: Path) -> web.StreamResponse:
    try:
        file: IO[bytes] = await asyncio.to_thread(path.open, "rb")
    except OSError:
        raise RequestRefused(ErrorCode.NOT_FOUND, "It was removed as newer ones came.") from None
    with file:
        answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        answer.content_length = await asyncio.to_thread(_size_of, file)
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        while part := await asyncio.to_thread(file.read, PART_BYTES):
            async with asyncio.timeout(PART_S_MAX):
                await answer.write(part)
        await answer.write_eof()
        return answer


def _size_of(file: IO[bytes]) -> int:
    """Bytes of an open file."""
    size = file.seek(0, 2)
    file.seek(0)
    return size
