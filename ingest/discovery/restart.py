"""Which change of settings replaces the watcher, under which name, and what is forgotten.

    change                               reason       forgotten
    enabled -> disabled                  enabled      everything; no pass begins, so no restart
    disabled -> enabled                  enabled      everything (nothing is held then)
    another source                       source       everything
    endpoints, tls, auth, root           connection   everything
    the one namespace is another         namespace    everything
    namespaces added or removed          namespaces   the removed ones
    backoff                              backoff      nothing
    anything else (poll, ttl)            other        nothing

The first row that applies names the change; the name stands in `KeysDropped` and as the
reason of the new watcher's first `PassBegan`, which is what the fold counts as a restart.
Where nothing is forgotten the fleet stays readable until the new watcher's first pass, which
then corrects it by differences.

Sources: requirement rows ETCD-14, REL-04..08; specification, "Hot reload".
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ingest.discovery.settings import DiscoverySettings

EVERY_NAMESPACE: tuple[str, ...] = ()  # what KeysDropped says for all of them


class RestartReason(StrEnum):
    """Why a watcher was replaced; the words are those of the specification."""

    ENABLED = "enabled"
    SOURCE = "source"
    CONNECTION = "connection"
    NAMESPACE = "namespace"
    NAMESPACES = "namespaces"
    BACKOFF = "backoff"
    OTHER = "other"


class Restart(NamedTuple):
    """drops: namespaces to forget, EVERY_NAMESPACE for all, None for nothing."""

    reason: RestartReason
    drops: tuple[str, ...] | None


def restart_for(old: DiscoverySettings, new: DiscoverySettings) -> Restart | None:
    """What replacing `old` by `new` means, or None where they are the same."""
    if old == new:
        return None
    if old.enabled != new.enabled:
        return Restart(RestartReason.ENABLED, EVERY_NAMESPACE)
    if old.source != new.source:
        return Restart(RestartReason.SOURCE, EVERY_NAMESPACE)
    if old.etcd != new.etcd or _root(old) != _root(new):
        return Restart(RestartReason.CONNECTION, EVERY_NAMESPACE)
    if set(old.namespaces) != set(new.namespaces):
        return _of_namespaces(old.namespaces, new.namespaces)
    if (old.backoff_initial_us, old.backoff_max_us) != (new.backoff_initial_us, new.backoff_max_us):
        return Restart(RestartReason.BACKOFF, None)
    return Restart(RestartReason.OTHER, None)


def _of_namespaces(old: tuple[str, ...], new: tuple[str, ...]) -> Restart:
    """One namespace for another resets everything; a list that shares some keeps those."""
    if set(old).isdisjoint(new):
        return Restart(RestartReason.NAMESPACE, EVERY_NAMESPACE)
    removed = tuple(sorted(set(old).difference(new)))
    return Restart(RestartReason.NAMESPACES, removed or None)


def _root(settings: DiscoverySettings) -> str | None:
    return settings.file.root if settings.file else None
