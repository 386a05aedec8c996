"""Settings name their source; a missing library is said with the line that mends it."""

from __future__ import annotations

import sys
import types

import pytest

from ingest.discovery.file_source import FileSource
from ingest.discovery.settings import DiscoverySettings, EtcdConnection, FileStore, SourceKind
from ingest.discovery.source import EndReason
from ingest.discovery.sources import SourceMissing, source_of

ETCD = EtcdConnection(("http://127.0.0.1:1",))


def test_settings_give_their_source() -> None:
    file = source_of(DiscoverySettings(SourceKind.FILE, ("prod",), file=FileStore("/store")))
    assert isinstance(file, FileSource)
    assert source_of(DiscoverySettings(SourceKind.ETCD, ("prod",), etcd=ETCD)).name == "etcd"


@pytest.mark.parametrize(
    ("kind", "library", "extra"), [(SourceKind.ETCD, "grpc", "etcd"), (SourceKind.ETCD3, "etcd3", "etcd3")]
)
def test_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, kind: SourceKind, library: str, extra: str
) -> None:
    for module in [name for name in sys.modules if name.startswith("ingest.discovery.etcd")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, "etcd3", None)
    with pytest.raises(SourceMissing) as missing:
        source_of(DiscoverySettings(kind, ("prod",), etcd=ETCD))
    assert missing.value.reason is EndReason.ERROR
    assert f"pip install 'picklog[{extra}]'" in missing.value.detail


@pytest.mark.parametrize("kind", list(SourceKind))
def test_source_without_its_section_is_refused(kind: SourceKind) -> None:
    with pytest.raises(ValueError, match="needs"):
        source_of(DiscoverySettings(kind, ("prod",)))


def test_etcd_takes_the_adapter_where_only_that_library_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `tests/live/etcd3_cases.py`, with the library itself."""
    for module in [name for name in sys.modules if name.startswith("ingest.discovery.etcd")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "grpc", None)
    adapter = types.ModuleType("ingest.discovery.etcd3_adapter")
    adapter.Etcd3Source = lambda connection: ("adapter", connection)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    settings = DiscoverySettings(SourceKind.ETCD, ("prod",), etcd=ETCD)
    made: object = source_of(settings)
    assert made == ("adapter", ETCD)
