"""The table of changes that replace the watcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingest.discovery.restart import EVERY_NAMESPACE, Restart, RestartReason, restart_for
from ingest.discovery.settings import (
    DiscoverySettings,
    EtcdAuth,
    EtcdConnection,
    EtcdTls,
    FileStore,
    SourceKind,
)

CONNECTION = EtcdConnection(("http://127.0.0.1:2379",))
ONE = DiscoverySettings(SourceKind.ETCD, ("prod",), etcd=CONNECTION)
MANY = replace(ONE, namespaces=("a", "b", "c"))
FILE = DiscoverySettings(SourceKind.FILE, ("prod",), file=FileStore("/store"))


@pytest.mark.req("REL-04", "REL-05", "REL-06", "REL-07", "REL-08", "ETCD-14")
@pytest.mark.parametrize(
    ("old", "new", "reason", "drops"),
    [
        (ONE, replace(ONE, enabled=False), "enabled", EVERY_NAMESPACE),
        (replace(ONE, enabled=False), ONE, "enabled", EVERY_NAMESPACE),
        (ONE, FILE, "source", EVERY_NAMESPACE),
        (ONE, replace(ONE, etcd=EtcdConnection(("http://127.0.0.1:1",))), "connection", EVERY_NAMESPACE),
        (ONE, replace(ONE, etcd=replace(CONNECTION, tls=EtcdTls("ca.pem"))), "connection", EVERY_NAMESPACE),
        (ONE, replace(ONE, etcd=replace(CONNECTION, auth=EtcdAuth("u", "p"))), "connection", EVERY_NAMESPACE),
        (FILE, replace(FILE, file=FileStore("/other")), "connection", EVERY_NAMESPACE),
        (ONE, replace(ONE, namespaces=("test",)), "namespace", EVERY_NAMESPACE),
        (MANY, replace(MANY, namespaces=("b", "d")), "namespaces", ("a", "c")),
        (MANY, replace(MANY, namespaces=("a", "b", "c", "d")), "namespaces", None),
        (ONE, replace(ONE, backoff_max_us=9_000_000), "backoff", None),
        (ONE, replace(ONE, backoff_initial_us=1_000), "backoff", None),
        (FILE, replace(FILE, file=FileStore("/store", poll_us=1_000)), "other", None),
        (MANY, replace(MANY, namespaces=("c", "b", "a")), "other", None),
    ],
)
def test_change_has_one_reason_and_one_scope(
    old: DiscoverySettings,
    new: DiscoverySettings,
    reason: str,
    drops: tuple[str, ...] | None,
) -> None:
    assert restart_for(old, new) == Restart(RestartReason(reason), drops)


def test_equal_settings_replace_nothing() -> None:
    assert restart_for(ONE, replace(ONE)) is None


def test_namespace_change_together_with_a_new_connection_is_a_connection_change() -> None:
    new = replace(ONE, namespaces=("test",), etcd=EtcdConnection(("http://127.0.0.1:1",)))
    restart = restart_for(ONE, new)
    assert restart is not None and restart.reason is RestartReason.CONNECTION
