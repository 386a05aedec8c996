"""Source `etcd3`: the same port over the library of that name. An extra, and not the default.

The library blocks, so each of its calls runs in a thread. It has no paging (its `limit`
is accepted and ignored), so a prefix is read whole, names and values in one answer, and
must fit ANSWER_BYTES_MAX. It cannot ask a stream for progress, so while a watch is quiet a
small read each PROBE_S tells whether the server still answers. Its watcher thread spins
when its stream breaks, so after every error, and at every close, watcher and channel are
thrown away: the thread then finds a stub that ends it.

A user's token goes into the metadata alone; the library's call credentials, which grpc
refuses on connections without TLS, are switched off. TLS needs a `ca_cert` here.

The one door to `etcd3`, which is pinned to 0.12.0: the watcher's stub is reached through a
private name. Sources: requirement rows ETCD-06..09, ETCD-17; docs/discovery.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import etcd3
import grpc
from etcd3 import events, exceptions, watch

from ingest.discovery.blocking_calls import BlockingLane, CallHung
from ingest.discovery.etcd_endpoints import Endpoint, endpoint_of
from ingest.discovery.settings import EtcdConnection
from ingest.discovery.source import (
    Denied,
    EndReason,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesEnded,
    NamesListed,
    ReadAt,
    SourceEvent,
    SourceFailed,
    ValuesRead,
    Watched,
    WatchesStand,
)
from ingest.wire.fleet_keys import BUCKETS
from projections.bounds import MIB
from projections.events.discovery import Keyspace

DIAL_S_MAX: Final = 3.0
CALL_S_MAX: Final = 10.0
PROBE_S: Final = 2.0
PROBE_S_MAX: Final = 3.0
ANSWER_BYTES_MAX: Final = 64 * MIB  # one whole prefix
CHANGES_MAX: Final = 1_024  # responses that wait for us; beyond it the pass ends
INSTANCES: Final = f"{BUCKETS[Keyspace.INSTANCES]}/".encode()

Result = TypeVar("Result")


class _Discarded(Exception):
    """Tells a watcher's thread that nobody needs it any more."""


class _EndedStub:
    """What a discarded watcher finds in place of its stub."""

    def Watch(self, *arguments: Any, **more: Any) -> NoReturn:
        raise _Discarded


class _Watcher(watch.Watcher):  # type: ignore[misc]  # the library has no types
    """The library's watcher, whose thread can be ended."""

    def _run(self) -> None:
        try:
            super()._run()
        except _Discarded:
            pass


class Etcd3Source:
    """Sessions on the first endpoint that answers."""

    name = "etcd"

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection
        self._endpoints = tuple(endpoint_of(text) for text in connection.endpoints)
        self._first = 0

    async def connect(self, waiting: Callable[[str], None]) -> Etcd3Session:
        """See DiscoverySource."""
        reason = EndReason.UNREACHABLE
        for turn in range(len(self._endpoints)):
            place = (self._first + turn) % len(self._endpoints)
            endpoint = self._endpoints[place]
            lane = BlockingLane("picklog-etcd3")
            try:
                client = await _on(lane, partial(_client, endpoint, self._connection), DIAL_S_MAX + 1)
            except SourceFailed as failure:
                reason = failure.reason
                continue
            self._first = place
            return Etcd3Session(client, endpoint, lane, self._pass_on)
        self._pass_on()
        raise SourceFailed(reason, f"none of {len(self._endpoints)} endpoints takes a connection")

    def _pass_on(self) -> None:
        self._first = (self._first + 1) % len(self._endpoints)


class Etcd3Session:
    """One client for one pass. See `source.Session`."""

    def __init__(
        self, client: Any, endpoint: Endpoint, lane: BlockingLane, pass_on: Callable[[], None]
    ) -> None:
        self.where = endpoint.shown
        self._client = client
        self._lane = lane
        self._pass_on = pass_on
        self._read: dict[Watched, tuple[FoundKey, ...]] = {}
        self._is_closed = False

    async def names(self, watched: Sequence[Watched]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. Values come with the names and are kept for `values`."""
        for one in watched:
            try:
                answer = await self._call(partial(self._client.get_prefix_response, one.prefix))
            except SourceFailed as failure:
                if failure.reason is not EndReason.PERMISSION:
                    raise
                yield Denied(one)
                continue
            found = tuple(_found(kv.key, kv.mod_revision, kv.value) for kv in answer.kvs)
            if found:
                self._read[one] = found
                yield NamesListed(one, tuple(key.key for key in found))
            yield NamesEnded(one, answer.header.revision)

    async def values(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session."""
        for at in listed:
            found = self._read.pop(at.watched, ())
            if found:
                yield ValuesRead(at.watched, found)

    async def changes(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session."""
        arrived: asyncio.Queue[tuple[Watched, Any]] = asyncio.Queue(CHANGES_MAX)
        loop = asyncio.get_running_loop()
        try:
            for at in listed:
                callback = partial(self._heard, loop, arrived, at.watched)
                await self._call(
                    partial(
                        self._client.add_watch_prefix_callback,
                        at.watched.prefix,
                        callback,
                        start_revision=at.revision + 1,
                    )
                )
            yield WatchesStand()
            while True:
                try:
                    async with asyncio.timeout(PROBE_S):
                        watched, said = await arrived.get()
                except TimeoutError:
                    await self._call(partial(self._client.get_response, "v1/"), PROBE_S_MAX)
                    continue
                if isinstance(said, BaseException):
                    self._pass_on()
                    raise _failure(said)
                if said.events:
                    yield KeysChanged(watched, tuple(map(_change, said.events)))
        finally:
            self._discard_watcher()

    async def siblings(self, namespace: str, limit: int) -> tuple[str, ...]:
        """See Session. Reads all names with this stem: the library cannot read fewer."""
        read = partial(self._client.get_prefix_response, INSTANCES + namespace.encode(), keys_only=True)
        try:
            answer = await self._call(read)
        except SourceFailed as failure:
            if failure.reason is EndReason.PERMISSION:
                return ()
            raise
        names = {kv.key[len(INSTANCES) :].partition(b"/")[0].decode(errors="replace") for kv in answer.kvs}
        return tuple(sorted(names - {namespace})[:limit])

    async def close(self) -> None:
        """See Session."""
        if not self._is_closed:
            self._is_closed = True
            self._discard_watcher()
            await BlockingLane("picklog-etcd3-close").call(self._client.close, CALL_S_MAX)

    def _heard(
        self,
        loop: asyncio.AbstractEventLoop,
        arrived: asyncio.Queue[tuple[Watched, Any]],
        watched: Watched,
        said: Any,
    ) -> None:
        """The library's callback, in its thread: a response, or the error that ended the stream."""
        if isinstance(said, BaseException):
            self._discard_watcher()  # before its thread asks for a stream again

        def take() -> None:
            if not arrived.full():
                arrived.put_nowait((watched, said))
            else:  # the oldest gives way to the end of the pass: nothing may be left out silently
                arrived.get_nowait()
                arrived.put_nowait((watched, SourceFailed(EndReason.CANCELLED, "we fell behind the watch")))

        try:
            loop.call_soon_threadsafe(take)
        except RuntimeError:  # the loop is closed: nobody listens any more
            pass

    def _discard_watcher(self) -> None:
        self._client.watcher._watch_stub = _EndedStub()

    async def _call(self, function: Callable[[], Result], deadline_s: float = CALL_S_MAX) -> Result:
        try:
            return await _on(self._lane, function, deadline_s)
        except SourceFailed as failure:
            if failure.reason in (EndReason.SILENT, EndReason.STREAM):
                self._pass_on()
            raise


async def _on(lane: BlockingLane, function: Callable[[], Result], deadline_s: float) -> Result:
    """Run in the lane; the library's and grpc's exceptions become SourceFailed."""
    try:
        return await lane.call(function, deadline_s)
    except CallHung as problem:
        raise SourceFailed(EndReason.SILENT, "no answer") from problem
    except (exceptions.Etcd3Exception, grpc.RpcError, OSError, ValueError) as problem:
        raise _failure(problem) from problem


def _client(endpoint: Endpoint, connection: EtcdConnection) -> Any:
    """A client whose server has answered. Blocks."""
    host, _, port = endpoint.shown.rpartition(":")
    tls, auth = connection.tls, connection.auth
    options = {"grpc.max_receive_message_length": ANSWER_BYTES_MAX, "grpc.enable_http_proxy": 0}
    if tls is not None and tls.server_name:
        options["grpc.ssl_target_name_override"] = tls.server_name  # type: ignore[assignment]
    if endpoint.is_tls and (tls is None or tls.ca_cert is None):
        raise ValueError("the library needs a ca_cert for TLS")
    client = etcd3.client(
        host=host,
        port=int(port),
        ca_cert=tls.ca_cert if tls is not None else None,
        cert_cert=tls.client_cert if tls is not None else None,
        cert_key=tls.client_key if tls is not None else None,
        timeout=DIAL_S_MAX,
        user=auth.username if auth is not None else None,
        password=auth.password if auth is not None else None,
        grpc_options=options.items(),
    )
    try:
        client.call_credentials = None  # the token is in the metadata
        client.watcher = _Watcher(client.watcher._watch_stub, timeout=CALL_S_MAX, metadata=client.metadata)
        try:
            client.get_response("v1/")
        except grpc.RpcError as refusal:
            if refusal.code() is not grpc.StatusCode.PERMISSION_DENIED:  # that is an answer too
                raise
    except BaseException:
        client.close()
        raise
    client.timeout = CALL_S_MAX
    return client


def _failure(problem: BaseException) -> SourceFailed:
    if isinstance(problem, SourceFailed):
        return problem
    return SourceFailed(_reason_of(problem), type(problem).__name__)


def _reason_of(problem: BaseException) -> EndReason:
    if isinstance(problem, exceptions.RevisionCompactedError):
        return EndReason.COMPACTED
    if isinstance(problem, exceptions.ConnectionTimeoutError | exceptions.WatchTimedOut):
        return EndReason.SILENT
    code = problem.code() if isinstance(problem, grpc.RpcError) else None
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return EndReason.PERMISSION
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT):
        return EndReason.UNAUTHENTICATED
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return EndReason.COMPACTED
    return EndReason.STREAM


def _found(key: bytes, revision: int, value: bytes) -> FoundKey:
    return FoundKey(key, revision, value, len(value))


def _change(event: Any) -> FoundKey | GoneKey:
    if isinstance(event, events.DeleteEvent):
        return GoneKey(event.key, event.mod_revision)
    return _found(event.key, event.mod_revision, event.value)
