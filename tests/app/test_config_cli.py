"""`picklog config`: exit statuses, one line an error, masked output, one JSON document."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.config_cli import config_app
from app.config_load import settings_digest
from app.config_model import Config, leaf_keys
from app.config_reload import path_text
from projections import bounds

SECRET = """\
admin: {auth: {method: bearer_token, token: hunter2}}
backends: [{name: a, url: "http://a:1", api_key: hunter2}]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site.yaml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(config_app, list(arguments))


def test_valid_file_prints_valid_and_its_warnings_on_stderr(file: Path) -> None:
    file.write_text(SECRET + "log: {retention: {age: 1h}}\n")
    result = run("validate", "-c", str(file))
    assert (result.exit_code, result.stdout) == (0, "valid\n")
    assert f"warning: {file}:3: log.retention.age: keeps less than 24h" in result.stderr


@pytest.mark.req("CFG-29")
def test_suggestions_are_printed_by_validate_only(file: Path) -> None:
    file.write_text(
        SECRET
        + "dynamo: {enabled: true, discovery: {source: file, file: {root: /s}}, shim: {backends: [a]}}\n"
    )
    assert "suggestion: " in run("validate", "-c", str(file)).stderr
    assert "suggestion: " not in run("show", "-c", str(file)).stderr


@pytest.mark.field("B-143")
def test_each_error_is_one_line_with_file_line_key_and_remedy(file: Path) -> None:
    file.write_text("server:\n  bind_adress: x\nrequest: {max_retries: many}\n")
    result = run("validate", "-c", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == (
        f"error: {file}:2: server.bind_adress: unknown key; did you mean `bind_address`?"
    )
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("command", ["validate", "show"])
def test_missing_file_is_status_three_and_bad_file_status_two(file: Path, command: str) -> None:
    assert run(command, "-c", str(file)).exit_code == 3
    file.write_text("x: 1")
    assert run(command, "-c", str(file)).exit_code == 2


def test_file_is_searched_and_its_absence_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.config_load.SEARCHED", ("./config.yaml",))
    assert "defaults apply" in run("validate").stderr
    file.with_name("config.yaml").write_text("request: {max_retries: 9}")
    result = run("show")
    assert "defaults apply" not in result.stderr
    assert yaml.safe_load(result.stdout)["request"]["max_retries"] == 9


def test_validate_as_json_is_one_document(file: Path) -> None:
    file.write_text("log: {kind: kafka}\n")
    refused = run("validate", "-c", str(file), "--json")
    document = json.loads(refused.stdout)
    assert refused.exit_code == 2 and document["valid"] is False
    assert document["errors"] == [
        {
            "path": "log.kafka.bootstrap_servers",
            "message": "is empty, and log.kind is kafka",
            "hint": "name host:port of a broker",
            "source": str(file),
            "line": 1,
        }
    ]
    file.write_text("{}")
    document = json.loads(run("validate", "-c", str(file), "--json").stdout)
    assert (document["valid"], document["path"]) == (True, str(file))
    assert document["digest"] == settings_digest(Config())


@pytest.mark.req("CFG-18", "CFG-19")
@pytest.mark.parametrize("arguments", [("show",), ("show", "--json"), ("validate", "--json")])
def test_no_output_holds_a_secret(file: Path, arguments: tuple[str, ...]) -> None:
    etcd = "tls: {client_cert: /c.pem, client_key: /hunter2.pem}, auth: {username: u, password: hunter2}"
    file.write_text(SECRET + f"dynamo: {{discovery: {{etcd: {{endpoints: ['https://h:1'], {etcd}}}}}}}\n")
    result = run(*arguments, "-c", str(file))
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    if arguments[0] == "show":
        assert "***" in result.stdout and "/c.pem" in result.stdout


@pytest.mark.req("CFG-40", "CFG-44")
def test_show_spells_out_defaults_and_reads_back(file: Path) -> None:
    file.write_text("dynamo: {kv: {enabled: true}}")
    shown = run("show", "-c", str(file)).stdout
    settings = yaml.safe_load(shown)
    kv, bus = settings["dynamo"]["kv"], settings["dynamo"]["event_bus"]
    assert (kv["allow_http_artifacts"], kv["overlap_score_credit"], kv["router_temperature"]) == (
        True,
        1.0,
        0.0,
    )
    assert (bus["max_session_buffer_bytes"], bus["idle_timeout"]) == ("64MiB", "30s")
    file.write_text(shown.replace("'***'", "none"))
    assert run("validate", "-c", str(file)).exit_code == 0


@pytest.mark.req("MEM-07")
def test_what_the_fleet_may_write_is_bounded_by_constants_that_no_setting_changes(file: Path) -> None:
    assert (
        bounds.RECORD_VALUE_BYTES_MAX,
        bounds.CARD_RETAINED_BYTES_MAX,
        bounds.CARDS_INTERNED_BYTES_MAX,
        bounds.KEYS_PER_KEYSPACE_MAX,
    ) == (16 * bounds.MIB, bounds.MIB, 256 * bounds.MIB, 16_384)
    shown = yaml.safe_load(run("show").stdout)
    words = {"key", "keys", "card", "cards", "keyspace", "value"}
    for section in ("etcd", "file", "kubernetes"):
        names = {word for name in shown["dynamo"]["discovery"][section] for word in name.split("_")}
        assert names and not names & words, section


def test_schema_names_every_key_with_default_and_reload_class() -> None:
    result = run("schema", "-c", "no-such-file.yaml", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert set(document["x-keys"]) == {path_text(keys) for keys, _ in leaf_keys()}
    staleness = document["x-keys"]["dynamo.load.max_staleness"]
    assert (staleness["default"], staleness["reload"]) == ("3s", "immediate")
    assert document["$defs"]["LoadSettings"]["properties"]["max_staleness"]["default"] == "3s"
    assert document["$defs"]["ServerSettings"]["additionalProperties"] is False
