"""The listening server against raw sockets: routes, limits, requests that would be read twice."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, http_parser, web

from projections.registry.fleet import Role
from router.ingress.answers import json_answer
from router.ingress.http_server import HEADER_BYTES_MAX, Door, build_application, warn_without_compiled_parser
from router.picker.pick import pick
from router.service import RouterService
from router.settings import DeadlineSettings
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.rig import (
    Counts,
    FakeLog,
    Rig,
    fleet_of,
    pick_settings_for,
    rig,
    settings_for,
    until,
    worker,
)

BODY = b'{"model":"tiny-chat","messages":[]}'
FLEET = fleet_of(worker(31, Role.AGGREGATED))


@asynccontextmanager
async def front(**changes: Any) -> AsyncIterator[tuple[Rig, FakeFrontend]]:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(FLEET, settings_for({"dynamo": [frontend]}, **changes)) as router:
        yield router, frontend


async def raw(router: Rig, data: bytes, *, timeout_s: float = 5.0) -> bytes:
    """Send bytes on a connection of their own; everything that comes until it closes or is quiet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(data)
    found = b""
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await reader.read(65536):
                found += piece
                if found.count(b"HTTP/1.") and _is_whole(found):
                    break
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return found


def _is_whole(data: bytes) -> bool:
    head, _, body = data.rpartition(b"HTTP/1.")[2].partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        -1,
    )
    return len(body) >= length >= 0


def head(*lines: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"host: x", *lines]) + b"\r\n\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


GOOD = head(b"content-length: %d" % len(BODY)) + BODY
CHUNKED = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
SMUGGLED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"

AMBIGUOUS = {
    "length and chunks": head(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked")
    + CHUNKED
    + SMUGGLED,
    "chunks and length": head(b"transfer-encoding: chunked", b"content-length: 5") + CHUNKED + SMUGGLED,
    "two lengths": head(b"content-length: %d" % len(BODY), b"content-length: 5") + BODY + SMUGGLED,
    "length list": head(b"content-length: %d, 5" % len(BODY)) + BODY + SMUGGLED,
    "signed length": head(b"content-length: +%d" % len(BODY)) + BODY + SMUGGLED,
    "line feed in a chunk extension": head(b"transfer-encoding: chunked")
    + b"2;a\nb\r\n{}\r\n0\r\n\r\n"
    + SMUGGLED,
    "line feeds for line ends": b"POST /v1/chat/completions HTTP/1.1\nhost: x\ncontent-length: 2\n\n{}"
    + SMUGGLED,
    "bare carriage return in a value": head(b"x-a: 1\rcontent-length: 0", b"content-length: %d" % len(BODY))
    + BODY
    + SMUGGLED,
    "space before the colon": head(b"content-length : %d" % len(BODY)) + BODY + SMUGGLED,
    "folded header": head(b"x-a: 1\r\n b", b"content-length: %d" % len(BODY)) + BODY + SMUGGLED,
    "zero byte in a value": head(b"x-a: \0", b"content-length: %d" % len(BODY)) + BODY + SMUGGLED,
    "hex with a prefix": head(b"transfer-encoding: chunked") + b"0x2\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "coding that is not the last": head(b"transfer-encoding: chunked, identity") + CHUNKED + SMUGGLED,
    "odd coding": head(b"transfer-encoding: xchunked") + CHUNKED + SMUGGLED,
    "coding beside chunks": head(b"transfer-encoding: gzip, chunked") + CHUNKED + SMUGGLED,
    "chunks in HTTP/1.0": head(b"transfer-encoding: chunked").replace(b"1.1", b"1.0") + CHUNKED + SMUGGLED,
    "version before 1.0": GOOD.replace(b"1.1", b"0.9") + SMUGGLED,
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED,
}


@pytest.mark.field("B-114")
@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_requests_that_could_be_read_in_two_ways_are_refused_and_closed(name: str) -> None:
    async with front() as (router, frontend):
        answer = await raw(router, AMBIGUOUS[name])
        assert status_of(answer) == 400
        assert answer.count(b"HTTP/1.") == 1, "nothing behind it was answered"
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"
        assert b"x-request-id" in answer.lower()
        assert frontend.chats == []
        assert (await raw(router, GOOD)).startswith(b"HTTP/1.1 200")


@pytest.mark.field("B-100", "B-114")
async def test_two_requests_on_one_connection_are_two_upstream_with_framing_of_our_own() -> None:
    async with front() as (router, frontend):
        chunked = head(b"Transfer-Encoding: chunked", b"connection: keep-alive") + CHUNKED
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(chunked + GOOD)
        found = b""
        async with asyncio.timeout(10):
            while found.count(b"HTTP/1.1 200") < 2 or not _is_whole(found):
                found += await reader.read(65536)
        writer.close()
        assert [seen.body for seen in frontend.chats] == [BODY, BODY]
        for seen in frontend.chats:
            assert seen.header("content-length") == str(len(BODY))
            assert seen.header("transfer-encoding") is None


@pytest.mark.field("B-114")
def test_compiled_parser_is_there_and_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not warn_without_compiled_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    assert warn_without_compiled_parser()


@pytest.mark.field("B-109")
@pytest.mark.parametrize("chunked", [False, True])
async def test_body_above_the_limit_is_refused_before_or_while_reading(chunked: bool) -> None:
    async with front(body_bytes_max=1000) as (router, frontend):
        if chunked:
            data = head(b"transfer-encoding: chunked") + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
        else:
            data = head(b"content-length: 1001")  # nothing of it is sent
        answer = await raw(router, data)
        assert status_of(answer) == 413
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "payload_too_large"
        assert b"connection: close" in answer.lower()
        assert frontend.chats == []


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/completions?x=1"])
async def test_client_that_waits_to_be_told_is_told_unless_its_body_is_refused(path: bytes) -> None:
    async with front(body_bytes_max=1000) as (router, frontend):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(head(b"expect: 100-continue", b"content-length: %d" % len(BODY), path=path))
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert frontend.chats[0].header("expect") is None
        answer = await raw(router, head(b"expect: 100-continue", b"content-length: 1001", path=path))
        assert answer.startswith(b"HTTP/1.1 413")
        answer = await raw(router, head(b"expect: 200-ok", b"content-length: 2", path=path) + b"{}")
        assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.field("B-109")
@pytest.mark.parametrize("size", [6_300, 1_000_000])
async def test_large_bodies_go_through_byte_for_byte(size: int) -> None:
    data = b'{"model":"tiny-chat","messages":[{"role":"user","content":"' + b"x" * size + b'"}]}'
    async with front() as (router, frontend):
        answer, _ = await router.chat(data=data)
        assert answer.status == 200
        assert frontend.chats[0].body == data


async def test_body_that_does_not_arrive_is_refused_in_time() -> None:
    async with front(deadlines=DeadlineSettings(body_us=50_000)) as (router, frontend):
        answer = await raw(router, head(b"content-length: 100") + b"{")
        assert status_of(answer) == 408
        assert frontend.chats == []


@pytest.mark.parametrize("encodings", [[b"gzip"], [b"identity", b"gzip"], [b"identity, br"]])
async def test_encoded_body_is_refused(encodings: list[bytes]) -> None:
    async with front() as (router, _):
        lines = [b"content-encoding: " + encoding for encoding in encodings]
        answer = await raw(router, head(b"content-length: 2", *lines) + b"{}")
        assert status_of(answer) == 415


@pytest.mark.parametrize(
    "line", [b"OPTIONS * HTTP/1.1", b"CONNECT x:80 HTTP/1.1", b"GET /admin/nope HTTP/1.1"]
)
async def test_what_the_library_refuses_has_the_shape_of_the_api(line: bytes) -> None:
    async with front() as (router, _):
        answer = await raw(router, line + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert status_of(answer) == 404
        body = answer.partition(b"\r\n\r\n")[2]
        assert json.JSONDecoder().raw_decode(body.decode())[0]["error"]["code"] == "not_found"
        assert b"x-request-id" in answer.lower()


async def unread(port: int, requests: bytes) -> asyncio.StreamWriter:
    """A client with a small window that has sent requests and reads no answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    _, writer = await asyncio.open_connection(sock=client)
    transport: Any = writer.transport
    transport.pause_reading()
    writer.write(requests)
    return writer


async def test_client_that_reads_no_answers_gets_no_further_ones() -> None:
    calls = 0

    async def large(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return json_answer(b"x" * 500_000, "r")

    async with door(handlers={"/metrics": large}) as url:
        writer = await unread(int(url.rpartition(":")[2]), b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        await until(lambda: calls > 1)
        await asyncio.sleep(0.3)
        assert calls < 50, "the kernel's buffers hold some answers, ours hold one"
        writer.transport.abort()


async def test_client_that_reads_no_chats_makes_no_further_ones() -> None:
    async with front() as (router, frontend):
        frontend.usage = {"padding": "x" * 500_000}
        writer = await unread(router.port, GOOD * 100)
        await until(lambda: len(frontend.chats) > 1)
        await asyncio.sleep(0.3)
        assert len(frontend.chats) < 50
        assert router.in_flight() == 0
        writer.transport.abort()
        await until(lambda: len(router.log.ends) == len(frontend.chats))


@pytest.mark.parametrize("where", ["line", "header", "count"])
async def test_oversized_heads_are_refused(where: str) -> None:
    async with front() as (router, _):
        if where == "line":
            data = b"GET /" + b"x" * (HEADER_BYTES_MAX + 1) + b" HTTP/1.1\r\nhost: x\r\n\r\n"
        elif where == "header":
            data = head(b"x-a: " + b"x" * (HEADER_BYTES_MAX + 1), b"content-length: 0")
        else:
            data = head(*[b"x-%d: 1" % n for n in range(500)], b"content-length: 0")
        answer = await raw(router, data)
        assert status_of(answer) in (400, 431)
        if where != "count":
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


@pytest.mark.field("B-111")
@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/nope", 404, "not_found", None),
        ("POST", "/", 404, "not_found", None),
        ("POST", "/v1/chat/completions/", 404, "not_found", None),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed", "POST"),
        ("OPTIONS", "/v1/completions", 405, "method_not_allowed", "POST"),
        ("POST", "/v1/models", 405, "method_not_allowed", "GET, HEAD"),
        ("DELETE", "/health", 405, "method_not_allowed", "GET, HEAD"),
        ("POST", "/v1/chat/completions", 400, "invalid_request", None),
    ],
)
async def test_unknown_routes_and_methods(
    method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    async with front() as (router, _), router.session.request(method, router.url + path) as answer:
        assert answer.status == status
        assert json.loads(await answer.read())["error"]["code"] == code
        assert answer.headers.get("Allow") == allow
        assert answer.headers["x-request-id"]
        assert answer.headers["Server"] == "picklog"


@pytest.mark.field("B-111")
async def test_bodyless_requests_are_answered() -> None:
    async with front() as (router, _):
        for method in ("GET", "HEAD"):
            for path in ("/v1/models", "/health"):
                async with router.session.request(method, router.url + path) as answer:
                    assert answer.status == 200


async def test_models_are_listed_as_clients_call_them() -> None:
    async with front() as (router, frontend):
        async with router.session.get(router.url + "/v1/models") as answer:
            rows = json.loads(await answer.read())
        assert [row["id"] for row in rows["data"]] == ["tiny-chat"]
        assert rows["object"] == "list"
        frontend.models_status = 500
        router.service.frontage.table.replicas["dynamo-0"].mark_unusable("tiny-chat")
        async with router.session.get(router.url + "/v1/models") as answer:
            assert json.loads(await answer.read())["data"] == []


async def test_request_id_of_the_client_stands_if_it_may() -> None:
    async with front() as (router, frontend):
        answer, _ = await router.chat(headers={"X-Request-ID": "mine-1"})
        assert answer.headers.getall("x-request-id") == ["mine-1"]
        assert frontend.chats[0].header("x-request-id") == "mine-1"
        assert router.log.picks[0].question.request_id == "mine-1"
        answer, _ = await router.chat(headers={"X-Request-ID": "not mine"})
        made = answer.headers["x-request-id"]
        assert len(made) == 32
        assert frontend.chats[1].header("x-request-id") == made


@asynccontextmanager
async def door(**parts: Any) -> AsyncIterator[str]:
    settings = settings_for({})
    service = RouterService(FakeLog(FLEET, pick_settings_for(settings)), pick, settings, Counts())
    made = Door(build_application(service, **parts))
    port = await made.listen_tcp("127.0.0.1", 0)
    yield f"http://127.0.0.1:{port}"
    await made.close()


async def test_handlers_of_the_composition_root_and_admin_are_mounted() -> None:
    async def ready(request: web.Request) -> web.Response:
        return json_answer(b'{"ready":true}', "r", 503)

    async def fails(request: web.Request) -> web.Response:
        raise ZeroDivisionError

    admin = web.Application()
    admin.router.add_get("/dynamo/workers", ready)
    async with (
        door(handlers={"/ready": ready, "/metrics": fails}, admin=admin) as url,
        ClientSession() as session,
    ):
        for path, status in (
            ("/ready", 503),
            ("/admin/dynamo/workers", 503),
            ("/metrics", 500),
            ("/admin/x", 404),
        ):
            async with session.get(url + path) as answer:
                assert answer.status == status
                assert answer.headers["x-request-id"]
        async with session.get(url + "/metrics") as answer:
            text = await answer.text()
            assert json.loads(text)["error"]["code"] == "internal_error"
            assert "ZeroDivision" not in text


@pytest.mark.field("B-107")
async def test_health_answers_while_hundreds_of_streams_run() -> None:
    async with front() as (router, frontend):
        frontend.events, frontend.event_delay_s = 200, 0.5
        sockets = []
        body = b'{"model":"tiny-chat","messages":[],"stream":true}'
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
            writer.write(head(b"content-length: %d" % len(body)) + body)
            sockets.append((reader, writer))
        await until(lambda: len(frontend.chats) == 300)
        async with asyncio.timeout(1), router.session.get(router.url + "/health") as answer:
            assert answer.status == 200
        for _, writer in sockets:
            writer.transport.abort()
        await until(lambda: router.in_flight() == 0)
        assert len(router.log.ends) == 300


async def test_unix_socket_is_served(tmp_path: Any) -> None:
    settings = settings_for({})
    service = RouterService(FakeLog(FLEET, pick_settings_for(settings)), pick, settings, Counts())
    made = Door(build_application(service, {}))
    path = str(tmp_path / "s")
    await made.listen_unix(path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await made.close()
