"""Discovery of real Dynamo fleets, through the file store and through etcd."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import Discovery, aggregated_plan
from ingest.discovery.settings import DiscoverySettings, FileStore, SourceKind
from projections.events.discovery import KeyPut
from tests.live.conftest import FleetMaker
from tests.live.discovery_watch import LiveWatch, etcd_settings
from tests.live.peers import EtcdServer

pytestmark = pytest.mark.live("dynamo")


def _generate_ids(watch: LiveWatch) -> set[int]:
    return {
        int(key.rpartition("/")[2], 16) for space, key in watch.held() if space == 1 and "/generate/" in key
    }


def _worker_ids(fleet: Fleet) -> set[int]:
    return {int(row["instance_id"]) for row in fleet.workers()}


@pytest.mark.req("FILE-01", "FILE-02", "FILE-03")
async def test_file_store_of_a_running_fleet_shows_its_workers_and_a_killed_one_goes(
    demo_fleet: Fleet,
) -> None:
    rows = await asyncio.to_thread(demo_fleet.workers)
    namespaces = tuple(sorted({row["namespace"] for row in rows}))
    store = FileStore(str(demo_fleet.file_store))
    async with LiveWatch(DiscoverySettings(SourceKind.FILE, namespaces, file=store)) as watch:
        await watch.settled()
        everyone = _worker_ids(demo_fleet)
        await watch.until(lambda: _generate_ids(watch) == everyone)
        assert {fact.keyspace for fact in watch.of(KeyPut)} == {1, 2, 3, 4}
        killed = {int(number) for number in await asyncio.to_thread(demo_fleet.instance_ids, "agg-2")}
        await asyncio.to_thread(demo_fleet.kill, "agg-2")
        try:
            await watch.until(lambda: _generate_ids(watch) == everyone - killed)
        finally:
            await asyncio.to_thread(demo_fleet.start, "agg-2")
        await watch.until(lambda: len(_generate_ids(watch)) == len(everyone), 60)
        assert watch.ends() == []
        assert watch.refused == []
        assert watch.agrees_with_a_fold()


@pytest.mark.live("etcd")
async def test_fleet_in_etcd_shows_its_workers_and_a_killed_one_goes_with_its_lease(
    shared_etcd: EtcdServer, make_fleet: FleetMaker
) -> None:
    plan = dataclasses.replace(aggregated_plan(), discovery=Discovery.ETCD, lease_ttl_s=3)
    fleet = await asyncio.to_thread(lambda: make_fleet(plan, etcd_url=shared_etcd.endpoint))
    rows = await asyncio.to_thread(fleet.workers)
    (namespace,) = {row["namespace"] for row in rows}
    async with LiveWatch(etcd_settings(shared_etcd.endpoint, namespace=namespace)) as watch:
        await watch.settled()
        everyone = _worker_ids(fleet)
        await watch.until(lambda: _generate_ids(watch) == everyone)
        name = rows[0]["name"]
        killed = {int(number) for number in await asyncio.to_thread(fleet.instance_ids, name)}
        await asyncio.to_thread(fleet.kill, name)
        await watch.until(lambda: _generate_ids(watch) == everyone - killed)
        assert watch.refused == []
        assert watch.agrees_with_a_fold()
