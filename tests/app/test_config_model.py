"""The root model: its shape can be walked, it is immutable, and plain settings read back the same."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from app.config_model import MASK, Config, keys_allowed_at, leaf_keys, plain_settings
from app.config_reload import path_text

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))
GUIDE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_leaf_keys_reach_into_lists_and_optional_sections() -> None:
    paths = {path_text(keys) for keys, _ in leaf_keys()}
    assert {"backends[].url", "dynamo.discovery.etcd.auth.password", "dynamo.shim.pools[].backends"} <= paths
    assert "dynamo.discovery.kubernetes.models[].component" in paths


def test_every_key_has_a_description() -> None:
    assert [path_text(keys) for keys, field in leaf_keys() if not field.description] == []


def test_every_key_is_in_the_guide() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    assert [path_text(keys) for keys, _ in leaf_keys() if f"`{path_text(keys)}`" not in guide] == []


def test_keys_allowed_at_a_path_follow_the_model() -> None:
    assert "url" in keys_allowed_at(("backends", 3))
    assert "root" in keys_allowed_at(("dynamo", "discovery", "file"))
    assert keys_allowed_at(("nowhere", "at", "all")) == ()
    assert keys_allowed_at(("server", "bind_address")) == ()


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Config().server.body_bytes_max = 1  # type: ignore[assignment]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_plain_settings_read_back_as_the_same_configuration(path: Path) -> None:
    config = Config.model_validate(yaml.safe_load(path.read_text()))
    assert Config.model_validate(plain_settings(config, masked=False)) == config


@pytest.mark.req("CFG-18", "CFG-19")
def test_secrets_are_masked_and_what_is_no_secret_stays_readable() -> None:
    etcd = {
        "tls": {"ca_cert": "/ca.pem", "client_cert": "/c.pem", "client_key": "/hunter2.pem"},
        "auth": {"username": "u", "password": "hunter2"},
    }
    config = Config.model_validate({"dynamo": {"discovery": {"etcd": etcd}}})
    shown = plain_settings(config, masked=True)
    masked = shown["dynamo"]["discovery"]["etcd"]
    assert masked["tls"] == {
        "ca_cert": "/ca.pem",
        "client_cert": "/c.pem",
        "client_key": MASK,
        "server_name": None,
    }
    assert masked["auth"] == {"username": "u", "password": MASK}
    assert "hunter2" not in str(shown)


def test_empty_sections_mean_their_defaults() -> None:
    assert Config.model_validate({"dynamo": {"shim": None, "kv": None}, "log": None}) == Config()
