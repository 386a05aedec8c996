"""Loading: order of sources, variables, key files, places of findings, and that only ConfigError leaves."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import config_load
from app.config_findings import ConfigError, ConfigUnreadable
from app.config_load import (
    LoadedConfig,
    check_data,
    effective_settings,
    find_config_file,
    load_config,
    settings_digest,
)
from app.config_model import Config

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))
EXAMPLE_SECRETS = {
    name: name.lower()
    for name in (
        "VLLM_KEY",
        "TEAM_A_KEY",
        "TEAM_B_KEY",
        "ADMIN_TOKEN",
        "ETCD_PASSWORD",
        "CLIENT_KEY",
        "POSTGRES_PASSWORD",
    )
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def load(
    file: Path, text: str, environment: dict[str, str] | None = None, **overrides: object
) -> LoadedConfig:
    file.write_text(text, encoding="utf-8")
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(file, environment=environment or {}, overrides=named, extras=frozenset({"etcd"}))


def refusal(file: Path, text: str, environment: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, text, environment)
    return caught.value


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid_without_a_warning(path: Path) -> None:
    loaded = load_config(path, environment=EXAMPLE_SECRETS, extras=frozenset({"etcd", "kv"}))
    assert loaded.report.warnings == () and loaded.report.suggestions == ()


def test_command_line_beats_environment_beats_file_beats_default(file: Path) -> None:
    text = "request: {max_retries: 1}\n"
    variables = {"PICKLOG__REQUEST__MAX_RETRIES": "2"}
    assert Config().request.max_retries not in (1, 3)
    assert load(file, text).config.request.max_retries == 1
    assert load(file, text, {"PICKLOG__REQUEST__MAX_RETRIES": "7"}).config.request.max_retries == 7
    assert load(file, text, variables, request__max_retries=3).config.request.max_retries == 3


def test_environment_reaches_nested_keys_and_lists(file: Path) -> None:
    variables = {
        "PICKLOG__SERVER__BIND_ADDRESS": "127.0.0.1:9000",
        "PICKLOG__DYNAMO__DISCOVERY__ETCD__ENDPOINTS": '["h:1", "g:1"]',
        "PICKLOG__DYNAMO__SHIM__MODEL_MAP": "{small: Big/Model}",
        "PICKLOG__ADMIN__AUTH__TOKEN": "12345",
        "OTHER__SERVER__BIND_ADDRESS": "nonsense",
    }
    config = load(file, "dynamo: {discovery: {etcd: {endpoints: [x:1]}}}", variables).config
    assert config.server.bind_address == ("127.0.0.1:9000",)
    assert config.dynamo.discovery.etcd.endpoints == ("h:1", "g:1")
    assert config.dynamo.shim.model_map == {"small": "Big/Model"}
    assert config.admin.auth.token is not None and config.admin.auth.token.get_secret_value() == "12345"


def test_fault_from_the_environment_names_its_variable(file: Path) -> None:
    found = refusal(file, "server: {}\n", {"PICKLOG__SERVER__BODY_BYTES_MAX": "hunter2"}).findings[0]
    assert (str(found.place), found.path) == (
        "environment PICKLOG__SERVER__BODY_BYTES_MAX",
        "server.body_bytes_max",
    )
    assert "hunter2" not in str(found)
    assert "does not name a key" in str(refusal(file, "", {"PICKLOG__A____B": "x"}))
    assert "holds no keys" in str(refusal(file, "server: 3", {"PICKLOG__SERVER__WORKERS": "x"}))


def test_unknown_key_is_refused_with_line_and_nearest_name(file: Path) -> None:
    error = refusal(file, "server:\n  bind_address: 127.0.0.1:1\nbackends:\n  - nam: a\n    url: http://h\n")
    shown = str(error)
    assert f"{file}:4: backends[0].nam: unknown key; did you mean `name`?" in shown
    assert "backends[0].name: is required" in shown


@pytest.mark.req("CFG-49")
def test_variables_are_filled_into_strings(file: Path) -> None:
    text = 'backends: [{name: "a-${X}", url: "http://${H}:1", api_key: "${K}"}]\n'
    text += 'dynamo: {shim: {model_map: {m: "$${X} $5"}}}'
    config = load(file, text, {"X": "1", "H": "host", "K": "p: [s]"}).config
    backend = config.backends[0]
    assert (backend.name, backend.url) == ("a-1", "http://host:1")
    assert backend.api_key is not None and backend.api_key.get_secret_value() == "p: [s]"
    assert config.dynamo.shim.model_map == {"m": "${X} $5"}


@pytest.mark.req("CFG-49")
def test_unset_variable_is_named_with_its_line_and_nothing_else_is_shown(file: Path) -> None:
    text = 'admin:\n  auth:\n    method: bearer_token\n    token: "hunter2${ADMIN_TOKEN}"\n'
    found = refusal(file, text).findings[0]
    assert (
        str(found)
        == f"{file}:4: admin.auth.token: the environment variable ADMIN_TOKEN is not set; set ADMIN_TOKEN"
    )


@pytest.mark.req("CFG-49")
@pytest.mark.parametrize("text", ["${", "${}", "${A B}", "${1}", "${A:-b}", "${A"])
def test_malformed_variable_is_refused(file: Path, text: str) -> None:
    assert "does not begin a variable" in str(
        refusal(file, f"admin: {{auth: {{token: '{text}'}}}}", {"A": "x"})
    )


def test_keys_of_the_key_file_are_appended_and_keep_their_places(file: Path) -> None:
    keys = file.parent / "keys.yaml"
    text = "api_keys: {file: keys.yaml, keys: [{id: own, key: k0}]}"
    keys.write_text('keys:\n  - {id: one, key: "${K1}"}\n  - {id: two, key: k2}\n')
    loaded = load(file, text, {"K1": "k1"})
    assert [entry.id for entry in loaded.config.api_keys.keys] == ["own", "one", "two"]
    assert loaded.watched == (file, keys)
    keys.write_text("- {id: one, key: k1}\n- {id: one, key: k2}\n")
    assert f"{keys}:2: api_keys.keys[2].id: is used twice" in str(refusal(file, text))
    keys.write_text("other: []\n")
    assert "must hold one key `keys`" in str(refusal(file, text))
    keys.unlink()
    with pytest.raises(ConfigUnreadable):
        load(file, text)


def test_names_of_the_reference_product_are_understood(file: Path) -> None:
    (file.parent / "k.yaml").write_text("[]")
    config = load(file, "api_keys_file: k.yaml\nhealth_checks: {endpoint: /health}\n").config
    assert (config.api_keys.file, config.health_checks.path) == ("k.yaml", "/health")


def test_missing_file_is_unreadable_and_a_folder_too(file: Path) -> None:
    for path in (file, file.parent):
        with pytest.raises(ConfigUnreadable, match="cannot be read"):
            load_config(path, environment={})


@pytest.mark.parametrize("text", ["[1, 2]", "words", "3"])
def test_file_that_is_no_mapping_is_refused(file: Path, text: str) -> None:
    assert "keys, not a list" in str(refusal(file, text))


def test_first_file_of_the_search_order_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    (home / ".config" / "picklog").mkdir(parents=True)
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    order = ("./config.yaml", str(tmp_path / "etc.yaml"), "~/.config/picklog/config.yaml")
    assert config_load.SEARCHED[0] == order[0] and config_load.SEARCHED[2] == order[2]
    monkeypatch.setattr(config_load, "SEARCHED", order)
    assert find_config_file() is None
    assert load_config(environment={}).path is None
    for path in (home / ".config" / "picklog" / "config.yaml", tmp_path / "etc.yaml", here / "config.yaml"):
        path.write_text("{}")
        found = find_config_file()
        assert found is not None and found.samefile(path)


def test_digest_knows_every_setting_but_no_secret(file: Path) -> None:
    def digest(**data: Any) -> str:
        return settings_digest(check_data(data)[0])

    assert digest() == digest(server={"bind_address": ["127.0.0.1:8080"]})
    assert digest() != digest(request={"max_retries": 1})
    one, other = ({"auth": {"method": "bearer_token", "token": token}} for token in ("a", "b"))
    assert digest(admin=one) == digest(admin=other) != digest()
    assert len(bytes.fromhex(digest())) == 16


def test_effective_settings_spell_out_every_default() -> None:
    shown = effective_settings(Config())
    assert shown["dynamo"]["load"]["max_staleness"] == "3s"
    assert shown["server"]["body_bytes_max"] == "16MiB"


KEYS = [
    "server",
    "bind_address",
    "backends",
    "name",
    "url",
    "dynamo",
    "discovery",
    "etcd",
    "endpoints",
    "namespaces",
]
KEYS += [
    "shim",
    "pools",
    "load",
    "max_staleness",
    "api_keys",
    "keys",
    "file",
    "log",
    "retention",
    "bytes",
    "admin",
    "auth",
]
KEYS += [
    "model_map",
    "kubernetes",
    "models",
    "event_bus",
    "listen",
    "kv_cache_index",
    "sources",
    "tls",
    "cache",
    "x",
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["3s", "25%", "h:1", "${X}"]),
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), DATA, max_size=6))
def test_any_data_is_a_configuration_or_a_config_error(data: dict[str, object]) -> None:
    outcome = checked(data)
    if isinstance(outcome, ConfigError):
        assert outcome.findings and all("\n" not in str(finding) for finding in outcome.findings)
    else:
        assert check_data(effective_settings(outcome, masked=False))[0] == outcome


@pytest.mark.parametrize(
    "value", [1 << 70, -(1 << 70), float("nan"), float("-inf"), "\ud800", {"a": ["\udfff"]}]
)
def test_ignored_sections_may_hold_what_json_cannot(value: object) -> None:
    config, _ = check_data({"cache": value})
    assert len(settings_digest(config)) == 32


def test_number_too_long_to_print_is_no_trouble(file: Path) -> None:
    assert load(file, "cache: 0x" + "f" * 5000).report.warnings
    assert "does not fit" in str(refusal(file, "cache: " + "9" * 5000))


def checked(data: object) -> Config | ConfigError:
    try:
        return check_data(data)[0]
    except ConfigError as error:
        return error


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from([*KEYS, ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "${X}", "3s", "'"]),
        max_size=30,
    )
)
def test_any_file_loads_or_is_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text("".join(pieces))
    outcome = loaded_or_error(path)
    assert isinstance(outcome, LoadedConfig) or outcome.findings


def loaded_or_error(path: Path) -> LoadedConfig | ConfigError:
    try:
        return load_config(path, environment={"PICKLOG__SERVER__BIND_ADDRESS": "127.0.0.1:1"})
    except ConfigError as error:
        return error
