"""Cases of the adapter on the library `etcd3`. Run by `test_etcd_etcd3` in the library's environment.

The same promises as for every source, paging apart, and the faults that the library meets badly.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ingest.discovery.settings import EtcdAuth, EtcdConnection, EtcdTls
from projections.events.discovery import PassSettled
from tests.live.discovery_watch import EtcdStore, LiveWatch, etcd_settings, instance
from tests.live.peers import EtcdServer
from tests.source_suite import SourceSuite

pytestmark = pytest.mark.live("etcd")

in_thread = asyncio.to_thread


def source_of(connection: EtcdConnection) -> Any:
    from ingest.discovery.etcd3_adapter import Etcd3Source

    return Etcd3Source(connection)


class TestEtcd3Source(SourceSuite):
    @pytest.fixture
    def server(self, shared_etcd: EtcdServer) -> EtcdServer:
        shared_etcd.delete_prefix("v1/")
        shared_etcd.delete_prefix("v1/instances2/")
        return shared_etcd

    @pytest.fixture
    def store(self, server: EtcdServer) -> EtcdStore:
        return EtcdStore(server)

    @pytest.fixture
    def source(self, server: EtcdServer) -> Any:
        return source_of(EtcdConnection((server.endpoint,)))


def watch_of(server: EtcdServer, *more: str, **connection: Any) -> LiveWatch:
    settings = etcd_settings(server.endpoint, *more, **connection)
    assert settings.etcd is not None
    source = source_of(settings.etcd)
    return LiveWatch(settings, lambda _: source)


async def test_killed_server_ends_the_pass_burns_no_processor_and_is_followed_again(
    etcd: EtcdServer,
) -> None:
    await in_thread(etcd.put, instance(1), b"{}")
    async with watch_of(etcd) as watch:
        await watch.settled()
        await in_thread(etcd.kill)
        await watch.until(lambda: not watch.connected)
        began = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - began < 1, "the library's watcher thread spins"
        await in_thread(etcd.start)
        await in_thread(etcd.put, instance(2), b"{}")
        await watch.until(lambda: watch.connected and watch.workers() == {"1", "2"})
        assert watch.agrees_with_a_fold()


async def test_frozen_server_is_seen(etcd: EtcdServer) -> None:
    async with watch_of(etcd) as watch:
        await watch.settled()
        await in_thread(etcd.freeze)
        await watch.until(lambda: not watch.connected, 15)
        assert watch.ends() == ["silent"]
        await in_thread(etcd.thaw)
        await watch.settled(2)


async def test_dead_first_endpoint_is_passed_over(etcd: EtcdServer) -> None:
    await in_thread(etcd.put, instance(1), b"{}")
    settings = etcd_settings("http://127.0.0.1:1", etcd.endpoint)
    assert settings.etcd is not None
    source = source_of(settings.etcd)
    async with LiveWatch(settings, lambda _: source) as watch:
        await watch.settled()
        assert watch.workers() == {"1"}


async def test_client_certificates(etcd_mtls: EtcdServer) -> None:
    assert etcd_mtls.tls is not None
    files = etcd_mtls.tls
    tls = EtcdTls(str(files.ca), str(files.client.certificate), str(files.client.key), "etcd.fleet.test")
    async with watch_of(etcd_mtls, tls=tls) as watch:
        await watch.settled()


async def test_user_without_the_sources_over_plaintext(etcd_with_users: EtcdServer) -> None:
    await in_thread(etcd_with_users.put, instance(1), b"{}")
    async with watch_of(etcd_with_users, auth=EtcdAuth("narrow", "narrow-secret")) as watch:
        await watch.settled()
        assert watch.of(PassSettled)[0].unwatched == (4,)
        assert watch.workers() == {"1"}


def test_source_etcd_is_this_adapter_where_its_extra_is_installed() -> None:
    from ingest.discovery.sources import source_of as chosen_source

    assert type(chosen_source(etcd_settings("127.0.0.1:1"))).__name__ == "Etcd3Source"


async def test_wrong_password_is_unauthenticated(etcd_with_users: EtcdServer) -> None:
    async with watch_of(etcd_with_users, auth=EtcdAuth("reader", "wrong")) as watch:
        await watch.until(lambda: len(watch.ends()) >= 1)
        assert watch.ends()[0] == "unauthenticated"
