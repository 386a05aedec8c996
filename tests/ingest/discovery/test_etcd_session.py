"""One pass over a fake etcd: paging, the watch stream, silence, and every kind of refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ingest.discovery import etcd_messages as messages
from ingest.discovery.etcd_session import EtcdLimits, EtcdSession
from ingest.discovery.etcd_source import EtcdSource
from ingest.discovery.settings import EtcdAuth, EtcdConnection
from ingest.discovery.source import Denied, EndReason, KeysChanged, SourceFailed, WatchesStand
from tests.ingest.discovery.fake_etcd import FakeEtcd, hang
from tests.source_suite import WATCHED, Reading, read_all

DISCOVERY = Path(__file__).parents[3] / "ingest" / "discovery"
QUICK = EtcdLimits(quiet_s=0.05, ask_s=0.05, asks_max=3, call_s=5.0)


@pytest.fixture
async def fake() -> AsyncIterator[FakeEtcd]:
    one = FakeEtcd()
    one.endpoint = await one.start()  # type: ignore[attr-defined]
    yield one
    await one.stop()
    assert one.forbidden == []


async def session_on(fake: FakeEtcd, limits: EtcdLimits = QUICK, auth: EtcdAuth | None = None) -> EtcdSession:
    source = EtcdSource(EtcdConnection((fake.endpoint,), auth=auth), limits)  # type: ignore[attr-defined]
    return await source.connect(lambda what: None)


async def failure_of(session: EtcdSession, reading: Reading) -> SourceFailed:
    async def follow() -> None:
        async for _ in session.changes(reading.listed):
            pass

    with pytest.raises(SourceFailed) as failure:
        await asyncio.wait_for(follow(), 20)
    await session.close()
    return failure.value


async def test_ranges_are_paged_and_pinned_to_the_first_answers_revision(fake: FakeEtcd) -> None:
    fake.keys = {f"v1/instances/prod/b/generate/{n:02}".encode(): b"x" for n in range(7)}
    session = await session_on(fake, EtcdLimits(page_keys=3))
    reading = await read_all(session, WATCHED[:1])
    assert len(reading.values) == 7
    names, values = fake.requests[:3], fake.requests[3:]
    assert [request.keys_only for request in fake.requests] == [True] * 3 + [False] * 3
    assert [request.revision for request in names] == [0, 7, 7]
    assert [request.revision for request in values] == [7, 7, 7]
    assert [request.limit for request in fake.requests] == [3] * 6
    assert values[1].key == b"v1/instances/prod/b/generate/02\x00"
    await session.close()


@pytest.mark.req("ETCD-03", "ETCD-06")
async def test_one_stream_carries_a_watch_for_every_prefix_one_revision_after_its_listing(
    fake: FakeEtcd,
) -> None:
    session = await session_on(fake)
    reading = await read_all(session, WATCHED)
    events = session.changes(reading.listed)
    assert await anext(events) == WatchesStand()
    created = [request.create_request for request in fake.watches]
    assert [request.key.decode() for request in created] == [one.prefix for one in WATCHED]
    assert [request.range_end.decode() for request in created] == [one.prefix[:-1] + "0" for one in WATCHED]
    assert [request.start_revision for request in created] == [8] * 4
    assert [request.watch_id for request in created] == [1, 2, 3, 4]
    assert len(fake.metadata) == 1
    assert fake.metadata[0]["hasleader"] == "true"
    await events.aclose()
    await session.close()


@pytest.mark.req("ETCD-17")
async def test_token_goes_with_the_watch_and_never_without_a_user(fake: FakeEtcd) -> None:
    for auth, token in ((EtcdAuth("reader", "secret"), "token-1"), (None, None)):
        session = await session_on(fake, auth=auth)
        events = session.changes((await read_all(session, WATCHED)).listed)
        await anext(events)
        assert fake.metadata.pop().get("token") == token
        await events.aclose()
        await session.close()


async def test_quiet_stream_is_asked_for_progress_and_stays(fake: FakeEtcd) -> None:
    session = await session_on(fake)
    events = session.changes((await read_all(session, WATCHED)).listed)
    await anext(events)
    waiting = asyncio.ensure_future(anext(events))
    asked = asyncio.Event()
    healthy = fake.create_and_answer

    async def counting(request: Any) -> list[bytes]:
        if len(fake.watches) >= 4 + 10:
            asked.set()
        return await healthy(request)

    fake.watch_script = counting
    await asyncio.wait_for(asked.wait(), 20)
    assert not waiting.done()
    assert all(request.HasField("progress_request") for request in fake.watches[4:])
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await session.close()


@pytest.mark.field("B-121")
async def test_server_that_answers_nothing_is_silent_after_all_asks(fake: FakeEtcd) -> None:
    fake.watch_script = hang
    session = await session_on(fake)
    failure = await failure_of(session, await read_all(session, WATCHED))
    assert failure.reason is EndReason.SILENT


@pytest.mark.field("B-119")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"watch_id": 1, "created": True, "compact_revision": 9, "canceled": True}, EndReason.COMPACTED),
        ({"watch_id": 2, "compact_revision": 9, "canceled": True}, EndReason.COMPACTED),
        (
            {
                "watch_id": -1,
                "created": True,
                "canceled": True,
                "cancel_reason": "etcdserver: permission denied",
            },
            EndReason.PERMISSION,
        ),
        ({"watch_id": 3, "canceled": True, "cancel_reason": "etcdserver: no leader"}, EndReason.CANCELLED),
        ({"watch_id": 9, "created": True}, EndReason.CANCELLED),
        ({"watch_id": 0, "events": [{"type": 0}]}, EndReason.CANCELLED),
        ({"watch_id": -1, "events": [{"type": 0}]}, EndReason.CANCELLED),
    ],
)
async def test_answer_that_ends_a_watch_ends_the_pass(
    fake: FakeEtcd, fields: dict[str, Any], reason: EndReason
) -> None:
    async def refuse(request: Any) -> list[bytes]:
        return [fake.response(**fields)]

    fake.watch_script = refuse
    session = await session_on(fake)
    failure = await failure_of(session, await read_all(session, WATCHED))
    assert failure.reason is reason


async def test_watch_on_a_store_that_counts_from_a_smaller_revision_ends_the_pass(fake: FakeEtcd) -> None:
    async def restored(request: Any) -> list[bytes]:
        return [fake.response(revision=3, watch_id=1, created=True)]

    fake.watch_script = restored
    session = await session_on(fake)
    failure = await failure_of(session, await read_all(session, WATCHED))
    assert (failure.reason, failure.detail) == (
        EndReason.CANCELLED,
        "the store counts from a smaller revision than was read",
    )


@pytest.mark.req("MEM-08")
@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x08", bytes(64), b"\x0a\x7f"])
async def test_bytes_that_are_no_answer_end_the_pass(fake: FakeEtcd, garbage: bytes) -> None:
    async def broken(request: Any) -> list[bytes]:
        return [garbage]

    fake.watch_script = broken
    session = await session_on(fake)
    failure = await failure_of(session, await read_all(session, WATCHED))
    assert failure.reason in (EndReason.STREAM, EndReason.CANCELLED)


async def test_server_that_goes_ends_the_pass_as_a_stream(fake: FakeEtcd) -> None:
    session = await session_on(fake)
    reading = await read_all(session, WATCHED)
    events = session.changes(reading.listed)
    await anext(events)
    await fake.stop()
    with pytest.raises(SourceFailed) as failure:
        await asyncio.wait_for(anext(events), 20)
    assert failure.value.reason is EndReason.STREAM
    await session.close()


async def test_events_are_given_with_their_prefix_and_kind(fake: FakeEtcd) -> None:
    async def one_of_each(request: Any) -> list[bytes]:
        answers = await fake.create_and_answer(request)
        if request.create_request.watch_id == 4:
            kv = {"key": b"v1/mdc/prod/x", "mod_revision": 9, "value": b"\xff"}
            put, gone = {"type": 0, "kv": kv}, {"type": 1, "kv": {**kv, "mod_revision": 10}}
            answers.append(fake.response(watch_id=2, events=[put, gone]))
        return answers

    fake.watch_script = one_of_each
    session = await session_on(fake)
    events = session.changes((await read_all(session, WATCHED)).listed)
    assert await anext(events) == WatchesStand()
    changed = await anext(events)
    assert isinstance(changed, KeysChanged)
    assert changed.watched == WATCHED[1]
    assert [tuple(change) for change in changed.changes] == [
        (b"v1/mdc/prod/x", 9, b"\xff", 1),
        (b"v1/mdc/prod/x", 10),
    ]
    await events.aclose()
    await session.close()


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", EndReason.UNAUTHENTICATED),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", EndReason.UNAUTHENTICATED),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            "etcdserver: required revision is compacted",
            EndReason.COMPACTED,
        ),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", EndReason.STREAM),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", EndReason.STREAM),
    ],
)
async def test_refused_range_ends_the_pass_with_etcds_own_words(
    fake: FakeEtcd, code: grpc.StatusCode, text: str, reason: EndReason
) -> None:
    session = await session_on(fake)
    fake.range_fault, fake.range_text = code, text
    with pytest.raises(SourceFailed) as failure:
        await read_all(session, WATCHED)
    assert failure.value.reason is reason
    assert failure.value.detail == f"{code.name} {text}"
    await session.close()


async def test_permission_refused_on_a_range_is_denied_and_the_next_prefix_is_asked(fake: FakeEtcd) -> None:
    session = await session_on(fake)
    fake.range_fault = grpc.StatusCode.PERMISSION_DENIED
    events = [event async for event in session.names(WATCHED)]
    assert events == [Denied(one) for one in WATCHED]
    await session.close()


@pytest.mark.req("ETCD-01")
def test_sources_of_discovery_name_no_call_that_writes() -> None:
    """The fake refuses what is called; this refuses what could be."""
    writing = ("Put", "DeleteRange", "Txn", "Compact", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive")
    for path in DISCOVERY.glob("etcd_*.py"):
        text = path.read_text()
        assert not [word for word in writing if f"/{word}" in text or f"{word}Request" in text], path
    used = (DISCOVERY / "etcd3_adapter.py").read_text()
    assert not [word for word in (".put(", ".delete(", ".transaction(", ".lease(", ".lock(") if word in used]
    methods = {messages.RANGE[0], messages.WATCH[0], messages.AUTHENTICATE[0]}
    texts = [path.read_text() for path in DISCOVERY.glob("*.py")]
    assert sum(text.count('"/etcdserverpb.') for text in texts) == len(methods) == 3
