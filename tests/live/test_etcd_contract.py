"""The etcd client keeps the promises of every source, on a real etcd."""

from __future__ import annotations

import pytest

from ingest.discovery.etcd_source import EtcdSource
from ingest.discovery.settings import EtcdConnection
from tests.live.discovery_watch import EtcdStore
from tests.live.peers import EtcdServer
from tests.source_suite import SourceSuite


@pytest.mark.live("etcd")
class TestEtcdSource(SourceSuite):
    @pytest.fixture
    def server(self, shared_etcd: EtcdServer) -> EtcdServer:
        shared_etcd.delete_prefix("v1/")
        shared_etcd.delete_prefix("v1/instances2/")
        return shared_etcd

    @pytest.fixture
    def store(self, server: EtcdServer) -> EtcdStore:
        return EtcdStore(server)

    @pytest.fixture
    def source(self, server: EtcdServer) -> EtcdSource:
        return EtcdSource(EtcdConnection((server.endpoint,)))
