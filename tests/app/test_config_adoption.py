"""What enters the log holds no secret, and a masked document put back keeps the secrets in force."""

from typing import Any

import orjson
import pytest

from app.config_adoption import adoptable_settings, pick_settings, restore_secrets, secret_keys
from app.config_findings import ConfigError
from app.config_load import check_data, effective_settings
from app.config_model import MASK, Config
from app.config_reload import path_text, plan_reload

SECRETS = {f"hunter{number}" for number in range(8)}


def document() -> dict[str, Any]:
    return {
        "backends": [
            {"name": "a", "url": "http://a:1", "api_key": "hunter0"},
            {"name": "b", "url": "http://b:1", "api_key": "hunter1"},
        ],
        "api_keys": {"keys": [{"id": "i", "key": "hunter2"}, {"id": "j", "key": "hunter3"}]},
        "admin": {"auth": {"method": "bearer_token", "token": "hunter4"}},
        "dynamo": {
            "enabled": True,
            "discovery": {
                "etcd": {
                    "endpoints": ["https://h:1"],
                    "namespaces": ["z", "y"],
                    "tls": {"ca_cert": "/ca", "client_cert": "/c", "client_key": "hunter5"},
                    "auth": {"username": "u", "password": "hunter6"},
                }
            },
            "load": {"max_staleness": "250ms"},
            "shim": {
                "pools": [{"namespace": "z", "backends": ["a"]}, {"namespace": "y", "backends": ["b"]}],
                "model_map": {"q": "Q/1", "p": "P/1"},
            },
        },
        "audit": {"url": "postgresql+asyncpg://u:hunter7@db/audit"},
    }


@pytest.fixture
def live() -> Config:
    return check_data(document(), extras=frozenset({"etcd"}))[0]


def test_pick_settings_are_sorted_plain_and_in_microseconds(live: Config) -> None:
    settings = pick_settings(live)
    assert (settings.picker, settings.source, settings.namespaces) == ("load_based", "etcd", ("y", "z"))
    assert settings.model_map == (("p", "P/1"), ("q", "Q/1"))
    assert settings.max_staleness_us == 250_000
    assert settings.ledger is True


@pytest.mark.req("CFG-18", "CFG-19", "REL-13")
def test_what_enters_the_log_holds_no_secret(live: Config) -> None:
    adopted = adoptable_settings(live, frozenset())
    assert len(adopted.digest) == 16 and adopted.enabled is True
    assert adopted.pick == pick_settings(live)
    assert not any(secret in adopted.settings + repr(adopted) for secret in SECRETS)
    assert orjson.loads(adopted.settings) == effective_settings(live)


@pytest.mark.req("REL-13")
def test_masked_document_put_back_keeps_every_secret(live: Config) -> None:
    restored, _ = check_data(restore_secrets(effective_settings(live), live))
    assert restored == live
    assert plan_reload(live, restored).is_empty


@pytest.mark.req("REL-13")
def test_masked_password_stays_live_on_changed_endpoints(live: Config) -> None:
    masked = effective_settings(live)
    masked["dynamo"]["discovery"]["etcd"]["endpoints"] = ["https://elsewhere:1"]
    restored, _ = check_data(restore_secrets(masked, live))
    auth = restored.dynamo.discovery.etcd.auth
    assert auth is not None and auth.password.get_secret_value() == "hunter6"


def test_secrets_follow_the_name_of_their_item_not_its_position(live: Config) -> None:
    masked = effective_settings(live)
    masked["backends"].reverse()
    del masked["api_keys"]["keys"][0]
    restored, _ = check_data(restore_secrets(masked, live))
    assert [backend.api_key and backend.api_key.get_secret_value() for backend in restored.backends] == [
        "hunter1",
        "hunter0",
    ]
    assert [entry.key.get_secret_value() for entry in restored.api_keys.keys] == ["hunter3"]


def test_masked_value_without_a_live_secret_is_refused_with_its_key(live: Config) -> None:
    masked = effective_settings(live)
    masked["backends"].append({"name": "new", "url": "http://n:1", "api_key": MASK})
    with pytest.raises(ConfigError, match=r"backends\[2\].api_key: is masked"):
        restore_secrets(masked, live)


def test_new_secret_replaces_the_live_one_and_stars_elsewhere_stay(live: Config) -> None:
    masked = effective_settings(live)
    masked["admin"]["auth"]["token"] = "fresh"
    masked["dynamo"]["shim"]["model_map"] = {"stars": MASK}
    restored, _ = check_data(restore_secrets(masked, live))
    assert restored.admin.auth.token is not None and restored.admin.auth.token.get_secret_value() == "fresh"
    assert restored.dynamo.shim.model_map == {"stars": MASK}


def test_every_secret_key_is_known() -> None:
    assert {path_text(keys) for keys in secret_keys()} == {
        "backends[].api_key",
        "api_keys.keys[].key",
        "dynamo.discovery.etcd.tls.client_key",
        "dynamo.discovery.etcd.auth.password",
        "dynamo.event_bus.tls.key",
        "log.kafka.security.password",
        "log.kafka.security.client_key",
        "audit.url",
        "admin.auth.token",
        "admin.auth.password",
        "admin.auth.api_key",
    }
