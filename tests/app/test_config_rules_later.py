"""Sections of features to come: they parse, are checked, and are told of in one warning each."""

from typing import Any

import pytest

from app.config_findings import ConfigError
from app.config_load import check_data
from app.config_model import Config

HASH = "sha256:" + "0" * 64
BACKENDS = [{"name": "a", "url": "http://a:1"}]


def errors(data: dict[str, Any]) -> list[str]:
    try:
        check_data({"backends": BACKENDS, **data}, extras=frozenset({"etcd"}))
    except ConfigError as error:
        return [f"{finding.path}: {finding.message}" for finding in error.findings]
    return []


def warnings(data: dict[str, Any]) -> list[str]:
    _, report = check_data({"backends": BACKENDS, **data}, extras=frozenset({"etcd"}))
    return [f"{finding.path}: {finding.message}" for finding in report.warnings]


def kubernetes(source: str = "kubernetes_pods", **section: Any) -> dict[str, Any]:
    base: dict[str, object] = {"namespace": "fleet", "dynamo_namespace": "dynamo", "model": "m"}
    chosen = {key: value for key, value in {**base, **section}.items() if value is not None}
    return {"dynamo": {"enabled": True, "discovery": {"source": source, "kubernetes": chosen}}}


@pytest.mark.req("CFG-32")
@pytest.mark.parametrize("change", [{"namespace": "Fleet"}, {"namespace": "a.b"}, {"namespace": None}])
def test_kubernetes_namespace_is_a_dns_label(change: dict[str, Any]) -> None:
    assert not errors(kubernetes())
    assert errors(kubernetes(**change))[0].startswith("dynamo.discovery.kubernetes.namespace: ")


@pytest.mark.req("CFG-32")
@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 64])
def test_dynamo_namespace_is_a_label_value(name: str) -> None:
    assert "label value" in errors(kubernetes(dynamo_namespace=name))[0]


ONE = {"component": "c", "model": "m"}


@pytest.mark.req("CFG-33")
@pytest.mark.parametrize(
    "change",
    [{"model": None}, {"models": [ONE]}, {"model": ""}, {"model": "a b"}, {"model": None, "models": []}],
)
def test_pods_need_exactly_one_usable_model_or_models(change: dict[str, Any]) -> None:
    assert errors(kubernetes(**change))
    assert not errors(kubernetes(model=None, models=[ONE]))


@pytest.mark.req("CFG-34")
@pytest.mark.parametrize(("count", "is_valid"), [(0, False), (1, True), (256, True), (257, False)])
def test_models_are_one_to_256(count: int, is_valid: bool) -> None:
    models = [{"component": f"c{number}", "model": "m"} for number in range(count)]
    assert (not errors(kubernetes(model=None, models=models))) is is_valid


@pytest.mark.req("CFG-34")
def test_components_are_unique() -> None:
    assert "twice" in errors(kubernetes(model=None, models=[ONE, ONE]))[0]


@pytest.mark.req("CFG-35")
def test_list_of_dynamo_namespaces_replaces_the_scalar() -> None:
    assert not errors(kubernetes(dynamo_namespace=None, dynamo_namespaces=["a"]))
    assert "stands beside" in errors(kubernetes(dynamo_namespaces=["a"]))[0]
    assert errors(kubernetes(dynamo_namespace=None, dynamo_namespaces=["a", "a"]))
    names = [f"n{number}" for number in range(17)]
    assert any(
        "up to 16" in line for line in errors(kubernetes(dynamo_namespace=None, dynamo_namespaces=names))
    )


@pytest.mark.req("CFG-36")
def test_with_several_namespaces_each_model_names_its_own() -> None:
    data = kubernetes(dynamo_namespace=None, dynamo_namespaces=["x", "y"], model=None, models=[ONE])
    assert any(
        line.startswith("dynamo.discovery.kubernetes.models[0].dynamo_namespace: is required")
        for line in errors(data)
    )
    foreign = kubernetes(model=None, models=[{**ONE, "dynamo_namespace": "other"}])
    assert "is not a configured" in errors(foreign)[0]


@pytest.mark.req("CFG-37", "CFG-38")
def test_kubernetes_sources_come_with_their_advice() -> None:
    assert any(
        "are ignored: each worker's card names it" in line for line in warnings(kubernetes("kubernetes"))
    )
    assert any("no load and no capacity signals" in line for line in warnings(kubernetes()))


def bus(**section: object) -> dict[str, Any]:
    return {"dynamo": {"event_bus": {"enabled": True, **section}}}


@pytest.mark.req("CFG-42")
@pytest.mark.parametrize(
    ("listen", "bind", "is_valid"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", False),
        ("0.0.0.0:8080", "127.0.0.1:8080", False),
        ("[::]:8080", "127.0.0.1:8080", False),
        ("127.0.0.2:8080", "127.0.0.1:8080", True),
        ("0.0.0.0:7443", "127.0.0.1:8080", True),
        ("0.0.0.0:7443", "unix:/run/p.sock", True),
    ],
)
def test_bus_listens_on_a_port_of_its_own(listen: str, bind: str, is_valid: bool) -> None:
    assert (not errors({"server": {"bind_address": bind}, **bus(listen=listen)})) is is_valid


@pytest.mark.req("CFG-43")
def test_bus_buffer_holds_64_kib_a_stream() -> None:
    assert errors(bus(max_streams_per_session=1024, max_session_buffer_bytes="63MiB"))
    assert not errors(bus(max_streams_per_session=1024, max_session_buffer_bytes=67_108_864))


@pytest.mark.req("CFG-44")
def test_bus_defaults_are_those_of_the_specification() -> None:
    section = Config().dynamo.event_bus
    assert (section.max_sessions, section.max_streams_per_session) == (64, 1024)
    assert section.max_session_buffer_bytes.count == 64 << 20
    assert (str(section.heartbeat_interval), str(section.idle_timeout)) == ("10s", "30s")


@pytest.mark.req("CFG-45")
def test_broker_without_namespaces_is_a_warning() -> None:
    assert any(
        "may declare any namespace" in line
        for line in warnings(bus(brokers=[{"id": "b", "token_hash": HASH}]))
    )
    named = {"id": "b", "token_hash": HASH, "namespaces": ["dynamo"]}
    assert not any("may declare" in line for line in warnings(bus(brokers=[named])))


@pytest.mark.req("CFG-46")
def test_broker_ids_and_token_hashes_have_their_form() -> None:
    assert "used twice" in errors(bus(brokers=[{"id": "b", "token_hash": HASH}] * 2))[0]
    assert errors(bus(brokers=[{"id": "b", "token_hash": HASH.upper()}]))
    assert errors(bus(brokers=[{"id": "*.example.com"}], tls={"client_ca": "/ca.pem"}))
    assert not errors(bus(brokers=[{"id": "broker-a.dynamo"}], tls={"client_ca": "/ca.pem"}))


def push(*, enabled: bool, granted: list[str], wanted: list[str]) -> dict[str, Any]:
    listener = {"id": "l", "role": "kv_listener", "token_hash": HASH, "backends": granted}
    sources = [{"backend": name, "transport": "event_bus"} for name in wanted]
    return {**bus(enabled=enabled, brokers=[listener]), "kv_cache_index": {"sources": sources}}


@pytest.mark.req("CFG-47")
def test_bus_source_while_the_bus_is_off_is_a_warning() -> None:
    assert any(
        "which is disabled" in line for line in warnings(push(enabled=False, granted=["v"], wanted=["v"]))
    )
    assert not any(
        "which is disabled" in line for line in warnings(push(enabled=True, granted=["v"], wanted=["v"]))
    )


@pytest.mark.req("CFG-48")
def test_source_without_grant_and_grant_without_source_are_warnings() -> None:
    found = warnings(push(enabled=True, granted=["g"], wanted=["w"]))
    assert any("granted by no kv_listener" in line for line in found)
    assert any("no bus source consumes 'g'" in line for line in found)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (kubernetes("kubernetes", model=None), "dynamo.discovery.source"),
        ({"dynamo": {"load": {"transport": "broker"}}}, "dynamo.load.transport"),
        (bus(), "dynamo.event_bus"),
        ({"log": {"kafka": {"bootstrap_servers": ["k:9092"]}}}, "log.kafka"),
        ({"global_prompts": {"default": "be brief"}}, "global_prompts"),
        ({"kv_cache_index": {"enabled": True}}, "kv_cache_index"),
    ],
)
def test_feature_to_come_is_told_of_once(data: dict[str, Any], key: str) -> None:
    found = [line for line in warnings(data) if "not in this release" in line]
    assert found == [f"{key}: not in this release: ignored"]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"cache": {"model_cache_ttl": 300}}, "cache"),
        ({"retry": {"max_attempts": 3}}, "retry"),
        ({"selection_strategy": "RoundRobin"}, "selection_strategy"),
        ({"rate_limits": {}}, "rate_limits"),
        ({"server": {"workers": 4}}, "server.workers"),
        ({"metrics": {"endpoint": "/m"}}, "metrics.endpoint"),
        (
            {"backends": [{**BACKENDS[0], "weight": 2}, {"name": "b", "url": "http://b:1", "weight": 1}]},
            "backends[0].weight",
        ),
        ({"api_keys": {"keys": [{"key": "k", "id": "i", "rate_limit": 60}]}}, "api_keys.keys[0].rate_limit"),
    ],
)
def test_key_of_the_reference_gateway_is_told_of_once(data: dict[str, Any], key: str) -> None:
    assert warnings(data) == [f"{key}: not a feature of this router: ignored"]


def test_sections_at_their_defaults_are_not_told_of() -> None:
    assert warnings({"audit": {}, "log": {"kafka": {}}, "dynamo": {"kv": {}, "event_bus": {}}}) == []
