"""Fetching from whoever a card names: lying, endless, slow, redirecting and compressing servers."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from projections.bounds import ARTIFACT_REDIRECTS_MAX
from router.prompt.artifact_cache import ArtifactUnusable
from router.prompt.artifact_fetch import FetchLimits, fetch
from router.prompt.artifact_set import ArtifactResult
from tests.live.certificates import Authority
from tests.router.prompt.file_server import FileServer, head_of, ok, redirect, serving

LIMITS = FetchLimits(20_000_000, 20_000_000, 1_000)
SOON = FetchLimits(20_000_000, 60_000, 1_000)


async def refusal(
    url: str, limits: FetchLimits = LIMITS, *, token: str | None = None, may_leave: bool = False
) -> tuple[ArtifactResult, str]:
    with pytest.raises(ArtifactUnusable) as caught:
        await fetch(URL(url), limits, token=token, may_leave=may_leave)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value.result, str(caught.value)


def authorizations(server: FileServer) -> list[str | None]:
    return [headers.get("authorization") for _, headers in server.requests]


@pytest.mark.req("ART-04")
@pytest.mark.parametrize("length", [-1, None])
async def test_a_file_is_fetched_with_or_without_an_announced_length(length: int | None) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(b"x" * 1_000, length)
        assert await fetch(URL(server.url("/t")), LIMITS) == b"x" * 1_000
        ((_, headers),) = server.requests
        assert headers["accept-encoding"] == "identity"
        assert "cookie" not in headers and "authorization" not in headers


async def test_chunks_are_joined() -> None:
    async with serving() as server:
        server.answers["/t"] = (
            head_of(200, None, Transfer_Encoding="chunked") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert await fetch(URL(server.url("/t")), LIMITS) == b"abcde"


@pytest.mark.req("ART-06")
async def test_an_announced_giant_is_refused_before_its_body() -> None:
    async with serving() as server:
        server.answers["/t"] = head_of(200, 1_001)
        result, _ = await refusal(server.url("/t"))
        assert result is ArtifactResult.TOO_LARGE


@pytest.mark.req("ART-06")
async def test_an_endless_body_ends_at_the_ceiling() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(head_of(200, None))
        while sent < 1 << 30:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with serving() as server:
        server.answers["/t"] = endless
        result, _ = await refusal(server.url("/t"))
        assert result is ArtifactResult.TOO_LARGE
    assert sent < 1 << 26


async def test_a_body_shorter_than_announced_is_no_file() -> None:
    async with serving() as server:
        server.answers["/t"] = ok(b"half", 8)
        assert (await refusal(server.url("/t")))[0] is ArtifactResult.FETCH_FAILED


async def test_of_a_body_longer_than_announced_nothing_beyond_is_taken() -> None:
    async with serving() as server:
        server.answers["/t"] = ok(b"x" * 900_000, 4)
        try:
            found = await fetch(URL(server.url("/t")), LIMITS)
        except ArtifactUnusable:  # where the rest came in one read with the head
            found = b"xxxx"
        assert found == b"xxxx"


@pytest.mark.parametrize("sent", [b"", head_of(200, 10), ok(b"123", 10)])
async def test_a_silent_server_is_left(sent: bytes) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        await asyncio.Event().wait()

    async with serving() as server:
        server.answers["/t"] = silent
        assert await refusal(server.url("/t"), SOON) == (
            ArtifactResult.FETCH_FAILED,
            "no whole answer in time",
        )


async def test_a_slow_drip_ends_with_the_whole_time_though_it_is_never_silent() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(head_of(200, 900))
        for _ in range(900):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.005)

    async with serving() as server:
        server.answers["/t"] = drip
        limits = FetchLimits(150_000, 20_000_000, 1_000)
        assert await refusal(server.url("/t"), limits) == (
            ArtifactResult.FETCH_FAILED,
            "no whole answer in time",
        )


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500, 503])
async def test_another_status_than_200_is_no_file(status: int) -> None:
    async with serving() as server:
        server.answers["/t"] = head_of(status)
        result, detail = await refusal(server.url("/t"))
        assert (result, detail) == (ArtifactResult.FETCH_FAILED, f"status {status}")


async def test_a_compressed_answer_is_refused_and_never_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 900_000)[:990]
    async with serving() as server:
        server.answers["/t"] = ok(bomb, Content_Encoding="gzip")
        result, detail = await refusal(server.url("/t"))
        assert result is ArtifactResult.FETCH_FAILED and "encoding" in detail
        server.answers["/unsaid"] = ok(bomb)
        assert await fetch(URL(server.url("/unsaid")), LIMITS) == bomb


@pytest.mark.parametrize(
    "answer", [b"\x00\x01\x02 no http\r\n\r\n", b"HTTP/1.1 200\r\nContent-Length: -5\r\n\r\n"]
)
async def test_what_is_no_http_is_no_file(answer: bytes) -> None:
    async with serving() as server:
        server.answers["/t"] = answer
        assert (await refusal(server.url("/t")))[0] is ArtifactResult.FETCH_FAILED


async def test_headers_without_end_are_no_file() -> None:
    async with serving() as server:
        server.answers["/t"] = b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n"
        assert (await refusal(server.url("/t")))[0] is ArtifactResult.FETCH_FAILED


async def test_nobody_there_is_no_file() -> None:
    async with serving() as server:
        url = server.url("/t")
    assert (await refusal(url))[0] is ArtifactResult.FETCH_FAILED
    assert (await refusal("http://no-such-host.invalid/t"))[0] is ArtifactResult.FETCH_FAILED


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as proxy, serving() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        server.answers["/t"] = ok(b"x")
        assert await fetch(URL(server.url("/t")), LIMITS) == b"x"
        assert proxy.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_within_the_origin_are_followed(status: int) -> None:
    async with serving() as server:
        server.answers |= {"/t": redirect("/a/b", status), "/a/b": redirect("../c", status), "/c": ok(b"x")}
        assert await fetch(URL(server.url("/t")), LIMITS) == b"x"


@pytest.mark.parametrize("may_leave", [False, True])
async def test_a_redirect_to_another_host_is_refused_and_not_contacted(may_leave: bool) -> None:
    async with serving() as server, serving() as other:
        for location in (
            other.url("/t"),
            other.url("/t").replace("http:", ""),
            server.url("/t", "localhost"),
        ):
            server.answers["/t"] = redirect(location)
            result, _ = await refusal(server.url("/t"), may_leave=may_leave, token="secret")
            assert result is ArtifactResult.REFUSED_REDIRECT
        assert other.connections == 0


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://h/x", "http://u:p@127.0.0.1/", ""])
async def test_a_redirect_to_no_web_address_is_refused(location: str) -> None:
    async with serving() as server:
        server.answers["/t"] = redirect(location)
        result, _ = await refusal(server.url("/t"), may_leave=True)
        assert result in (ArtifactResult.REFUSED_REDIRECT, ArtifactResult.FETCH_FAILED)
        assert server.connections == 1


async def test_circles_end() -> None:
    async with serving() as server:
        server.answers |= {"/t": redirect("/u"), "/u": redirect("/t")}
        assert (await refusal(server.url("/t")))[0] is ArtifactResult.REFUSED_REDIRECT
        assert server.connections == ARTIFACT_REDIRECTS_MAX + 1


@pytest.mark.req("ART-05")
async def test_the_hubs_token_stays_with_the_hub_when_it_sends_on_to_its_content_servers(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    identity = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    trust = ssl.create_default_context(cafile=str(authority.ca))
    async with serving() as hub, serving(context) as content:
        hub.answers |= {"/t": redirect("/moved"), "/moved": redirect(content.url("/blob"))}
        content.answers["/blob"] = ok(b"x")
        found = await fetch(URL(hub.url("/t")), LIMITS, token="secret", may_leave=True, tls=trust)
        assert found == b"x"
        assert authorizations(hub) == ["Bearer secret", "Bearer secret"]
        assert authorizations(content) == [None]
        assert (await refusal(hub.url("/t"), token="secret", may_leave=True))[
            0
        ] is ArtifactResult.FETCH_FAILED
        assert (await refusal(hub.url("/t"), token="secret"))[0] is ArtifactResult.REFUSED_REDIRECT
        assert authorizations(content) == [None]


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0", "224.0.0.1"]
)
async def test_addresses_of_the_local_link_are_never_dialled(host: str) -> None:
    assert (await refusal(f"http://{host}/latest/meta-data"))[0] is ArtifactResult.REFUSED_SCHEME


async def test_names_that_resolve_to_the_local_link_are_never_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolved(self: object, host: str, *_: object) -> list[dict[str, object]]:
        return [
            {"hostname": host, "host": "169.254.169.254", "port": 80, "family": 2, "proto": 6, "flags": 0},
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolved)
    assert (await refusal("http://metadata.example/t"))[0] is ArtifactResult.FETCH_FAILED
