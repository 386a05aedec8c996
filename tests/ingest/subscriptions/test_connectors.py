"""Only allowed addresses are dialled, after one resolution, within a limit; on real sockets of loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.subscriptions.connectors import (
    ConnectFailed,
    DirectConnector,
    SubscriptionSettings,
    connector_of,
)
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.resolver import Resolver
from projections.events.signals import Transport


class Listener:
    """Counts who connects to an address of loopback."""

    def __init__(self) -> None:
        self.peers: list[Any] = []
        self.port = 0

    async def serve(self, host: str, port: int = 0) -> asyncio.Server:
        async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.peers.append(writer.get_extra_info("peername"))
            writer.close()

        server = await asyncio.start_server(met, host, port)
        self.port = server.sockets[0].getsockname()[1]
        return server


class Ended(asyncio.Protocol):
    """A protocol that notes its connection and waits for its end."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.socket: Any = None
        self.options: dict[str, int] = {}
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.socket = transport.get_extra_info("socket")
        self.options = {
            "nodelay": self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            "keepalive": self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        }

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class Names:
    """A resolver of the test's own: answers in turn, and counts."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: str) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await listener.serve("127.0.0.1")
    yield listener
    server.close()
    await server.wait_closed()


async def failure(connector: DirectConnector, address: str) -> ConnectFailed:
    with pytest.raises(ConnectFailed) as caught:
        await connector.connect(address, Ended())
    return caught.value


async def test_a_numeric_address_is_dialled_without_the_resolver(listener: Listener) -> None:
    names = Names(["127.0.0.1"])
    protocol = Ended()
    await DirectConnector(None, Resolver(names)).connect(f"tcp://127.0.0.1:{listener.port}", protocol)
    await protocol.lost
    assert len(listener.peers) == 1
    assert names.asked == 0
    assert protocol.options["nodelay"] and protocol.options["keepalive"]


@pytest.mark.req("LOAD-25")
@pytest.mark.field("B-115")
async def test_a_listener_on_a_forbidden_address_sees_nothing() -> None:
    forbidden, allowed = Listener(), Listener()
    first = await forbidden.serve("127.0.0.2")
    second = await allowed.serve("127.0.0.1")
    try:
        connector = DirectConnector(("127.0.0.1/32",), Resolver(Names(["127.0.0.2"])))
        for host in ("127.0.0.2", "worker", "[::ffff:127.0.0.2]"):
            refused = await failure(connector, f"tcp://{host}:{forbidden.port}")
            assert refused.reason is Reason.DENIED_ADDRESS
            assert "127.0.0.2" in str(refused)
        protocol = Ended()
        await connector.connect(f"tcp://127.0.0.1:{allowed.port}", protocol)
        await protocol.lost
        assert (len(forbidden.peers), len(allowed.peers)) == (0, 1)
    finally:
        first.close()
        second.close()


@pytest.mark.req("LOAD-24")
@pytest.mark.field("B-115")
async def test_a_name_that_changes_its_answer_is_never_dialled_at_the_second() -> None:
    """The first answer is allowed, every later one is not: what was checked is what is dialled."""
    forbidden, allowed = Listener(), Listener()
    first = await allowed.serve("127.0.0.1")
    second = await forbidden.serve("127.0.0.2", allowed.port)
    try:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        connector = DirectConnector(("127.0.0.1/32",), Resolver(names))
        protocol = Ended()
        await connector.connect(f"tcp://worker:{allowed.port}", protocol)
        await protocol.lost
        assert names.asked == 1
        refused = await failure(connector, f"tcp://worker:{allowed.port}")
        assert refused.reason is Reason.DENIED_ADDRESS
        assert (len(forbidden.peers), len(allowed.peers)) == (0, 1)
    finally:
        first.close()
        second.close()


async def test_of_several_answers_only_the_allowed_are_dialled_until_one_listens(listener: Listener) -> None:
    forbidden = Listener()
    server = await forbidden.serve("127.0.0.9", listener.port)
    try:
        names = Names(["127.0.0.9", "127.0.0.3", "127.0.0.1"])
        connector = DirectConnector(("127.0.0.0/29",), Resolver(names))
        protocol = Ended()
        await connector.connect(f"tcp://worker:{listener.port}", protocol)
        await protocol.lost
        assert (len(listener.peers), len(forbidden.peers)) == (1, 0)
    finally:
        server.close()


async def test_an_ipv4_address_in_ipv6_clothes_is_dialled_as_what_it_is(listener: Listener) -> None:
    protocol = Ended()
    connector = DirectConnector(("127.0.0.0/8",), Resolver())
    await connector.connect(f"tcp://[::ffff:127.0.0.1]:{listener.port}", protocol)
    await protocol.lost
    assert len(listener.peers) == 1


async def test_nobody_listening_is_a_failed_dial() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        refused = await failure(DirectConnector(None, Resolver()), f"tcp://127.0.0.1:{port}")
    assert refused.reason is Reason.DIAL_FAILED
    assert "127.0.0.1" in str(refused)


async def test_what_is_no_address_is_told_and_cut_to_size() -> None:
    refused = await failure(DirectConnector(None, Resolver()), "ipc://" + "x" * 100_000)
    assert refused.reason is Reason.BAD_ADDRESS
    assert len(str(refused)) <= 80


async def test_names_that_do_not_resolve_are_told() -> None:
    def fails(host: str) -> list[str]:
        raise OSError("no such name")

    refused = await failure(DirectConnector(None, Resolver(fails)), "tcp://worker:1")
    assert refused.reason is Reason.NAME_UNRESOLVED


@pytest.mark.req("ZMTP-11")
@pytest.mark.looptime
async def test_a_resolver_that_hangs_is_given_up_after_the_limit() -> None:
    class Hung(Resolver):
        async def addresses(self, host: str) -> list[Any]:
            await asyncio.Event().wait()
            raise AssertionError

    begin_s = asyncio.get_running_loop().time()
    refused = await failure(DirectConnector(None, Hung()), "tcp://worker:1")
    assert refused.reason is Reason.DIAL_TIMEOUT
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(10)


@pytest.mark.looptime
async def test_a_black_hole_among_the_answers_takes_its_share_of_the_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled: list[tuple[str, float]] = []

    async def sock_connect(connection: socket.socket, target: tuple[str, int]) -> None:
        dialled.append((target[0], asyncio.get_running_loop().time()))
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", sock_connect)
    begin_s = asyncio.get_running_loop().time()
    names = Names(["10.0.0.1", "10.0.0.2"])

    class Inline(Resolver):
        async def addresses(self, host: str) -> list[Any]:
            from ipaddress import ip_address

            return [ip_address(text) for text in names(host)]

    refused = await failure(DirectConnector(None, Inline()), "tcp://worker:1")
    assert refused.reason is Reason.DIAL_TIMEOUT
    assert [(ip, round(at_s - begin_s)) for ip, at_s in dialled] == [("10.0.0.1", 0), ("10.0.0.2", 5)]
    assert asyncio.get_running_loop().time() - begin_s == pytest.approx(10)


def test_settings_name_their_connector_and_a_transport_that_is_missing_is_an_error() -> None:
    assert connector_of(SubscriptionSettings()).transport is Transport.DIRECT
    with pytest.raises(ValueError, match="direct"):
        connector_of(SubscriptionSettings(Transport.BROKER))
    with pytest.raises(ValueError):
        connector_of(SubscriptionSettings(allow=("10.0.0.0/33",)))
