"""Discovery on a real etcd that is compacted, killed, frozen, restored, flooded and churned."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import time
from pathlib import Path

import pytest

from ingest.discovery.etcd_session import EtcdLimits
from ingest.discovery.etcd_source import EtcdSource
from ingest.discovery.pass_effects import Phase
from ingest.discovery.settings import EtcdConnection
from projections.events.discovery import KeyDeleted, KeyPut, PassSettled
from tests.live.conftest import EtcdMaker
from tests.live.discovery_watch import LiveWatch, etcd_settings, instance
from tests.live.peers import EtcdServer

pytestmark = pytest.mark.live("etcd")

in_thread = asyncio.to_thread


@pytest.mark.req("ETCD-02", "ETCD-07")
async def test_workers_come_with_a_put_and_go_with_their_lease(etcd: EtcdServer) -> None:
    lease = await in_thread(etcd.grant_lease, 30)
    await in_thread(etcd.put, instance("1a"), b'{"one":1}', lease)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        assert watch.values() == {"1a": b'{"one":1}'}
        await in_thread(etcd.put, instance("2b"), b"{}", lease)
        await watch.until(lambda: watch.workers() == {"1a", "2b"})
        await in_thread(etcd.revoke_lease, lease)
        await watch.until(lambda: watch.workers() == set())
        assert len({fact.revision for fact in watch.of(KeyDeleted)}) == 1
        assert watch.ends() == []


@pytest.mark.req("ETCD-02")
async def test_lease_that_runs_out_removes_the_worker(etcd: EtcdServer) -> None:
    lease = await in_thread(etcd.grant_lease, 2)
    await in_thread(etcd.put, instance("1a"), b"{}", lease)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.until(lambda: watch.workers() == {"1a"})
        await watch.until(lambda: watch.workers() == set())


@pytest.mark.req("ETCD-08", "ETCD-09")
async def test_deletes_lost_to_a_compaction_while_away_are_found(etcd: EtcdServer) -> None:
    for worker in range(5):
        await in_thread(etcd.put, instance(worker), b"{}")
    settings = etcd_settings(etcd.endpoint)
    async with LiveWatch(settings) as watch:
        await watch.settled()
        await in_thread(etcd.kill)
        await watch.until(lambda: not watch.connected)
        await in_thread(etcd.start)
        await watch.settled(2)
        await in_thread(etcd.delete, instance(3))
        await watch.until(lambda: watch.workers() == {"0", "1", "2", "4"})
    # and with a process that was away for the whole of it
    held = {(1, "prod", fact.key): fact.value_digest for fact in watch.of(KeyPut)}
    await in_thread(etcd.compact)
    again = LiveWatch(settings)
    again.runner._machine.held.__init__(held)  # type: ignore[misc]  # what the fold of the first would hold
    async with again:
        await again.settled()
        assert [type(f) for f in again.facts if isinstance(f, KeyPut | KeyDeleted)] == [KeyDeleted]


@pytest.mark.req("ETCD-06", "ETCD-08")
@pytest.mark.field("B-119")
async def test_watch_from_a_compacted_revision_ends_the_pass(etcd: EtcdServer) -> None:
    """Compaction hits between reading and watching; B-119, B-123."""
    await in_thread(etcd.put, instance(1), b"{}")
    hits = 0

    class Compacting(EtcdSource):
        async def connect(self, waiting):  # type: ignore[no-untyped-def]
            session = await super().connect(waiting)
            changes = session.changes

            async def after_compaction(listed):  # type: ignore[no-untyped-def]
                nonlocal hits
                hits += 1
                if hits == 1:
                    await in_thread(etcd.put, instance(2), b"{}")
                    await in_thread(etcd.delete, instance(1))
                    await in_thread(etcd.compact)
                async for event in changes(listed):
                    yield event

            session.changes = after_compaction  # type: ignore[method-assign]
            return session

    source = Compacting(EtcdConnection((etcd.endpoint,)))
    async with LiveWatch(etcd_settings(etcd.endpoint), lambda settings: source) as watch:
        await watch.until(lambda: watch.connected and watch.workers() == {"2"})
        assert watch.ends() == ["compacted"]


@pytest.mark.req("ETCD-08", "ETCD-13", "ETCD-15")
async def test_killed_server_is_seen_at_once_and_followed_again_with_differences_only(
    etcd: EtcdServer,
) -> None:
    await in_thread(etcd.put, instance(1), b"{}")
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        began = time.monotonic()
        await in_thread(etcd.kill)
        await watch.until(lambda: not watch.connected)
        assert time.monotonic() - began < 2
        await asyncio.sleep(1.5)
        assert watch.workers() == {"1"}, "the fleet stays as it was"
        await in_thread(etcd.start)
        await in_thread(etcd.put, instance(2), b"{}")
        await watch.until(lambda: watch.connected and watch.workers() == {"1", "2"})
        assert [fact.key[-1] for fact in watch.of(KeyPut)] == ["1", "2"]
        assert watch.agrees_with_a_fold()


@pytest.mark.field("B-121")
async def test_frozen_server_is_seen_within_seconds(etcd: EtcdServer) -> None:
    """B-121: half open, the socket stays and nothing is answered."""
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        await in_thread(etcd.freeze)
        began = time.monotonic()
        await watch.until(lambda: not watch.connected, 15)
        took = time.monotonic() - began
        assert watch.ends() == ["silent"]
        assert took < 8, "5 s, and room for a busy machine"
        await in_thread(etcd.thaw)
        await in_thread(etcd.put, instance(7), b"{}")
        await watch.until(lambda: watch.connected and watch.workers() == {"7"})


async def test_idle_watch_on_a_healthy_server_stays(etcd: EtcdServer) -> None:
    limits = EtcdLimits(quiet_s=0.05, ask_s=1.0)
    source = EtcdSource(EtcdConnection((etcd.endpoint,)), limits)
    async with LiveWatch(etcd_settings(etcd.endpoint), lambda settings: source) as watch:
        await watch.settled()
        await asyncio.sleep(2)  # some forty progress requests
        assert watch.connected
        assert watch.ends() == []


async def test_restored_server_with_smaller_revisions_is_followed(etcd: EtcdServer) -> None:
    await in_thread(etcd.put, instance("old"), b"{}")
    saved = await in_thread(etcd.save)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        for number in range(40):
            await in_thread(etcd.put, instance("new"), b"%d" % number)
        await watch.until(lambda: watch.workers() == {"old", "new"})
        newest = watch.of(KeyPut)[-1].revision
        settled = len(watch.of(PassSettled))
        await in_thread(etcd.restore, saved)
        await watch.settled(settled + 1)
        await watch.until(lambda: watch.workers() == {"old"})
        revision = await in_thread(etcd.put, instance("newer"), b"{}")
        assert revision < newest
        await watch.until(lambda: watch.workers() == {"old", "newer"})
        assert watch.agrees_with_a_fold()


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.req("ETCD-18")
async def test_dead_and_deaf_endpoints_do_not_keep_from_the_living_one(etcd: EtcdServer) -> None:
    """B-122. The second endpoint takes connections and never speaks."""
    await in_thread(etcd.put, instance(1), b"{}")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        settings = etcd_settings(f"127.0.0.1:{_closed_port()}", silent, etcd.endpoint.removeprefix("http://"))
        began = time.monotonic()
        async with LiveWatch(settings) as watch:
            await watch.settled()
            assert time.monotonic() - began < 10
            assert watch.ends() == []
            assert watch.workers() == {"1"}


@pytest.mark.req("ETCD-18")
async def test_second_endpoint_takes_over_when_the_first_is_killed(make_etcd: EtcdMaker) -> None:
    """Two separate stores stand for two members; what differs between them shows the change."""
    first, second = await in_thread(make_etcd), await in_thread(make_etcd)
    await in_thread(first.put, instance("first"), b"{}")
    await in_thread(second.put, instance("second"), b"{}")
    async with LiveWatch(etcd_settings(first.endpoint, second.endpoint)) as watch:
        await watch.settled()
        assert watch.workers() == {"first"}
        await in_thread(first.kill)
        await watch.until(lambda: watch.connected and watch.workers() == {"second"})
        assert watch.agrees_with_a_fold()


async def test_ipv6_endpoint_in_brackets(make_etcd: EtcdMaker) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    urls = f"http://[::1]:{port}"
    server = await in_thread(make_etcd)
    await in_thread(server.stop)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)
        await asyncio.gather(inner_writer.wait_closed(), writer.wait_closed(), return_exceptions=True)
        ended.set()

    ended = asyncio.Event()
    await in_thread(server.start)
    await in_thread(server.put, instance(6), b"{}")
    listener = await asyncio.start_server(relay, "::1", port)
    async with listener, LiveWatch(etcd_settings(urls)) as watch:
        await watch.settled()
        assert watch.workers() == {"6"}
    await asyncio.wait_for(ended.wait(), 20)


async def test_twelve_megabytes_are_read_in_pages(etcd: EtcdServer) -> None:
    pairs = [(f"v1/mdc/prod/b/generate/{n:x}", b"%06d" % n * 10_000) for n in range(200)]
    for pair in pairs:
        await in_thread(etcd.put, *pair)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        assert sum(fact.value_bytes for fact in watch.of(KeyPut)) == 12_000_000
        assert {fact.key: fact.value for fact in watch.of(KeyPut)} == {
            key.removeprefix("v1/mdc/prod/"): value for key, value in pairs
        }


async def test_page_above_the_message_ceiling_is_read_in_smaller_ones(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ingest.discovery import etcd_endpoints

    small = tuple(
        (name, 100_000 if name == "grpc.max_receive_message_length" else value)
        for name, value in etcd_endpoints.CHANNEL_OPTIONS
    )
    monkeypatch.setattr(etcd_endpoints, "CHANNEL_OPTIONS", small)
    for worker in range(40):
        await in_thread(etcd.put, instance(f"{worker:02}"), b"x" * 30_000)
    await in_thread(etcd.put, instance("20huge"), b"x" * 200_000)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        assert len(watch.workers()) == 41
        assert {fact.value_bytes for fact in watch.of(KeyPut) if fact.refusal == 0} == {30_000}
        (huge,) = [fact for fact in watch.of(KeyPut) if fact.refusal]
        assert huge.key.endswith("20huge") and huge.value == b""


@pytest.mark.req("ETCD-16")
async def test_random_keys_and_values_do_not_stop_the_watch(etcd: EtcdServer) -> None:
    import random

    draws = random.Random(7)
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        for _ in range(150):
            keyspace = draws.choice(["instances/prod", "mdc/prod", "event_channels/namespace/prod"])
            tail = "".join(
                chr(draws.choice([draws.randrange(32, 127), draws.randrange(0x80, 0x2FF)])) for _ in range(9)
            )
            await in_thread(etcd.put, f"v1/{keyspace}/{tail}", draws.randbytes(draws.randrange(40)))
        await in_thread(etcd.put, instance("last"), b"{}")
        await watch.until(lambda: "last" in watch.workers())
        assert watch.ends() == []
        assert watch.agrees_with_a_fold()


@pytest.mark.field("B-006")
async def test_churn_with_kills_in_between_ends_in_the_stores_own_keys(etcd: EtcdServer) -> None:
    """B-006, B-007: bursts of puts and deletes over outages; the last pass holds exactly the store."""
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.settled()
        for turn in range(3):
            for worker in range(30):
                await in_thread(etcd.put, instance(f"{turn}-{worker}"), b"{}")
            if turn:
                await in_thread(etcd.delete_prefix, instance(f"{turn - 1}-"))
            await in_thread(etcd.kill)
            await in_thread(etcd.start)
            await in_thread(etcd.put, instance(f"after-{turn}"), b"{}")
        expected = set(await in_thread(etcd.get_prefix, "v1/instances/prod/"))
        names = {key.rpartition("/")[2] for key in expected}
        await watch.until(lambda: watch.connected and watch.workers() == names)
        assert watch.agrees_with_a_fold()
        assert watch.runner.state.phase is Phase.WATCHING


async def test_watch_closed_by_a_proxy_at_once_keeps_the_waits_growing(etcd: EtcdServer) -> None:
    """ETCD-11 on a real server: ranges are answered, every watch ends as soon as it stands."""

    class Cutting(EtcdSource):
        async def connect(self, waiting):  # type: ignore[no-untyped-def]
            session = await super().connect(waiting)
            changes = session.changes

            async def cut(listed):  # type: ignore[no-untyped-def]
                async for event in changes(listed):
                    yield event
                    await session.close()

            session.changes = cut  # type: ignore[method-assign]
            return session

    source = Cutting(EtcdConnection((etcd.endpoint,)))
    async with LiveWatch(etcd_settings(etcd.endpoint), lambda settings: source) as watch:
        began = time.monotonic()
        await watch.until(lambda: len(watch.ends()) >= 4)
        assert time.monotonic() - began > 0.1 + 0.2 + 0.4


def _connections_to(port: int) -> int:
    """Established connections of this process to the port."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone again
            links.append(os.readlink(entry))
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    return sum(row[9] in own and row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_passes_leave_no_connection_behind_without_the_cycle_collector(etcd: EtcdServer) -> None:
    gc.collect()
    gc.disable()
    try:
        async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
            for turn in range(1, 5):
                await watch.settled(turn)
                watch.runner.repeat_pass({})
            await watch.settled(5)
            for _ in range(100):
                if _connections_to(etcd.port) == 1:
                    break
                await asyncio.sleep(0.05)
            assert _connections_to(etcd.port) == 1
    finally:
        gc.enable()


async def test_empty_namespace_names_its_siblings(etcd: EtcdServer) -> None:
    """B-010."""
    await in_thread(etcd.put, instance(1, "prod-7b13b437"), b"{}")
    async with LiveWatch(etcd_settings(etcd.endpoint)) as watch:
        await watch.until(lambda: bool(watch.notices))
        assert watch.notices[0].detail == "prod: prod-7b13b437"
