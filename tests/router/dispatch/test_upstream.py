"""A backend's address and its idle connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from router.dispatch.connection import ConnectFailed, UpstreamConnection
from router.dispatch.upstream import IDLE_S_MAX, Address, Upstream
from tests.live.certificates import Authority
from tests.router.backend_peer import REQUEST, SMALL, answering, read_all, serving
from tests.router.rig import until


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h", ("h", 80, False, "", b"h")),
        ("https://h/a/", ("h", 443, True, "/a", b"h")),
        ("http://127.0.0.1:8000/x", ("127.0.0.1", 8000, False, "/x", b"127.0.0.1:8000")),
        ("http://[::1]:80", ("::1", 80, False, "", b"[::1]")),
        ("http://[::1]:81", ("::1", 81, False, "", b"[::1]:81")),
    ],
)
def test_addresses_come_from_urls(url: str, address: tuple[object, ...]) -> None:
    assert Address.of_url(url) == address


@pytest.mark.parametrize("url", ["h:80", "ftp://h", "http://", "http://h:99999"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Address.of_url(url)


async def test_refused_and_late_connections_fail_before_anything_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url(f"http://127.0.0.1:{port}")).connect(5)
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url("http://name.invalid")).connect(5)
    with pytest.raises(ConnectFailed):
        await Upstream(Address.of_url(f"http://127.0.0.1:{port}")).connect(0.0)


async def test_kept_connection_that_the_peer_closed_is_not_taken() -> None:
    async with serving(answering(SMALL, then_close=True)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        assert await read_all(connection) == b"ok"
        upstream.give_back(connection)
        await until(lambda: not connection.looks_alive())
        assert upstream.take_idle() is None
        assert upstream.idle == 0


@pytest.mark.field("B-103")
async def test_end_of_stream_that_the_loop_has_not_seen_yet_is_seen_on_the_socket() -> None:
    """The loop lags behind: the peer's close is in the socket, not yet in a callback (B-103)."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    upstream = Upstream(Address.of_url("http://127.0.0.1:1"))
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), sock=ours)
    theirs.sendall(SMALL)
    connection.send(REQUEST, b"")
    assert await read_all(connection) == b"ok"
    upstream.give_back(connection)
    assert connection.looks_alive()
    theirs.close()
    assert not connection.looks_alive()
    assert upstream.take_idle() is None


async def test_old_idle_connections_are_not_taken() -> None:
    async with serving(answering(SMALL)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        await read_all(connection)
        upstream.give_back(connection)
        connection.idle_since_s -= IDLE_S_MAX + 1
        assert upstream.take_idle() is None


async def test_retired_upstream_keeps_nothing() -> None:
    async with serving(answering(SMALL)) as upstream:
        connection = await upstream.connect(5)
        connection.send(REQUEST, b"")
        await read_all(connection)
        upstream.retire()
        upstream.give_back(connection)
        assert upstream.idle == 0


async def test_backend_behind_tls_is_checked_by_name_and_spoken_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(SMALL)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = Address.of_url(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    trusting = Upstream(address, ssl.create_default_context(cafile=str(authority.ca)))
    for _ in range(2):
        connection = trusting.take_idle() or await trusting.connect(5)
        connection.send(REQUEST, b"")
        assert await read_all(connection) == b"ok"
        trusting.give_back(connection)
    trusting.retire()
    with pytest.raises(ConnectFailed):
        await Upstream(address).connect(5)
    server.close()
