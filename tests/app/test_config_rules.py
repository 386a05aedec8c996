"""Rules of the gateway and of the installation: binds, keys, admin, backends, extras."""

from typing import Any

import pytest

from app.config_findings import ConfigError
from app.config_load import check_data
from app.config_model import Config
from app.config_rules import ERRORS, SUGGESTIONS, WARNINGS, inactive_discovery

BACKENDS = [{"name": "a", "url": "http://a:1"}]
OPEN = {"server": {"bind_address": ["127.0.0.1:8080", "0.0.0.0:8081"]}}
TOKEN = {"admin": {"auth": {"method": "bearer_token", "token": "t"}}}
BLOCKING = {"api_keys": {"mode": "blocking", "keys": [{"id": "i", "key": "k"}]}}


def errors(data: dict[str, Any]) -> list[str]:
    try:
        check_data({"backends": BACKENDS, **data}, extras=frozenset({"etcd"}))
    except ConfigError as error:
        return [f"{finding.path}: {finding.message}" for finding in error.findings]
    return []


def warnings(data: dict[str, Any], extras: frozenset[str] = frozenset({"etcd"})) -> list[str]:
    _, report = check_data({"backends": BACKENDS, **data}, extras=extras)
    return [f"{finding.path}: {finding.message}" for finding in report.warnings]


def test_no_rule_stands_in_two_tables_and_none_finds_fault_with_a_plain_router() -> None:
    rules = (*ERRORS, *WARNINGS, *SUGGESTIONS)
    assert len(set(rules)) == len(rules)
    assert (errors({}), warnings({})) == ([], [])


def test_admin_without_authentication_is_refused_beyond_loopback() -> None:
    assert errors(OPEN)[0].startswith("admin.auth.method: `none` is accepted only while")
    assert not errors({**OPEN, **TOKEN})
    assert not errors({"server": {"bind_address": ["127.0.0.1:1", "[::1]:2", "localhost:3", "unix:/run/p"]}})


def test_open_public_api_without_blocking_keys_is_one_warning() -> None:
    everywhere = {"server": {"bind_address": ["0.0.0.0:8080", "[::]:8081"]}, **TOKEN}
    assert warnings(everywhere) == ["server.bind_address[0]: other machines may use the API without a key"]
    assert not warnings({**everywhere, **BLOCKING})


@pytest.mark.parametrize(
    ("auth", "missing"),
    [
        ({"method": "bearer_token"}, "token"),
        ({"method": "bearer_token", "token": ""}, "token"),
        ({"method": "basic", "username": "u"}, "password"),
        ({"method": "basic", "password": "p"}, "username"),
        ({"method": "api_key", "token": "t"}, "api_key"),
    ],
)
def test_admin_method_needs_its_secret(auth: dict[str, str], missing: str) -> None:
    assert errors({"admin": {"auth": auth}}) == [
        f"admin.auth.{missing}: is required for method {auth['method']}"
    ]


def test_binds_are_addresses_and_differ() -> None:
    assert errors({"server": {"bind_address": ["127.0.0.1:1", "8080"]}}) == [
        "server.bind_address[1]: has no port"
    ]
    assert "twice" in errors({"server": {"bind_address": ["127.0.0.1:1", "127.0.0.1:1"]}})[0]
    assert not errors({"server": {"bind_address": ["127.0.0.1:0", "127.0.0.1:0"]}})


@pytest.mark.field("B-143")
@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": "b c"}, "backends[0].name"),
        ({"name": "é"}, "backends[0].name"),
        ({"name": ""}, "backends[0].name"),
        ({"url": "http://h/v1"}, "backends[0].url"),
        ({"url": "http://u:p@h"}, "backends[0].url"),
        ({"type": "anthropic"}, "backends[0].type"),
        ({"role": "prefill"}, "backends[0].role"),
    ],
)
def test_backend_that_no_request_could_use_is_refused_with_its_key(change: dict[str, str], path: str) -> None:
    found = errors({"backends": [{**BACKENDS[0], **change}]})
    assert len(found) == 1 and found[0].startswith(f"{path}: ")


def test_backend_names_are_unique() -> None:
    assert "backends[1].name: 'a' is used twice" in errors({"backends": BACKENDS * 2})


def test_blocking_mode_without_an_enabled_key_is_refused() -> None:
    assert "refuses every request" in errors({"api_keys": {"mode": "blocking"}})[0]
    off = {"mode": "blocking", "keys": [{"id": "i", "key": "k", "enabled": False}]}
    assert "refuses every request" in errors({"api_keys": off})[0]
    assert not errors(BLOCKING)


@pytest.mark.parametrize(
    ("second", "path"),
    [
        ({"id": "i", "key": "k2"}, "api_keys.keys[1].id"),
        ({"id": "j", "key": "k1"}, "api_keys.keys[1].key"),
        ({"id": "j", "key": "k2", "allowed_backends": ["a", "b"]}, "api_keys.keys[1].allowed_backends[1]"),
        ({"id": "j", "key": "k2", "expires_at": "2030-01-01T00:00:00"}, "api_keys.keys[1].expires_at"),
    ],
)
def test_api_keys_are_distinct_and_name_known_backends(second: dict[str, Any], path: str) -> None:
    found = errors({"api_keys": {"keys": [{"id": "i", "key": "k1"}, second]}})
    assert len(found) == 1 and found[0].startswith(f"{path}: ")
    assert "k1" not in found[0] and "k2" not in found[0]


def test_kafka_without_brokers_and_unknown_pickers_are_refused_not_ignored() -> None:
    nowhere = ["log.kafka.bootstrap_servers: is empty, and log.kind is kafka"]
    assert errors({"log": {"kind": "kafka"}}) == nowhere
    assert errors({"log": {"kind": "kafka", "kafka": {"bootstrap_servers": ["h:9092"]}}}) == []
    assert errors({"dynamo": {"picker": "oracle"}}) == ["dynamo.picker: names no picker"]


def test_horizon_under_a_day_and_no_backend_are_warnings() -> None:
    assert warnings({"log": {"retention": {"age": "23h"}}}) == [
        "log.retention.age: keeps less than 24h to replay"
    ]
    assert "no request can be answered" in warnings({"backends": []})[0]


def test_settings_that_no_record_could_hold_are_refused() -> None:
    backends = [
        {"name": f"b{number}", "url": "http://h:1", "models": [f"{model:0100}" for model in range(40)]}
        for number in range(1000)
    ]
    assert "exceed 3 MiB" in errors({"backends": backends})[0]


ETCD_ON = {"dynamo": {"enabled": True, "discovery": {"etcd": {"endpoints": ["h:1"]}}}}
FILE_ON = {"dynamo": {"enabled": True, "discovery": {"source": "file", "file": {"root": "/s"}}}}


@pytest.mark.req("CFG-02")
def test_section_is_checked_without_the_extra_and_inactivity_is_said_once() -> None:
    found = [line for line in warnings(ETCD_ON, frozenset()) if "inactive" in line]
    assert found == [
        "dynamo.discovery.source: discovery is inactive: the extra picklog[etcd] is not installed"
    ]
    broken = {"dynamo": {"enabled": True, "discovery": {"etcd": {"endpoints": ["h:1", "https://g:1"]}}}}
    with pytest.raises(ConfigError, match="mixes http and https"):
        check_data(broken, extras=frozenset())


@pytest.mark.req("CFG-01", "CFG-02")
@pytest.mark.parametrize(
    ("data", "extras", "runs"),
    [
        (ETCD_ON, {"etcd"}, True),
        (ETCD_ON, {"etcd3"}, True),
        (ETCD_ON, set(), False),
        (FILE_ON, set(), True),
        ({"dynamo": {"enabled": True, "discovery": {"source": "kubernetes"}}}, {"etcd"}, False),
        ({"dynamo": {"enabled": False}}, set(), True),
    ],
)
def test_discovery_is_inactive_where_its_source_cannot_run(
    data: dict[str, Any], extras: set[str], runs: bool
) -> None:
    assert (inactive_discovery(Config.model_validate(data), frozenset(extras)) is None) is runs


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        ({"folder": "/shared/one-log", "peers": ["https://audit:8443", "http://127.0.0.1:8080"]}, []),
        ({"folder": "shared"}, ["checkpoints.folder: is no absolute path"]),
        ({"peers": ["audit:8080"]}, ["checkpoints.peers[0]: must begin with http:// or https://"]),
        (
            {"peers": ["http://user:secret@audit:8080"]},
            ["checkpoints.peers[0]: holds a user name or password"],
        ),
        ({"peers": ["http://a:1", "http://audit:8080/admin"]}, ["checkpoints.peers[1]: has a path"]),
    ],
)
def test_checkpoints_are_looked_for_where_they_can_be(checkpoints: dict[str, Any], said: list[str]) -> None:
    assert errors({"checkpoints": checkpoints}) == said
