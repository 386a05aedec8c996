"""How a connection to a publisher is made: one way a transport, behind one small port.

The direct way: parse the address, resolve its name once, keep the addresses that the policy
allows, dial those in order. The name is not looked up again, so DNS cannot answer differently
at check and at dial. All of it has 10 s together. Nothing is dialled that the policy does not
allow; every failure is a `ConnectFailed` with its word.

A peer that vanished without a word (power, network, half-open) is noticed by keepalive probes
of the kernel: a publisher may well be silent for hours, so silence alone means nothing.

Sources: requirement rows LOAD-24, LOAD-25, ZMTP-11, CFG-28, REL-03.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Final, Protocol

from ingest.subscriptions.addresses import Address, AddressPolicy, IpAddress, parse_address, plain_ip
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.resolver import LookupFailed, Resolver, ResolverBusy
from ingest.wire.engine_events import EngineSource
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS
from projections.events.signals import Transport

KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_EVERY_S: Final = 5
KEEPALIVE_PROBES: Final = 3


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """What subscriptions are started with; another transport or list restarts them all (REL-03).

    allow: networks that may be dialled, None for any.
    engine_sources: engines whose block events are read without a relay; only those that change restart.
    """

    transport: Transport = Transport.DIRECT
    allow: tuple[str, ...] | None = None
    engine_sources: tuple[EngineSource, ...] = ()


class ConnectFailed(Exception):
    """There is no connection. reason: the word for the log; the text is for people."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail)
        self.reason = reason


class Connector(Protocol):
    """Makes connections for subscriptions of one transport."""

    @property
    def transport(self) -> Transport:
        """What carries them."""

    async def connect(self, address: str, protocol: asyncio.BaseProtocol) -> None:
        """Connect `protocol` to a publisher's address. Raises ConnectFailed; cancel it at will."""


class DirectConnector:
    """Plain TCP from this process to the publisher."""

    transport = Transport.DIRECT

    def __init__(
        self,
        allow: tuple[str, ...] | None,
        resolver: Resolver,
        limit_s: float = KV_METRICS_LIMITS.connect_us / 1e6,
    ) -> None:
        self._policy = AddressPolicy(allow)
        self._resolver = resolver
        self._limit_s = limit_s

    async def connect(self, address: str, protocol: asyncio.BaseProtocol) -> None:
        """See Connector. limit_s covers resolution and all addresses together."""
        parsed = parse_address(address)
        if parsed is None:
            raise ConnectFailed(Reason.BAD_ADDRESS, address[:80])
        try:
            async with asyncio.timeout(self._limit_s):
                targets = await self._allowed(parsed)
                await self._dial_first(targets, parsed.port, protocol)
        except TimeoutError:
            raise ConnectFailed(Reason.DIAL_TIMEOUT) from None

    async def _allowed(self, address: Address) -> list[IpAddress]:
        """What may be dialled of an address, at least one."""
        if address.ip is not None:
            found = [address.ip]
        else:
            try:
                found = await self._resolver.addresses(address.host)
            except LookupFailed as problem:
                raise ConnectFailed(Reason.NAME_UNRESOLVED, str(problem)) from None
            except ResolverBusy:
                raise ConnectFailed(Reason.RESOLVER_BUSY) from None
        found = [plain_ip(ip) for ip in found]
        allowed = [ip for ip in found if self._policy.allows(ip)]
        if not allowed:
            raise ConnectFailed(Reason.DENIED_ADDRESS, ", ".join(map(str, found[:4])))
        return allowed

    async def _dial_first(self, targets: list[IpAddress], port: int, protocol: asyncio.BaseProtocol) -> None:
        """Dial one after the other; each but the last gets its share of the time only."""
        deadline_s = asyncio.get_running_loop().time() + self._limit_s
        for left in range(len(targets), 0, -1):
            target = targets[-left]
            share_s = (deadline_s - asyncio.get_running_loop().time()) / left
            try:
                async with asyncio.timeout(share_s if left > 1 else None):
                    return await _dial(target, port, protocol)
            except (OSError, TimeoutError) as problem:
                if left == 1:
                    if isinstance(problem, TimeoutError):
                        raise ConnectFailed(Reason.DIAL_TIMEOUT, str(target)) from None
                    raise ConnectFailed(
                        Reason.DIAL_FAILED, f"{target}: {problem.strerror or problem}"
                    ) from None
        raise AssertionError("there is at least one target")


async def _dial(ip: IpAddress, port: int, protocol: asyncio.BaseProtocol) -> None:
    """Connect to one address. Raises OSError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        _keep_alive(connection)
        await loop.sock_connect(connection, (str(ip), port))
        await loop.create_connection(lambda: protocol, sock=connection)
    except BaseException:
        connection.close()
        raise


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # a system without it still has the plain keepalive
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connector_of(settings: SubscriptionSettings) -> Connector:
    """The connector for settings. Raises ValueError for a transport that this release does not have."""
    if settings.transport is not Transport.DIRECT:
        raise ValueError(f"transport {settings.transport.label} is not supported: use direct")
    return DirectConnector(settings.allow, Resolver())
