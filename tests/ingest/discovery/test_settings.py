"""Settings of a watcher show no secret when printed."""

from __future__ import annotations

from ingest.discovery.settings import DiscoverySettings, EtcdAuth, EtcdConnection, EtcdTls, SourceKind


def test_printing_settings_shows_neither_password_nor_key_path() -> None:
    tls = EtcdTls("ca.pem", "client.pem", "/secret/client.key")
    auth = EtcdAuth("reader", "hunter2")
    settings = DiscoverySettings(SourceKind.ETCD, ("prod",), etcd=EtcdConnection(("https://h:1",), tls, auth))
    text = repr(settings)
    assert "hunter2" not in text
    assert "/secret" not in text
    assert "ca.pem" in text and "reader" in text
