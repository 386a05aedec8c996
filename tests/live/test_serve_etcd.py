"""A router whose fleet announces itself in etcd, and an etcd that dies and comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import Discovery, aggregated_plan
from tests.live.conftest import FleetMaker
from tests.live.peers import EtcdServer
from tests.live.router_process import RouterProcess, Traffic, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("etcd")]


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker, shared_etcd: EtcdServer) -> Fleet:
    plan = aggregated_plan(2)
    plan = dataclasses.replace(plan, discovery=Discovery.ETCD, lease_ttl_s=30)
    return make_fleet(plan, etcd_url=shared_etcd.endpoint)


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(fleet, tmp_path_factory.mktemp("router"))
    try:
        yield router.start()
    finally:
        router.close()


@pytest.mark.req("ETCD-13", "ETCD-15", "MET-02")
@pytest.mark.field("B-006")
def test_a_fleet_stays_while_etcd_is_away_and_is_taken_up_when_it_is_back(
    router: RouterProcess, fleet: Fleet, shared_etcd: EtcdServer
) -> None:
    def connected() -> float:
        return router.metrics()["continuum_dynamo_discovery_connected"]

    workers, pid = router.workers(), router.pid
    assert len(workers) == 2
    assert connected() == 1
    traffic = Traffic(router)
    with traffic.running(threads=3):
        traffic.wait_more(10)
        shared_etcd.kill()
        until(lambda: connected() == 0, "the loss is seen")
        traffic.wait_more(20)
        assert set(router.workers()) == set(workers)
        assert router.ready()[0] == 200
        shared_etcd.start()
        until(lambda: connected() == 1, router.log_tail)
        traffic.wait_more(10)
    assert traffic.bad == []
    assert set(router.workers()) == set(workers)
    assert router.pid == pid
    assert router.verify()["equal"] >= 40
    assert router.stop() == 0
