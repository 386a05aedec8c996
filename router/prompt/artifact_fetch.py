"""Fetches a file over HTTP from whoever a card names: bounded, and no further than allowed.

Cards are written by the fleet, so the server behind a URL may be anybody's. It gets a GET
without cookies, proxies or credentials, and may answer with at most 64 MiB in 30 s, never
silent for 10 s. Nothing is decompressed: an answer with a content encoding is refused.

Redirects: a worker may send us on within its own origin, three times. The hub sends to
its content servers, so from there any https host may follow, without the hub's token, which
goes to the hub's own origin alone. Addresses of the local link and multicast ones are never
dialled, whatever a name resolves to: cloud machines keep their credentials there.

Foreign exceptions end here: whatever goes wrong is `ArtifactUnusable`, with no address in it.

Sources: specification, "Artifacts"; requirement rows ART-04..06.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import socket
import ssl
from typing import Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from projections.bounds import ARTIFACT_BYTES_MAX, ARTIFACT_REDIRECTS_MAX, KIB
from router.prompt.artifact_cache import ArtifactUnusable
from router.prompt.artifact_set import ArtifactResult
from router.prompt.artifact_source import web_url

_CHUNK_BYTES: Final = 64 * KIB
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_SECOND_US: Final = 1_000_000
_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "picklog"}


class FetchLimits(NamedTuple):
    """total_us: redirects included. stall_us: silence. Durations in microseconds."""

    total_us: int
    stall_us: int
    bytes_max: int = ARTIFACT_BYTES_MAX


async def fetch(
    url: URL,
    limits: FetchLimits,
    *,
    token: str | None = None,
    may_leave: bool = False,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """The body of a 200 answer.

    token: a bearer token for the URL's own origin. may_leave: redirects to any https host are
    followed. tls: whom to trust, None for the system's authorities. Raises ArtifactUnusable.
    """
    stall_s = limits.stall_us / _SECOND_US
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=stall_s, sock_read=stall_s)
    try:
        async with (
            asyncio.timeout(limits.total_us / _SECOND_US),
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=_NoLocalLink(),
                    force_close=True,
                    use_dns_cache=False,
                    ssl=tls if tls is not None else True,
                ),
                timeout=timeout,
                headers=_HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            ) as session,
        ):
            return await _followed(session, url, limits.bytes_max, token, may_leave)
    except TimeoutError as problem:
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, "no whole answer in time") from problem
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        detail = f"no answer ({type(problem).__name__})"
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, detail) from problem


async def _followed(
    session: aiohttp.ClientSession, start: URL, bytes_max: int, token: str | None, may_leave: bool
) -> bytes:
    url = start
    for _ in range(ARTIFACT_REDIRECTS_MAX + 1):
        _must_be_dialable(url)
        is_home = url.origin() == start.origin()
        headers = {"Authorization": f"Bearer {token}"} if token and is_home else {}
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status in _REDIRECTS:
                url = _next(url, start, answer.headers.get("Location"), may_leave)
                continue
            return await _body(answer, bytes_max)
    raise ArtifactUnusable(ArtifactResult.REFUSED_REDIRECT, f"more than {ARTIFACT_REDIRECTS_MAX} redirects")


def _next(url: URL, start: URL, location: str | None, may_leave: bool) -> URL:
    """Where a redirect leads."""
    target = web_url(str(url.join(URL(location)))) if location else None
    if target is None:
        raise ArtifactUnusable(ArtifactResult.REFUSED_REDIRECT, "redirect to no http(s) URL")
    if target.origin() == start.origin() or (may_leave and target.scheme == "https"):
        return target
    raise ArtifactUnusable(ArtifactResult.REFUSED_REDIRECT, "redirect to another host")


async def _body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    if answer.status != 200:
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, f"status {answer.status}")
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, "a content encoding was not asked for")
    if answer.content_length is not None and answer.content_length > bytes_max:
        raise ArtifactUnusable(ArtifactResult.TOO_LARGE, f"{answer.content_length} bytes announced")
    body = io.BytesIO()  # gives its bytes away uncopied: a join of 64 MiB would stop the loop
    async for part in answer.content.iter_chunked(_CHUNK_BYTES):
        if body.tell() + len(part) > bytes_max:
            raise ArtifactUnusable(ArtifactResult.TOO_LARGE, f"more than {bytes_max} bytes")
        body.write(part)
    return body.getvalue()


def _must_be_dialable(url: URL) -> None:
    """An address that is written out never meets the resolver."""
    if _is_never_dialled(url.host or ""):
        raise ArtifactUnusable(ArtifactResult.REFUSED_SCHEME, "an address of the local link")


def _is_never_dialled(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return bool(plain.is_link_local or plain.is_multicast or plain.is_unspecified)


class _NoLocalLink(AbstractResolver):
    """The system's resolver, less the addresses that are never dialled."""

    def __init__(self) -> None:
        self._system = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See AbstractResolver."""
        found = await self._system.resolve(host, port, family)
        allowed = [one for one in found if not _is_never_dialled(one["host"])]
        if not allowed:
            raise OSError("resolves to addresses of the local link alone")
        return allowed

    async def close(self) -> None:
        """See AbstractResolver."""
        await self._system.close()
