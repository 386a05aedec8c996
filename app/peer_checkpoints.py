"""Checkpoints of other processes: what a replica fetches that has none of its own, or an old one.

Peers are asked for their lists at the same time; the newest checkpoint that fits this log comes first.
Its file goes under a temporary name into the own folder, is read back and checked whole, and only
then gets its name. Whatever fails, the next candidate is tried, and after some the replica begins
with what it has.

Peers are asked with the credentials of this process's own `admin.auth`: processes of one site have
the same. No redirect is followed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import aiohttp
import orjson
import structlog

from app.admin_auth import credentials
from app.checkpoint_store import FILE_BYTES_MAX, CheckpointFolder, named_checkpoint
from app.config_model import Config
from app.fold_start import unfit
from projections.bounds import MIB
from projections.events.ports import CheckpointInfo, LogReader

NEAR_RECORDS: Final = 1_000_000  # behind the end: folded in seconds, not worth a fetch
LIST_BYTES_MAX: Final = MIB
LISTED_MAX: Final = 1_000
LIST_S_MAX: Final = 5.0
STALL_S: Final = 10.0
FETCH_S_MAX: Final = 300.0
TRIES_MAX: Final = 4
PART_BYTES: Final = MIB
FREE_BYTES_MIN: Final = 64 * MIB  # that a fetched file leaves free

log = structlog.get_logger("picklog.checkpoints")


class Offered(NamedTuple):
    """A checkpoint of a peer; url: of the peer."""

    info: CheckpointInfo
    url: str


class FetchFailed(Exception):
    """Says why a peer's checkpoint, or list, was not taken."""


class PeerCheckpoints:
    """Fetches into `folder`. shares: whether others write there too, so that nothing is thinned out here."""

    def __init__(
        self, urls: Sequence[str], headers: Mapping[str, str], folder: CheckpointFolder, shares: bool
    ) -> None:
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._headers = dict(headers)
        self._folder = folder
        self._shares = shares

    @classmethod
    def of(cls, config: Config, folder: CheckpointFolder) -> PeerCheckpoints:
        """As the configuration says; with no peers it fetches nothing."""
        settings = config.checkpoints
        return cls(settings.peers, credentials(config.admin.auth), folder, shares=settings.folder is not None)

    async def fetch(self, reader: LogReader) -> CheckpointInfo | None:
        """The newest checkpoint that peers have, where it is worth it; None where nothing was fetched."""
        if not self._urls:
            return None
        own = await asyncio.to_thread(self._newest_own, reader)
        if own is not None and reader.end_offset() - own.offset <= NEAR_RECORDS:
            return None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=LIST_S_MAX, sock_read=STALL_S)
        async with aiohttp.ClientSession(
            timeout=timeout,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        ) as session:
            offered = await self._offered(session, reader)
            newer = [one for one in offered if own is None or one.info.offset > own.offset]
            for one in newer[:TRIES_MAX]:
                try:
                    async with asyncio.timeout(FETCH_S_MAX):
                        await self._fetch_one(session, one, reader.log_id)
                except (FetchFailed, aiohttp.ClientError, OSError, TimeoutError) as problem:
                    log.warning(
                        "a peer's checkpoint is not taken",
                        peer=one.url,
                        checkpoint=one.info.name,
                        cause=_cause(problem),
                    )
                    continue
                log.info("a checkpoint was fetched", peer=one.url, checkpoint=one.info.name)
                if not self._shares:
                    await asyncio.to_thread(self._folder.prune)
                return one.info
        log.warning("no peer has a checkpoint that is of use here", peers=len(self._urls))
        return None

    def _newest_own(self, reader: LogReader) -> CheckpointInfo | None:
        for info in reversed(self._folder.list()):
            if unfit(reader, info) is None and self._folder.check(info, reader.log_id) is None:
                return info
        return None

    async def _offered(self, session: aiohttp.ClientSession, reader: LogReader) -> list[Offered]:
        """What peers have and this log fits, newest first; of one name each peer's."""
        lists = await asyncio.gather(*(self._list(session, url, reader.log_id) for url in self._urls))
        found = sorted((one for offered in lists for one in offered), key=lambda one: -one.info.offset)
        fitting: list[Offered] = []
        judged: dict[str, bool] = {}
        for one in found:
            name = one.info.name
            if name not in judged:
                judged[name] = await asyncio.to_thread(unfit, reader, one.info) is None
            if judged[name]:
                fitting.append(one)
            if len(fitting) >= TRIES_MAX:
                break
        return fitting

    async def _list(self, session: aiohttp.ClientSession, url: str, log_id: bytes) -> list[Offered]:
        try:
            async with (
                asyncio.timeout(LIST_S_MAX),
                session.get(f"{url}/admin/checkpoints", allow_redirects=False) as answer,
            ):
                document = orjson.loads(await _bounded(answer, LIST_BYTES_MAX))
            return [Offered(info, url) for info in _named(document, log_id)]
        except (FetchFailed, aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            log.warning("a peer does not list its checkpoints", peer=url, cause=_cause(problem))
            return []

    async def _fetch_one(self, session: aiohttp.ClientSession, one: Offered, log_id: bytes) -> None:
        """Whole and checked, or not at all. Raises FetchFailed, OSError, ClientError, TimeoutError."""
        name, size = one.info.name, one.info.size_bytes
        unfinished = await asyncio.to_thread(self._folder.unfinished, name)
        try:
            with unfinished.open("wb") as out:
                _must_fit(unfinished, size)
                async with session.get(
                    f"{one.url}/admin/checkpoints/{name}", allow_redirects=False
                ) as answer:
                    await _received(answer, size, out)
                await asyncio.to_thread(_sync, out)
            there = one.info._replace(name=unfinished.name)
            problem = await asyncio.to_thread(self._folder.check, there, log_id)
            if problem is not None:
                raise FetchFailed(problem)
            await asyncio.to_thread(self._folder.finish, unfinished, name)
        finally:
            unfinished.unlink(missing_ok=True)


def _named(document: Any, log_id: bytes) -> list[CheckpointInfo]:
    """The checkpoints of a list. Raises FetchFailed where it is none, or of another log."""
    if not isinstance(document, dict) or not isinstance(document.get("checkpoints"), list):
        raise FetchFailed("its answer is no list of checkpoints")
    if document.get("log_id") != log_id.hex():
        raise FetchFailed("it follows another log")
    found: list[CheckpointInfo] = []
    for row in document["checkpoints"][:LISTED_MAX]:
        name, size = (row.get("name"), row.get("size_bytes")) if isinstance(row, dict) else (None, None)
        if isinstance(name, str) and type(size) is int and 0 < size <= FILE_BYTES_MAX:
            info = named_checkpoint(name, size)
            if info is not None:
                found.append(info)
    return found


async def _bounded(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    _must_be_plain(answer)
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > bytes_max:
            raise FetchFailed(f"its answer is above {bytes_max} bytes")
    return bytes(body)


async def _received(answer: aiohttp.ClientResponse, size: int, out: IO[bytes]) -> None:
    _must_be_plain(answer)
    left = size
    async for part in answer.content.iter_chunked(PART_BYTES):
        left -= len(part)
        if left < 0:
            break
        await asyncio.to_thread(out.write, part)
    if left:
        raise FetchFailed(f"its file has another size than the {size} bytes it told")


def _must_be_plain(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        raise FetchFailed(f"status {answer.status}")
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise FetchFailed("a content encoding was not asked for")


def _must_fit(path: Path, size: int) -> None:
    file_system = os.statvfs(path)
    if file_system.f_bavail * file_system.f_frsize < size + FREE_BYTES_MIN:
        raise FetchFailed(f"there is no room for its {size} bytes")


def _sync(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())


def _cause(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__
