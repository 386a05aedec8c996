"""What every source of records promises, as tests: each source's own tests inherit them.

A subclass gives two fixtures: `store`, through which the test writes as a worker would, and
`source`, the reader under test. The tests know nothing of how either works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import pytest

from ingest.discovery.source import (
    DiscoverySource,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesEnded,
    NamesListed,
    ReadAt,
    Session,
    ValuesRead,
    Watched,
    WatchesStand,
)
from projections.events.discovery import Keyspace

PATIENCE_S = 20.0
NAMESPACE = "prod"
WATCHED = tuple(Watched(keyspace, NAMESPACE) for keyspace in Keyspace)
INSTANCES = WATCHED[0]


class Store(Protocol):
    """The writing side of a test."""

    async def put(self, key: str, value: bytes) -> None: ...

    async def delete(self, key: str) -> None: ...


class Reading:
    """What one pass has read: names, values, and where its watches are to begin."""

    def __init__(self) -> None:
        self.names: dict[Watched, list[str]] = {}
        self.values: dict[str, bytes | None] = {}
        self.listed: list[ReadAt] = []


async def connected(source: DiscoverySource) -> Session:
    return await asyncio.wait_for(source.connect(lambda what: None), PATIENCE_S)


async def read_names(session: Session, watched: Sequence[Watched]) -> Reading:
    reading = Reading()
    async for event in session.names(watched):
        match event:
            case NamesListed(one, keys):
                reading.names.setdefault(one, []).extend(key.decode() for key in keys)
            case NamesEnded(one, revision):
                reading.listed.append(ReadAt(one, revision))
    return reading


async def read_all(session: Session, watched: Sequence[Watched]) -> Reading:
    reading = await read_names(session, watched)
    async for event in session.values(reading.listed):
        assert isinstance(event, ValuesRead)
        reading.values.update((found.key.decode(), found.value) for found in event.found)
    return reading


class Following:
    """The changes of a session, waited for with patience."""

    def __init__(self, session: Session, reading: Reading) -> None:
        self._events = session.changes(reading.listed)
        self._pending: list[tuple[Watched, FoundKey | GoneKey]] = []

    async def stands(self) -> None:
        event = await asyncio.wait_for(anext(self._events), PATIENCE_S)
        while not isinstance(event, WatchesStand):
            self._take(event)
            event = await asyncio.wait_for(anext(self._events), PATIENCE_S)

    async def next(self) -> tuple[Watched, FoundKey | GoneKey]:
        while not self._pending:
            self._take(await asyncio.wait_for(anext(self._events), PATIENCE_S))
        return self._pending.pop(0)

    async def put(self) -> tuple[str, bytes | None]:
        _, change = await self.next()
        assert isinstance(change, FoundKey)
        return change.key.decode(), change.value

    async def gone(self) -> str:
        _, change = await self.next()
        assert isinstance(change, GoneKey)
        return change.key.decode()

    async def close(self) -> None:
        await self._events.aclose()

    def _take(self, event: object) -> None:
        if isinstance(event, KeysChanged):
            self._pending += [(event.watched, change) for change in event.changes]


class SourceSuite:
    """Inherit, and define the fixtures `store` and `source`."""

    async def test_empty_store_ends_the_listing_of_every_prefix(self, source: DiscoverySource) -> None:
        session = await connected(source)
        reading = await read_all(session, WATCHED)
        assert [at.watched for at in reading.listed] == list(WATCHED)
        assert (reading.names, reading.values) == ({}, {})
        await session.close()

    async def test_names_and_values_are_those_of_the_store(
        self, source: DiscoverySource, store: Store
    ) -> None:
        records = {
            "v1/instances/prod/backend/generate/1a": b'{"type":"Endpoint"}',
            "v1/instances/prod/backend/load_metrics/1a": b"",
            "v1/mdc/prod/backend/generate/1a": b"\xff\xfe not text \x00",
            "v1/event_channels/namespace/prod/topic/kv_metrics/2b": b"{}",
            "v1/event_sources/namespace/prod/component/b/topic/kv-events/2b": b"[]",
        }
        for key, value in records.items():
            await store.put(key, value)
        session = await connected(source)
        reading = await read_all(session, WATCHED)
        assert reading.values == records
        assert sorted(name for names in reading.names.values() for name in names) == sorted(records)
        assert sorted(reading.names[INSTANCES]) == sorted(list(records)[:2])
        await session.close()

    @pytest.mark.req("ETCD-05")
    @pytest.mark.field("B-008")
    async def test_longer_namespace_and_keyspace_are_not_seen(
        self, source: DiscoverySource, store: Store
    ) -> None:
        await store.put("v1/instances/prod2/backend/generate/1", b"{}")
        await store.put("v1/instances/prod-7b13b437/backend/generate/2", b"{}")
        await store.put("v1/instances2/prod/backend/generate/3", b"{}")
        await store.put("v1/instances/prod/backend/generate/4", b"{}")
        session = await connected(source)
        reading = await read_all(session, WATCHED)
        assert list(reading.values) == ["v1/instances/prod/backend/generate/4"]
        await session.close()

    @pytest.mark.req("ETCD-04")
    async def test_channels_and_sources_are_found_under_the_encoded_namespace(
        self, source: DiscoverySource, store: Store
    ) -> None:
        keys = [
            "v1/instances/ns.one/b/generate/1",
            "v1/mdc/ns.one/b/generate/1",
            "v1/event_channels/namespace/ns%2Eone/topic/kv_metrics/1",
            "v1/event_sources/namespace/ns%2Eone/topic/kv-events/1",
        ]
        for key in keys:
            await store.put(key, b"{}")
        session = await connected(source)
        watched = [Watched(keyspace, "ns.one") for keyspace in Keyspace]
        reading = await read_all(session, watched)
        assert [reading.names[one] for one in watched] == [[key] for key in keys]
        await session.close()

    @pytest.mark.req("ETCD-07")
    async def test_put_and_delete_between_reading_and_watching_arrive_once(
        self, source: DiscoverySource, store: Store
    ) -> None:
        await store.put("v1/instances/prod/b/generate/1", b"old")
        session = await connected(source)
        reading = await read_all(session, WATCHED)
        await store.put("v1/instances/prod/b/generate/2", b"between")
        await store.delete("v1/instances/prod/b/generate/1")
        following = Following(session, reading)
        await following.stands()
        await store.put("v1/instances/prod/b/generate/3", b"after")
        seen = [await following.next() for _ in range(3)]
        assert {(type(change), change.key) for _, change in seen} == {
            (FoundKey, b"v1/instances/prod/b/generate/2"),
            (GoneKey, b"v1/instances/prod/b/generate/1"),
            (FoundKey, b"v1/instances/prod/b/generate/3"),
        }
        assert all(watched == INSTANCES for watched, _ in seen)
        await following.close()
        await session.close()

    async def test_changes_arrive_with_their_prefix_and_growing_revisions(
        self, source: DiscoverySource, store: Store
    ) -> None:
        session = await connected(source)
        following = Following(session, await read_all(session, WATCHED))
        await following.stands()
        await store.put("v1/mdc/prod/b/generate/1", b"first")
        watched, first = await following.next()
        assert (watched.keyspace, first.key) == (Keyspace.CARDS, b"v1/mdc/prod/b/generate/1")
        await store.put("v1/mdc/prod/b/generate/1", b"second")
        _, second = await following.next()
        assert isinstance(second, FoundKey) and second.value == b"second"
        await store.delete("v1/mdc/prod/b/generate/1")
        _, third = await following.next()
        assert isinstance(third, GoneKey)
        assert first.revision < second.revision < third.revision
        await following.close()
        await session.close()

    async def test_size_of_a_value_is_its_length(self, source: DiscoverySource, store: Store) -> None:
        await store.put("v1/mdc/prod/b/generate/1", b"x" * 1000)
        session = await connected(source)
        reading = await read_names(session, WATCHED)
        found = [event.found async for event in session.values(reading.listed)]  # type: ignore[union-attr]
        assert [(one.size, len(one.value or b"")) for page in found for one in page] == [(1000, 1000)]
        await session.close()

    async def test_namespaces_that_begin_with_the_name_are_named(
        self, source: DiscoverySource, store: Store
    ) -> None:
        for name in ("prod-a", "prod-b", "prod2", "other", "pro"):
            for worker in range(3):
                await store.put(f"v1/instances/{name}/b/generate/{worker}", b"{}")
        session = await connected(source)
        await read_all(session, WATCHED)
        assert sorted(await session.siblings("prod", 8)) == ["prod-a", "prod-b", "prod2"]
        assert len(await session.siblings("prod", 2)) == 2
        assert await session.siblings("nobody", 8) == ()
        await session.close()

    async def test_session_closes_twice_and_in_mid_watch(self, source: DiscoverySource) -> None:
        session = await connected(source)
        following = Following(session, await read_all(session, WATCHED))
        await following.stands()
        waiting = asyncio.ensure_future(following.next())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await following.close()
        await session.close()
        await session.close()
        again = await connected(source)
        assert (await read_all(again, WATCHED)).values == {}
        await again.close()
