"""What a changed configuration costs: which keys act at once, which tasks restart, whether the watcher is
replaced.

Pure: `plan_reload(old, new)` compares two valid configurations and says what has to happen; the shells do
it. Nothing in `dynamo` needs a restart of the process (REL-01): its keys act at the next pick, or restart
the load tasks, or replace the discovery watcher. A watcher that is replaced says why, and what becomes of
the fleet until its successor has made a full pass.

Source: specification, "Reload class"; requirements REL-01 to REL-10.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from app.config_dynamo import DiscoverySettings, DiscoverySource, DynamoSettings, KubernetesSettings
from app.config_model import Config, leaf_keys, plain_settings


class ReloadClass(StrEnum):
    """When a change of a key takes effect."""

    IMMEDIATE = "immediate"
    """At the next request, pick or check."""

    LOAD_TASKS = "load tasks"
    """Load subscriptions restart; watcher, registry and generation stay."""

    WATCHER = "watcher"
    """The discovery watcher is replaced."""

    PROCESS = "process"
    """At the next start of the process; the reload says so."""

    IGNORED = "ignored"
    """Never: the key has no effect in this release."""


RELOAD_CLASS: dict[str, ReloadClass] = {
    "server": ReloadClass.IGNORED,
    "server.bind_address": ReloadClass.PROCESS,
    "server.body_bytes_max": ReloadClass.IMMEDIATE,
    "backends": ReloadClass.IMMEDIATE,
    "backends[].weight": ReloadClass.IGNORED,
    "backends[].retry_override": ReloadClass.IGNORED,
    "backends[].rate_limit": ReloadClass.IGNORED,
    "backends[].responses_api": ReloadClass.IGNORED,
    "api_keys": ReloadClass.IMMEDIATE,
    "api_keys.keys[].rate_limit": ReloadClass.IGNORED,
    "health_checks": ReloadClass.IMMEDIATE,
    "circuit_breaker": ReloadClass.IMMEDIATE,
    "request": ReloadClass.IMMEDIATE,
    "disaggregated_serving": ReloadClass.IMMEDIATE,
    "dynamo.enabled": ReloadClass.WATCHER,
    "dynamo.picker": ReloadClass.IMMEDIATE,
    "dynamo.discovery": ReloadClass.WATCHER,
    "dynamo.load.max_staleness": ReloadClass.IMMEDIATE,
    "dynamo.load.direct_allow_cidrs": ReloadClass.LOAD_TASKS,
    "dynamo.load.transport": ReloadClass.LOAD_TASKS,
    "dynamo.shim": ReloadClass.IMMEDIATE,
    "dynamo.kv": ReloadClass.IMMEDIATE,
    "dynamo.kv.engine_sources": ReloadClass.LOAD_TASKS,
    "dynamo.event_bus": ReloadClass.IGNORED,
    "log": ReloadClass.PROCESS,
    "checkpoints": ReloadClass.PROCESS,
    "audit": ReloadClass.PROCESS,
    "shadow": ReloadClass.IMMEDIATE,
    "admin": ReloadClass.IMMEDIATE,
    "logging": ReloadClass.IMMEDIATE,
    "metrics": ReloadClass.IGNORED,
    "metrics.enabled": ReloadClass.IMMEDIATE,
    "cache": ReloadClass.IGNORED,
    "retry": ReloadClass.IGNORED,
    "global_prompts": ReloadClass.IGNORED,
    "kv_cache_index": ReloadClass.IGNORED,
    "selection_strategy": ReloadClass.IGNORED,
    "rate_limits": ReloadClass.IGNORED,
}
"""Key or section to its class; the longest entry that a key lies under counts."""


class WatcherReason(StrEnum):
    """Why a watcher is replaced; a value of the process log and of nothing else."""

    ENABLED = "enabled"
    SOURCE = "source"
    NAMESPACE = "namespace"
    NAMESPACES = "namespaces"
    CONNECTION = "connection"
    BACKOFF = "backoff"
    OTHER = "other"


class FleetKept(StrEnum):
    """What routing sees until the new watcher has made its first full pass."""

    ALL = "all"
    """The fleet as it stands (REL-06)."""

    PRUNED = "pruned"
    """The fleet without workers and publishers of removed namespaces (REL-07)."""

    NOTHING = "nothing"
    """An empty registry (REL-08)."""


class WatcherChange(NamedTuple):
    """How the watcher changes. starts: a new one is to run; stops: one was running."""

    reason: WatcherReason
    stops: bool
    starts: bool
    fleet: FleetKept
    removed_namespaces: tuple[str, ...] = ()

    @property
    def counts_restart(self) -> bool:
        """Whether events_total{kind="restart"} is incremented; not for a plain stop (REL-05)."""
        return self.starts


class ReloadPlan(NamedTuple):
    """What to do about a changed configuration. Keys are schema paths such as `backends[].url`."""

    changed: tuple[str, ...]
    immediate: tuple[str, ...]
    restarts_load_tasks: bool
    watcher: WatcherChange | None
    needs_process_restart: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.changed


def plan_reload(old: Config, new: Config) -> ReloadPlan:
    """Compare two valid configurations; secrets count as well."""
    before, after = plain_settings(old, masked=False), plain_settings(new, masked=False)
    changed = tuple(
        path_text(keys) for keys, _ in leaf_keys() if _values(before, keys) != _values(after, keys)
    )
    return ReloadPlan(
        changed=changed,
        immediate=_of_class(changed, ReloadClass.IMMEDIATE),
        restarts_load_tasks=bool(_of_class(changed, ReloadClass.LOAD_TASKS)),
        watcher=plan_watcher(old.dynamo, new.dynamo),
        needs_process_restart=_of_class(changed, ReloadClass.PROCESS),
    )


def plan_watcher(old: DynamoSettings, new: DynamoSettings) -> WatcherChange | None:
    """Whether and why the running watcher is replaced, started or stopped; None leaves it alone."""
    if old.enabled != new.enabled:
        return WatcherChange(WatcherReason.ENABLED, old.enabled, new.enabled, FleetKept.NOTHING)
    if not new.enabled:
        return None
    if old.discovery.source is not new.discovery.source:
        return WatcherChange(WatcherReason.SOURCE, True, True, FleetKept.NOTHING)
    reason, fleet = _reason_within_source(old.discovery, new.discovery)
    if reason is None:
        return None
    removed: tuple[str, ...] = ()
    if fleet is FleetKept.PRUNED:
        removed = tuple(name for name in old.discovery.namespaces if name not in new.discovery.namespaces)
    return WatcherChange(reason, True, True, fleet, removed)


def reload_class(path: str) -> ReloadClass:
    """The class of a schema path such as `dynamo.shim.pools[].backends`. KeyError for an unknown section."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        for candidate in (key, key.removesuffix("[]")):
            if candidate in RELOAD_CLASS:
                return RELOAD_CLASS[candidate]
    raise KeyError(path)


def path_text(keys: Sequence[str]) -> str:
    """`("backends", "[]", "url")` as `backends[].url`."""
    return ".".join(keys).replace(".[]", "[]")


def _reason_within_source(
    old: DiscoverySettings, new: DiscoverySettings
) -> tuple[WatcherReason | None, FleetKept]:
    """The first reason of namespace, connection, backoff, other, and what it leaves of the fleet."""
    connection_changed = _connection(old) != _connection(new)
    if set(old.namespaces) != set(new.namespaces):
        is_list_edit = old.namespaces_listed or new.namespaces_listed
        if not is_list_edit:
            return WatcherReason.NAMESPACE, FleetKept.NOTHING
        if not connection_changed and _kept_models_agree(old, new):
            return WatcherReason.NAMESPACES, FleetKept.PRUNED
        return WatcherReason.NAMESPACES, FleetKept.NOTHING
    if connection_changed:
        is_place = new.source in (DiscoverySource.KUBERNETES, DiscoverySource.KUBERNETES_PODS)
        return (WatcherReason.NAMESPACE if is_place else WatcherReason.CONNECTION), FleetKept.NOTHING
    if _backoff(old) != _backoff(new):
        return WatcherReason.BACKOFF, FleetKept.ALL
    if new.source is DiscoverySource.KUBERNETES_PODS and _models(old.kubernetes) != _models(new.kubernetes):
        return WatcherReason.OTHER, FleetKept.NOTHING
    if new.source is DiscoverySource.FILE and (old.file.poll, old.file.ttl) != (new.file.poll, new.file.ttl):
        return WatcherReason.OTHER, FleetKept.ALL
    return None, FleetKept.ALL


def _connection(discovery: DiscoverySettings) -> tuple[Any, ...]:
    """What decides which store is read."""
    if discovery.source is DiscoverySource.ETCD:
        etcd = discovery.etcd
        return (etcd.endpoints, etcd.tls, etcd.auth)
    if discovery.source is DiscoverySource.FILE:
        return (discovery.file.root,)
    return (discovery.kubernetes.namespace,)


def _backoff(discovery: DiscoverySettings) -> Any:
    if discovery.source is DiscoverySource.ETCD:
        return discovery.etcd.watch_reconnect_backoff
    if discovery.source is DiscoverySource.FILE:
        return None
    return discovery.kubernetes.watch_reconnect_backoff


def _models(section: KubernetesSettings) -> tuple[Any, ...]:
    return (section.model, section.models)


def _kept_models_agree(old: DiscoverySettings, new: DiscoverySettings) -> bool:
    """Whether the models of kept namespaces are unchanged; only Pod sources configure models (REL-07)."""
    if new.source is not DiscoverySource.KUBERNETES_PODS:
        return True
    kept = set(old.namespaces) & set(new.namespaces)

    def of_kept(section: KubernetesSettings) -> list[tuple[str, str, str]]:
        chosen = [
            entry
            for entry in section.models or ()
            if entry.dynamo_namespace is None or entry.dynamo_namespace in kept
        ]
        return sorted((entry.dynamo_namespace or "", entry.component, entry.model) for entry in chosen)

    return old.kubernetes.model == new.kubernetes.model and of_kept(old.kubernetes) == of_kept(new.kubernetes)


def _of_class(paths: tuple[str, ...], wanted: ReloadClass) -> tuple[str, ...]:
    return tuple(path for path in paths if reload_class(path) is wanted)


def _values(data: Any, keys: tuple[str, ...]) -> Any:
    """The value of a leaf key in plain settings; below a list, one value an item."""
    for position, key in enumerate(keys):
        if key == "[]":
            return [_values(item, keys[position + 1 :]) for item in data or ()]
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data
