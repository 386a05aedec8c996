"""The port's own words, and the scripted source of the other tests, which keeps the port's promises."""

from __future__ import annotations

import pytest

from ingest.discovery.source import EndReason, SourceFailed, Watched
from projections.events.discovery import Keyspace
from tests.ingest.discovery.scripted_source import MemoryStore, ScriptedSource
from tests.source_suite import SourceSuite


@pytest.mark.looptime
class TestScriptedSource(SourceSuite):
    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    async def source(self, store: MemoryStore) -> ScriptedSource:
        return ScriptedSource(store)


@pytest.mark.req("ETCD-03", "ETCD-04", "ETCD-05")
def test_prefixes_of_a_namespace_with_a_dot() -> None:
    assert [Watched(keyspace, "ns.one").prefix for keyspace in Keyspace] == [
        "v1/instances/ns.one/",
        "v1/mdc/ns.one/",
        "v1/event_channels/namespace/ns%2Eone/",
        "v1/event_sources/namespace/ns%2Eone/",
    ]


def test_failure_reads_as_its_reason_and_detail() -> None:
    assert str(SourceFailed(EndReason.SILENT, "no answer")) == "silent: no answer"
    assert str(SourceFailed(EndReason.STREAM)) == "stream"
