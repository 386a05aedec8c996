"""Source `etcd`: dials the endpoints, logs in, and gives a session for each pass.

Each endpoint has a bounded time to take the connection, so a dead first one costs at most
that; the endpoint that failed last is tried last. A user's token is fetched anew for each
pass: an expired one therefore ends a pass at worst, and the next one has a fresh one.

Sources: requirement rows ETCD-12, ETCD-17, ETCD-18; field report B-122.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio

from ingest.discovery.blocking_calls import BlockingLane, CallHung
from ingest.discovery.etcd_endpoints import Endpoint, endpoint_of, options_for, tls_material
from ingest.discovery.etcd_session import EtcdLimits, EtcdSession
from ingest.discovery.settings import EtcdConnection
from ingest.discovery.source import EndReason, SourceFailed


class EtcdSource:
    """Sessions on a list of endpoints. The endpoint that failed last is tried last."""

    name = "etcd"

    def __init__(self, connection: EtcdConnection, limits: EtcdLimits | None = None) -> None:
        self._connection = connection
        self._limits = limits or EtcdLimits()
        self._endpoints = tuple(endpoint_of(text) for text in connection.endpoints)
        self._first = 0
        self._files = BlockingLane("picklog-etcd-tls")

    async def connect(self, waiting: Callable[[str], None]) -> EtcdSession:
        """A session on the first endpoint that answers, logged in. See DiscoverySource."""
        credentials = await self._credentials()
        count = len(self._endpoints)
        each_s = min(self._limits.dial_s, self._limits.dials_s / count)
        for turn in range(count):
            place = (self._first + turn) % count
            channel = self._channel(self._endpoints[place], credentials)
            if await _dialled(channel, each_s):
                self._first = place
                session = EtcdSession(channel, self._endpoints[place], self._limits, self._pass_on)
                try:
                    await session.log_in(self._connection)
                except BaseException:
                    await session.close()
                    raise
                return session
        raise SourceFailed(EndReason.UNREACHABLE, f"none of {count} endpoints takes a connection")

    def _pass_on(self) -> None:
        """The next pass begins with the endpoint after the current one."""
        self._first = (self._first + 1) % len(self._endpoints)

    def _channel(self, endpoint: Endpoint, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        options = options_for(self._connection.tls)
        if endpoint.is_tls:
            return grpc.aio.secure_channel(endpoint.target, credentials, options=options)
        return grpc.aio.insecure_channel(endpoint.target, options=options)

    async def _credentials(self) -> grpc.ChannelCredentials | None:
        if not self._endpoints[0].is_tls:
            return None
        tls = self._connection.tls
        try:
            material = await self._files.call(lambda: tls_material(tls), self._limits.call_s)
        except (OSError, ValueError, CallHung) as problem:
            text = f"TLS files cannot be read: {type(problem).__name__}"
            raise SourceFailed(EndReason.UNREACHABLE, text) from problem
        return grpc.ssl_channel_credentials(material.roots, material.key, material.chain)


async def _dialled(channel: grpc.aio.Channel, limit_s: float) -> bool:
    """Whether the channel is ready within the limit. Closes it where it is not."""
    try:
        async with asyncio.timeout(limit_s):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in (
                    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                    grpc.ChannelConnectivity.SHUTDOWN,
                ):
                    break
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
            else:
                return True
    except TimeoutError:
        pass
    except BaseException:
        await channel.close(grace=None)
        raise
    await channel.close(grace=None)
    return False
