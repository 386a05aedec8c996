"""Fixtures for real peers. Each test that asks for one is skipped, or fails, where the peer is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo import fleet_plan
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import FleetPlan
from tests.live import peers
from tests.live.certificates import Authority
from tests.live.kafka_broker import KafkaBroker
from tests.live.peers import EtcdServer, EtcdTls

EtcdMaker = Callable[..., EtcdServer]
FleetMaker = Callable[..., Fleet]


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[EtcdMaker]:
    """Call it for one more running etcd: `make_etcd()`, `make_etcd(tls=..., extra=("--flag", "x"))`."""
    running: list[EtcdServer] = []

    def make(**settings: Any) -> EtcdServer:
        server = EtcdServer(tmp_path / f"etcd-{len(running)}", **settings)
        running.append(server)
        return server.start()

    yield make
    for server in running:
        server.close()


@pytest.fixture
def etcd(make_etcd: EtcdMaker) -> EtcdServer:
    """A fresh etcd without TLS and users, at revision 1."""
    return make_etcd()


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One plain etcd for all tests of a module: take a key prefix of your own, do not kill it."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests of a module, with TLS and SASL beside plaintext: take a topic of your own."""
    folder = tmp_path_factory.mktemp("kafka")
    broker = KafkaBroker(folder, Authority(folder / "tls"))
    try:
        yield broker.start()
    finally:
        broker.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Issues certificates for this test."""
    return Authority(tmp_path / "tls")


@pytest.fixture
def etcd_mtls(make_etcd: EtcdMaker, authority: Authority) -> EtcdServer:
    """An etcd that demands client certificates; `etcd_mtls.tls` has CA, server and client files.

    The server's certificate is valid for 127.0.0.1, `localhost` and `etcd.fleet.test`.
    """
    server = authority.server(dns_names=("localhost", "etcd.fleet.test"))
    return make_etcd(tls=EtcdTls(authority.ca, server, authority.client()))


@pytest.fixture
def etcd_with_users(make_etcd: EtcdMaker) -> EtcdServer:
    """An etcd with users on: `reader`/`reader-secret` may read `v1/`, `narrow`/`narrow-secret` all of
    `v1/` but the event sources; tokens live for 2 s without use. The test itself acts as root."""
    server = make_etcd(extra=("--auth-token-ttl", "2"))
    server.enable_auth()
    server.add_user("reader", "reader-secret", ["v1/"])
    server.add_user("narrow", "narrow-secret", ["v1/instances/", "v1/mdc/", "v1/event_channels/"])
    return server


@pytest.fixture(scope="module")
def make_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetMaker]:
    """Call it for a running fleet that lives as long as the module:
    `make_fleet(pair_plan(), release="1.6.1")`; settings are those of `deploy.demo.fleet.Fleet`."""
    running: list[Fleet] = []

    def make(plan: FleetPlan, **settings: Any) -> Fleet:
        fleet = peers.start_fleet(plan, tmp_path_factory.mktemp("fleet"), **settings)
        running.append(fleet)
        return fleet

    yield make
    for fleet in running:
        fleet.down()


@pytest.fixture(scope="module")
def demo_fleet(make_fleet: FleetMaker) -> Fleet:
    """The fleet of `make run`, file discovery, shared by the module: put back what you kill."""
    return make_fleet(fleet_plan.demo_plan())
