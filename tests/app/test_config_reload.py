"""What a change costs, row by row: class of each key, reason of a replaced watcher, what is kept."""

import copy
from typing import Any

import pytest

from app.config_model import Config, leaf_keys
from app.config_reload import (
    RELOAD_CLASS,
    FleetKept,
    ReloadClass,
    ReloadPlan,
    WatcherReason,
    path_text,
    plan_reload,
    reload_class,
)

ETCD = "dynamo.discovery.etcd"
KUBE = "dynamo.discovery.kubernetes"
BASE: dict[str, Any] = {
    "dynamo": {
        "enabled": True,
        "discovery": {
            "etcd": {"endpoints": ["https://h:1"], "auth": {"username": "u", "password": "p"}},
            "file": {"root": "/store"},
            "kubernetes": {"namespace": "k", "dynamo_namespace": "d", "model": "m"},
        },
    }
}


def build(changes: dict[str, object], source: str = "etcd") -> Config:
    data = copy.deepcopy(BASE)
    for dotted, value in {"dynamo.discovery.source": source, **changes}.items():
        holder = data
        *above, last = dotted.split(".")
        for key in above:
            holder = holder.setdefault(key, {})
        holder[last] = value
    return Config.model_validate(data)


def plan(
    after: dict[str, object], before: dict[str, object] | None = None, source: str = "etcd"
) -> ReloadPlan:
    return plan_reload(build(before or {}, source), build(after, source))


def test_every_leaf_key_has_a_class_and_every_entry_of_the_table_is_used() -> None:
    paths = [path_text(keys) for keys, _ in leaf_keys()]
    classes = {path: reload_class(path) for path in paths}
    assert len(classes) == len(paths)
    unused = [
        key
        for key in RELOAD_CLASS
        if not any(path == key or path.startswith((f"{key}.", f"{key}[")) for path in paths)
    ]
    assert unused == []


def test_nothing_in_dynamo_needs_a_process_restart() -> None:
    needing = [p for p in (path_text(k) for k, _ in leaf_keys()) if reload_class(p) is ReloadClass.PROCESS]
    assert needing and not any(path.startswith("dynamo") for path in needing)


def test_unchanged_configuration_costs_nothing() -> None:
    assert plan({}).is_empty and plan({}).watcher is None


@pytest.mark.req("REL-02")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"dynamo.load.max_staleness": "1s"}, "dynamo.load.max_staleness"),
        ({"dynamo.shim.backends": ["x"]}, "dynamo.shim.backends"),
        ({"dynamo.shim.model_map": {"a": "b"}}, "dynamo.shim.model_map"),
        ({"dynamo.shim.allow_metadata_upload": True}, "dynamo.shim.allow_metadata_upload"),
        ({"backends": [{"name": "x", "url": "http://x"}]}, "backends[].url"),
        ({"api_keys": {"keys": [{"id": "i", "key": "k"}]}}, "api_keys.keys[].key"),
        ({"request": {"max_retries": 9}}, "request.max_retries"),
    ],
)
def test_keys_that_act_at_once_touch_neither_watcher_nor_load_tasks(
    change: dict[str, object], path: str
) -> None:
    found = plan(change)
    assert path in found.immediate
    assert (found.watcher, found.restarts_load_tasks, found.needs_process_restart) == (None, False, ())


@pytest.mark.req("REL-02")
def test_pools_act_at_once() -> None:
    found = plan({"dynamo.shim.pools": [{"namespace": "dynamo", "backends": ["x"]}]})
    assert found.immediate == ("dynamo.shim.pools[].namespace", "dynamo.shim.pools[].backends")
    assert found.watcher is None and not found.restarts_load_tasks


@pytest.mark.req("REL-03")
@pytest.mark.parametrize(
    "change", [{"dynamo.load.transport": "broker"}, {"dynamo.load.direct_allow_cidrs": ["10.0.0.0/8"]}]
)
def test_dial_policy_restarts_only_load_tasks(change: dict[str, object]) -> None:
    found = plan(change)
    assert found.restarts_load_tasks and found.watcher is None and found.immediate == ()


@pytest.mark.req("REL-04")
@pytest.mark.parametrize(
    ("change", "reason", "kept"),
    [
        ({f"{ETCD}.namespace": "other"}, WatcherReason.NAMESPACE, FleetKept.NOTHING),
        ({f"{ETCD}.endpoints": ["https://g:1"]}, WatcherReason.CONNECTION, FleetKept.NOTHING),
        ({f"{ETCD}.tls": {"ca_cert": "/ca"}}, WatcherReason.CONNECTION, FleetKept.NOTHING),
        ({f"{ETCD}.auth": {"username": "u", "password": "q"}}, WatcherReason.CONNECTION, FleetKept.NOTHING),
        (
            {f"{ETCD}.namespace": "o", f"{ETCD}.endpoints": ["https://g:1"]},
            WatcherReason.NAMESPACE,
            FleetKept.NOTHING,
        ),
    ],
)
def test_watcher_is_replaced_with_its_reason(
    change: dict[str, object], reason: WatcherReason, kept: FleetKept
) -> None:
    watcher = plan(change).watcher
    assert watcher is not None
    assert (watcher.reason, watcher.fleet, watcher.stops, watcher.starts) == (reason, kept, True, True)
    assert watcher.counts_restart


@pytest.mark.req("REL-04")
def test_enabling_starts_a_watcher_and_counts() -> None:
    watcher = plan({}, before={"dynamo.enabled": False}).watcher
    assert watcher is not None and watcher.reason is WatcherReason.ENABLED
    assert (watcher.stops, watcher.starts, watcher.counts_restart) == (False, True, True)


@pytest.mark.req("REL-05")
def test_disabling_stops_the_watcher_and_does_not_count() -> None:
    watcher = plan({"dynamo.enabled": False}).watcher
    assert watcher is not None and watcher.reason is WatcherReason.ENABLED
    assert (watcher.stops, watcher.starts, watcher.counts_restart) == (True, False, False)


def test_nothing_is_replaced_while_discovery_stays_off() -> None:
    off: dict[str, object] = {"dynamo.enabled": False}
    assert plan({**off, f"{ETCD}.namespace": "other"}, before=off).watcher is None


@pytest.mark.req("REL-04", "REL-06")
def test_changed_backoff_alone_keeps_the_whole_fleet() -> None:
    watcher = plan({f"{ETCD}.watch_reconnect_backoff": {"max": "10s"}}).watcher
    assert watcher is not None
    assert (watcher.reason, watcher.fleet, watcher.counts_restart) == (
        WatcherReason.BACKOFF,
        FleetKept.ALL,
        True,
    )


@pytest.mark.req("REL-07")
def test_edited_list_of_namespaces_prunes_only_the_removed_ones() -> None:
    before: dict[str, object] = {f"{ETCD}.namespaces": ["a", "b"]}
    watcher = plan({f"{ETCD}.namespaces": ["b", "c"]}, before).watcher
    assert watcher is not None
    assert (watcher.reason, watcher.fleet) == (WatcherReason.NAMESPACES, FleetKept.PRUNED)
    assert watcher.removed_namespaces == ("a",)
    grown = plan({f"{ETCD}.namespaces": ["dynamo", "canary"]}).watcher
    assert grown is not None and grown.fleet is FleetKept.PRUNED and grown.removed_namespaces == ()


@pytest.mark.req("REL-07")
def test_edited_list_with_another_connection_keeps_nothing() -> None:
    before: dict[str, object] = {f"{ETCD}.namespaces": ["a", "b"]}
    watcher = plan({f"{ETCD}.namespaces": ["b"], f"{ETCD}.endpoints": ["https://g:1"]}, before).watcher
    assert watcher is not None and watcher.fleet is FleetKept.NOTHING


def test_reordered_list_of_namespaces_leaves_the_watcher_alone() -> None:
    before: dict[str, object] = {f"{ETCD}.namespaces": ["a", "b"]}
    assert plan({f"{ETCD}.namespaces": ["b", "a"]}, before).watcher is None


@pytest.mark.req("REL-08")
@pytest.mark.parametrize("source", ["file", "kubernetes", "kubernetes_pods"])
def test_switched_source_empties_the_registry(source: str) -> None:
    watcher = plan_reload(build({}), build({}, source)).watcher
    assert watcher is not None
    assert (watcher.reason, watcher.fleet) == (WatcherReason.SOURCE, FleetKept.NOTHING)


def test_settings_of_another_source_leave_the_watcher_alone() -> None:
    assert plan({f"{ETCD}.endpoints": ["https://g:1"]}, source="file").watcher is None


@pytest.mark.parametrize(
    ("change", "reason", "kept"),
    [
        ({"dynamo.discovery.file.root": "/other"}, WatcherReason.CONNECTION, FleetKept.NOTHING),
        ({"dynamo.discovery.file.namespace": "o"}, WatcherReason.NAMESPACE, FleetKept.NOTHING),
        ({"dynamo.discovery.file.poll": "1s"}, WatcherReason.OTHER, FleetKept.ALL),
        ({"dynamo.discovery.file.ttl": "20s"}, WatcherReason.OTHER, FleetKept.ALL),
    ],
)
def test_file_source_has_its_own_reasons(
    change: dict[str, object], reason: WatcherReason, kept: FleetKept
) -> None:
    watcher = plan(change, source="file").watcher
    assert watcher is not None and (watcher.reason, watcher.fleet) == (reason, kept)


@pytest.mark.req("REL-09")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({f"{KUBE}.namespace": "o"}, WatcherReason.NAMESPACE),
        ({f"{KUBE}.dynamo_namespace": "o"}, WatcherReason.NAMESPACE),
        ({f"{KUBE}.model": "o"}, WatcherReason.OTHER),
    ],
)
def test_pod_source_resets_with_its_reason(change: dict[str, object], reason: WatcherReason) -> None:
    watcher = plan(change, source="kubernetes_pods").watcher
    assert watcher is not None and (watcher.reason, watcher.fleet) == (reason, FleetKept.NOTHING)


@pytest.mark.req("REL-10")
def test_model_under_the_metadata_source_changes_nothing() -> None:
    assert plan({f"{KUBE}.model": "o"}, source="kubernetes").watcher is None


def test_changed_model_of_a_kept_pod_namespace_keeps_nothing() -> None:
    def models(model: str) -> dict[str, object]:
        entry = {"component": "c", "model": model, "dynamo_namespace": "a"}
        return {f"{KUBE}.dynamo_namespace": None, f"{KUBE}.model": None, f"{KUBE}.models": [entry]}

    before = {**models("m"), f"{KUBE}.dynamo_namespaces": ["a", "b"]}
    same = plan({**models("m"), f"{KUBE}.dynamo_namespaces": ["a"]}, before, "kubernetes_pods").watcher
    other = plan({**models("n"), f"{KUBE}.dynamo_namespaces": ["a"]}, before, "kubernetes_pods").watcher
    assert same is not None and same.fleet is FleetKept.PRUNED
    assert other is not None and other.fleet is FleetKept.NOTHING


def test_changed_bind_address_is_told_to_need_a_restart() -> None:
    found = plan({"server": {"bind_address": "127.0.0.1:1"}, "log": {"questions": "full"}})
    assert found.needs_process_restart == ("server.bind_address", "log.questions")
    assert found.watcher is None


def test_changed_secret_is_a_change() -> None:
    token: dict[str, object] = {"admin": {"auth": {"method": "bearer_token", "token": "a"}}}
    other: dict[str, object] = {"admin": {"auth": {"method": "bearer_token", "token": "b"}}}
    assert plan(other, before=token).immediate == ("admin.auth.token",)
