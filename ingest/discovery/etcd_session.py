"""One pass over one etcd channel: paged ranges, then one watch stream for all prefixes.

Read-only by construction: the channel gets three callables, Range, Watch and Authenticate,
and no message exists that could change a store. Ranges are paged at a pinned revision. Each
prefix is a watch with an id of its own on the one stream.

A half-open server (frozen, or behind a firewall that drops) keeps its connection and says
nothing. So after `quiet_s` without any answer on the stream a progress request is sent,
again each `ask_s`, and after `asks_max` unanswered ones the pass ends. Misses are counted
and not time, so that a pause of this process is not taken for one of the server's.

The stream says `hasleader`, so a member that lost its leader ends it instead of serving
silence. Three kinds of refusal are told apart: a compacted start revision, a cancelled
watch with its reason, and an error of the stream.

grpc's exceptions end here, as `SourceFailed`.
Sources: requirement rows ETCD-01..12; field reports B-119, B-121, B-123.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from ingest.discovery import etcd_messages as messages
from ingest.discovery.etcd_endpoints import Endpoint
from ingest.discovery.etcd_refusals import (
    TEXT_SHOWN_MAX,
    is_above_ceiling,
    is_permission,
    reason_of,
    shown,
)
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
from projections.bounds import RECORD_VALUE_BYTES_MAX
from projections.events.discovery import Keyspace

INSTANCES: Final = f"{BUCKETS[Keyspace.INSTANCES]}/".encode()


@dataclass(frozen=True, slots=True)
class EtcdLimits:
    """Waits in seconds and sizes of one session. Not settings; tests make them smaller."""

    dial_s: float = 3.0  # one endpoint
    dials_s: float = 20.0  # all endpoints of a pass, less than the seed's limit
    call_s: float = 10.0  # one unary call
    page_keys: int = 1_000  # keys of one range answer
    quiet_s: float = 2.0
    ask_s: float = 1.0
    asks_max: int = 3


class EtcdSession:
    """One channel. See `source.Session` for what the steps promise."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        endpoint: Endpoint,
        limits: EtcdLimits,
        pass_on: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._limits = limits
        self._pass_on = pass_on
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._range = _unary(channel, messages.RANGE)
        self._authenticate = _unary(channel, messages.AUTHENTICATE)
        path, request, answer = messages.WATCH
        self._watch = channel.stream_stream(
            path,
            request_serializer=request.SerializeToString,
            response_deserializer=messages.decoder_of(answer),
        )
        self._filled: set[Watched] = set()  # prefixes that listed any name
        self.where = endpoint.shown

    async def log_in(self, connection: EtcdConnection) -> None:
        """Fetch a token for this pass where a user is configured. Raises SourceFailed."""
        auth = connection.auth
        if auth is None:
            return
        request = messages.AuthenticateRequest(name=auth.username, password=auth.password)
        try:
            answer = await self._authenticate(request, timeout=self._limits.call_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return  # users are not switched on in this etcd: it needs no token
            self._fail(error)
        self._metadata = (("token", self._readable(answer).token),)

    async def names(self, watched: Sequence[Watched]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. Each prefix at the revision of its own first answer."""
        for one in watched:
            revision = 0
            try:
                async for page, page_revision in self._pages(one, 0, keys_only=True):
                    revision = revision or page_revision
                    if page:
                        self._filled.add(one)
                        yield NamesListed(one, tuple(found.key for found in page))
            except grpc.aio.AioRpcError as error:
                if is_permission(error):
                    yield Denied(one)
                    continue
                self._fail(error)
            yield NamesEnded(one, revision)

    async def values(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session. Pinned to the revision of the listing."""
        for at in listed:
            if at.watched not in self._filled:
                continue
            try:
                async for page, _ in self._pages(at.watched, at.revision, keys_only=False):
                    if page:
                        yield ValuesRead(at.watched, page)
            except grpc.aio.AioRpcError as error:
                self._fail(error)

    async def changes(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """See Session."""
        call = self._watch(metadata=(*self._metadata, ("hasleader", "true")))
        reading: asyncio.Task[Any] | None = None
        pending = set(range(1, len(listed) + 1))
        try:
            for watch_id, at in enumerate(listed, 1):
                await call.write(_create(watch_id, at))
            while True:
                reading = reading or asyncio.ensure_future(call.read())
                answer = await self._answer(call, reading)
                reading = None
                self._refuse_if_over(answer, listed)
                if answer.created:
                    pending.discard(answer.watch_id)
                    if not pending:
                        yield WatchesStand()
                if answer.events:
                    yield KeysChanged(listed[answer.watch_id - 1].watched, _changes(answer.events))
        except grpc.aio.AioRpcError as error:
            self._fail(error)
        except asyncio.InvalidStateError as error:  # writing to a call that just ended
            self._pass_on()
            raise SourceFailed(EndReason.STREAM, "the stream ended") from error
        finally:
            call.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def siblings(self, namespace: str, limit: int) -> tuple[str, ...]:
        """See Session. One small range for each sibling, jumping over its keys."""
        stem = INSTANCES + namespace.encode()
        start, end = stem, _end_of(stem)
        found: list[str] = []
        for _ in range(limit + 1):
            request = messages.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
            try:
                answer = await self._unary_range(request)
            except grpc.aio.AioRpcError as error:
                if is_permission(error):
                    return ()
                self._fail(error)
            if not answer.kvs:
                break
            name = answer.kvs[0].key[len(INSTANCES) :].partition(b"/")[0]
            text = name.decode(errors="replace")
            if text != namespace and len(found) < limit:
                found.append(text)
            start = INSTANCES + name + b"0"  # the byte after "/": past all keys of this name
        return tuple(found)

    async def close(self) -> None:
        """See Session."""
        await self._channel.close(grace=None)

    # ranges

    async def _pages(
        self, watched: Watched, revision: int, *, keys_only: bool
    ) -> AsyncIterator[tuple[tuple[FoundKey, ...], int]]:
        """Pages of a prefix with the store's revision; all as of `revision`, 0 for the newest.

        A page that would be above the message ceiling is asked for again with fewer keys; a
        single key above it is given without its value.
        """
        start = watched.prefix.encode()
        end = _end_of(start)
        limit = self._limits.page_keys
        only_names = keys_only
        while True:
            request = messages.RangeRequest(
                key=start, range_end=end, limit=limit, revision=revision, keys_only=only_names
            )
            try:
                answer = await self._unary_range(request)
            except grpc.aio.AioRpcError as error:
                if not is_above_ceiling(error) or (only_names and limit == 1):
                    raise
                limit, only_names = max(1, limit // 4), keys_only or limit == 1
                continue
            revision = revision or answer.header.revision
            unread = only_names and not keys_only
            yield tuple(_found(kv, unread=unread) for kv in answer.kvs), revision
            if not answer.more or not answer.kvs:
                return
            start = answer.kvs[-1].key + b"\0"
            only_names = keys_only

    async def _unary_range(self, request: Any) -> Any:
        answer = await self._range(request, timeout=self._limits.call_s, metadata=self._metadata)
        return self._readable(answer)

    def _readable(self, answer: Any) -> Any:
        if answer is None:
            self._fail_stream()
        return answer

    # the watch stream

    async def _answer(self, call: Any, reading: asyncio.Task[Any]) -> Any:
        """The next answer; asks for one when the stream is quiet. Raises SourceFailed."""
        wait_s = self._limits.quiet_s
        for _ in range(self._limits.asks_max + 1):
            done, _ = await asyncio.wait({reading}, timeout=wait_s)
            if done:
                if reading.cancelled():  # the channel was closed under the call
                    self._fail_stream()
                answer = reading.result()
                if answer is grpc.aio.EOF or answer is None:
                    self._fail_stream()
                return answer
            progress = messages.WatchRequest(progress_request=messages.WatchProgressRequest())
            try:
                async with asyncio.timeout(self._limits.ask_s):
                    await call.write(progress)
            except TimeoutError:
                pass  # counts as unanswered like any other
            wait_s = self._limits.ask_s
        self._pass_on()
        raise SourceFailed(EndReason.SILENT, "the server keeps the connection and answers nothing")

    def _refuse_if_over(self, answer: Any, listed: Sequence[ReadAt]) -> None:
        """Raise SourceFailed where the answer ends a watch or cannot belong to ours."""
        if answer.compact_revision > 0:
            raise SourceFailed(EndReason.COMPACTED, "the watched revision was compacted")
        if answer.canceled:
            reason = EndReason.PERMISSION if "permission" in answer.cancel_reason else EndReason.CANCELLED
            if reason is EndReason.CANCELLED:
                self._pass_on()
            raise SourceFailed(reason, answer.cancel_reason[:TEXT_SHOWN_MAX])
        is_ours = 1 <= answer.watch_id <= len(listed)
        if not is_ours:
            if answer.created or answer.events:
                raise SourceFailed(EndReason.CANCELLED, "the server answers a watch that was not asked for")
            return
        if answer.created and answer.header.revision < listed[answer.watch_id - 1].revision:
            # The channel may have dialled anew: this is another state of the store than was read.
            raise SourceFailed(EndReason.CANCELLED, "the store counts from a smaller revision than was read")

    def _fail_stream(self) -> NoReturn:
        self._pass_on()
        raise SourceFailed(EndReason.STREAM, "the stream ended or made no sense")

    def _fail(self, error: grpc.aio.AioRpcError) -> NoReturn:
        """Translate; moves on to the next endpoint unless the fault is ours or the log's."""
        reason = reason_of(error)
        if reason not in (EndReason.COMPACTED, EndReason.UNAUTHENTICATED, EndReason.PERMISSION):
            self._pass_on()
        raise SourceFailed(reason, shown(error)) from error


def _unary(channel: grpc.aio.Channel, method: tuple[str, Any, Any]) -> Any:
    path, request, answer = method
    return channel.unary_unary(
        path, request_serializer=request.SerializeToString, response_deserializer=messages.decoder_of(answer)
    )


def _create(watch_id: int, at: ReadAt) -> Any:
    start = at.watched.prefix.encode()
    request = messages.WatchCreateRequest(
        key=start,
        range_end=_end_of(start),
        start_revision=at.revision + 1,
        watch_id=watch_id,
        fragment=True,  # large revisions come in parts below the message ceiling
    )
    return messages.WatchRequest(create_request=request)


def _end_of(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix. Prefixes are text: no byte of 255 ends them."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _found(kv: Any, *, unread: bool) -> FoundKey:
    if unread:
        return FoundKey(kv.key, kv.mod_revision, None, RECORD_VALUE_BYTES_MAX + 1)
    return FoundKey(kv.key, kv.mod_revision, kv.value, len(kv.value))


def _changes(events: Any) -> tuple[FoundKey | GoneKey, ...]:
    return tuple(
        GoneKey(event.kv.key, event.kv.mod_revision)
        if event.type == messages.EVENT_DELETE
        else _found(event.kv, unread=False)
        for event in events
    )
