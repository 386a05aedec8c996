"""Three brokers, three copies of the log: its leader dies, another one leads, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.demo.fleet_plan import aggregated_plan
from ingest.log.kafka_settings import KafkaPlace
from tests.live.conftest import FleetMaker
from tests.live.kafka_cluster import KafkaCluster
from tests.live.replica_site import ReplicaSite, told
from tests.live.router_process import Traffic, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.live("kafka"), pytest.mark.timeout(240)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def site(
    cluster: KafkaCluster, make_fleet: FleetMaker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicaSite]:
    place = KafkaPlace(cluster.addresses(), "lane", replication_factor=3)
    made = ReplicaSite(make_fleet(aggregated_plan(2)), place, tmp_path_factory.mktemp("site"))
    try:
        made.start(2)
        made.start_follower()
        yield made
    finally:
        made.close()


@pytest.mark.req("EVS-10", "EVS-17", "EVS-20")
def test_another_broker_leads_and_no_chat_and_no_record_is_lost(
    cluster: KafkaCluster, site: ReplicaSite
) -> None:
    replica, other = site.replicas
    traffic = Traffic(replica, prefix="leader")
    with traffic.running(threads=3):
        traffic.wait_more(10)
        first = cluster.leader("lane")
        cluster.brokers[first].kill()
        until(lambda: cluster.leader("lane") not in (first, -1), "another one leads", pause_s=0.2)
        site.wait_ready()
        traffic.wait_more(10)
        cluster.brokers[first].start()
        traffic.wait_more(10)
    assert traffic.bad == [], told(replica)
    assert other.chat("elsewhere").status == 200
    site.wait_told({"elsewhere", *(sent.identifier for sent in traffic.finished())})
    site.assert_agreed()
