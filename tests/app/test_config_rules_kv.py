"""The `dynamo.kv` section: defaults of the specification, finite weights, checksums, engine sources."""

from typing import Any

import pytest

from app.config_findings import ConfigError
from app.config_load import check_data
from app.config_model import Config
from app.config_rules_kv import inactive_kv

ARTIFACT = "blake3:" + "0a" * 32
SOURCE = {"endpoint": "tcp://10.0.0.7:5557", "instance_id": "0x1f", "block_size": 16}


def errors(data: dict[str, Any]) -> list[str]:
    try:
        check_data(data, extras=frozenset({"etcd", "kv"}))
    except ConfigError as error:
        return [f"{finding.path}: {finding.message}" for finding in error.findings]
    return []


def warnings(data: dict[str, Any], *extras: str) -> list[str]:
    _, report = check_data(data, extras=frozenset(extras))
    return [f"{finding.path}: {finding.message}" for finding in report.warnings]


@pytest.mark.req("CFG-39")
@pytest.mark.parametrize("text", ["blake3:" + "0" * 63, "blake3:" + "A" * 64, "0" * 64, "sha256:" + "0" * 64])
def test_pinned_artifact_is_a_checksum(text: str) -> None:
    assert errors({"dynamo": {"kv": {"pinned_artifacts": [text]}}})
    assert not errors({"dynamo": {"kv": {"pinned_artifacts": ["blake3:" + "0a" * 32]}}})


@pytest.mark.req("CFG-39", "CFG-40")
def test_kv_defaults_are_those_of_the_specification() -> None:
    kv = Config.model_validate({"dynamo": {"kv": {"enabled": True}}}).dynamo.kv
    assert (kv.allow_http_artifacts, kv.allow_hf_artifacts, kv.pinned_artifacts) == (True, False, ())
    assert (kv.overlap_score_credit, kv.prefill_load_scale, kv.router_temperature) == (1.0, 1.0, 0.0)
    assert (kv.send_token_data, kv.conditional_disaggregation.enabled) == (False, False)


@pytest.mark.req("CFG-41")
def test_conditional_disaggregation_is_a_warning() -> None:
    found = warnings({"dynamo": {"kv": {"conditional_disaggregation": {"enabled": True}}}})
    assert any("refuses a bypass" in line for line in found)


@pytest.mark.req("CFG-50")
@pytest.mark.parametrize("key", ["overlap_score_credit", "prefill_load_scale", "router_temperature"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, -0.001])
def test_kv_numbers_are_finite_and_not_negative(key: str, value: float) -> None:
    assert errors({"dynamo": {"kv": {key: value}}})[0].startswith(f"dynamo.kv.{key}: ")
    assert not errors({"dynamo": {"kv": {key: 0.5}}})


@pytest.mark.req("CFG-50")
@pytest.mark.parametrize("key", ["prefill_busy_threshold", "decode_busy_threshold", "eff_isl_threshold"])
def test_thresholds_are_not_negative(key: str) -> None:
    assert errors({"dynamo": {"kv": {"conditional_disaggregation": {key: -1}}}})


@pytest.mark.req("KVX-01")
def test_prefix_aware_picks_need_the_extra_and_the_switch() -> None:
    on = {"dynamo": {"kv": {"enabled": True, "pinned_artifacts": [ARTIFACT]}}}
    assert any("picklog[kv] is not installed" in line for line in warnings(on, "etcd"))
    assert not any("dynamo.kv" in line for line in warnings(on, "etcd", "kv"))
    assert inactive_kv(Config.model_validate(on), frozenset()) is not None
    assert inactive_kv(Config.model_validate(on), frozenset({"kv"})) is None
    assert inactive_kv(Config(), frozenset()) is None


def test_nothing_pinned_is_said_since_no_prompt_can_be_read() -> None:
    found = warnings({"dynamo": {"kv": {"enabled": True}}}, "etcd", "kv")
    assert any("no prompt can be turned into blocks" in line for line in found)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"endpoint": "10.0.0.7:5557"}, "endpoint"),
        ({"endpoint": "tcp://10.0.0.7:0"}, "endpoint"),
        ({"endpoint": "tcp://10.0.0.7:65536"}, "endpoint"),
        ({"instance_id": "0"}, "instance_id"),
        ({"instance_id": "18446744073709551616"}, "instance_id"),
        ({"instance_id": "worker"}, "instance_id"),
        ({"namespace": "elsewhere"}, "namespace"),
        ({"block_size": 0}, "block_size"),
        ({"dp_rank": -1}, "dp_rank"),
        ({"component": "prefill"}, "component"),
        ({"model": "m"}, "model"),
        ({"system_port": 9090}, "system_port"),
        ({"instance_id": None, "system_port": 0}, "system_port"),
        ({"instance_id": None, "system_port": 65_536}, "system_port"),
    ],
)
def test_an_engine_source_is_an_address_and_a_worker(change: dict[str, Any], key: str) -> None:
    assert not errors({"dynamo": {"kv": {"engine_sources": [SOURCE]}}})
    found = errors({"dynamo": {"kv": {"engine_sources": [{**SOURCE, **change}]}}})
    assert [line.split(":")[0] for line in found] == [f"dynamo.kv.engine_sources[0].{key}"]


def sources(*changes: dict[str, Any]) -> list[str]:
    places = [f"tcp://10.0.0.7:{port}" for port in range(5557, 5557 + len(changes))]
    entries = [{**SOURCE, "endpoint": place, **change} for place, change in zip(places, changes, strict=True)]
    return errors({"dynamo": {"kv": {"engine_sources": entries}}})


@pytest.mark.parametrize("number", ["7", "007", "0x7", "18446744073709551615", None])
def test_an_engine_source_names_its_worker_in_either_spelling_or_not_at_all(number: str | None) -> None:
    assert sources({"instance_id": number}) == []
    expected = None if number is None else 7 if len(number) < 4 else (1 << 64) - 1
    made = Config.model_validate({"dynamo": {"kv": {"engine_sources": [{**SOURCE, "instance_id": number}]}}})
    assert made.dynamo.kv.engine_sources[0].instance_number == expected


FOUND: dict[str, Any] = {"instance_id": None}


@pytest.mark.parametrize(
    "changes",
    [
        (FOUND, FOUND),
        (FOUND, {**FOUND, "dp_rank": 1}),
        ({**FOUND, "dp_rank": 1}, FOUND),
        ({**FOUND, "dp_rank": 1}, {**FOUND, "dp_rank": 1}),
        ({**FOUND, "endpoint": "tcp://Engine:1"}, {**FOUND, "endpoint": "tcp://engine:2"}),
        ({"instance_id": "0x2a", "dp_rank": 1}, {"instance_id": "42", "dp_rank": 1}),
    ],
)
def test_engine_sources_that_stand_for_one_rank_are_refused(changes: tuple[dict[str, Any], ...]) -> None:
    (line,) = sources(*changes)
    assert line.startswith(
        "dynamo.kv.engine_sources[1]: stands for the same rank of the same worker as engine_s"
    )


@pytest.mark.parametrize(
    "changes",
    [
        ({**FOUND, "dp_rank": 0}, {**FOUND, "dp_rank": 1}),
        ({**FOUND, "component": "prefill"}, {**FOUND, "component": "decode"}),
        ({**FOUND, "model": "one"}, {**FOUND, "model": "two"}),
        ({**FOUND, "system_port": 9090}, {**FOUND, "system_port": 9091}),
        (FOUND, {**FOUND, "endpoint": "tcp://10.0.0.8:5557"}),
        ({"instance_id": "42"}, {"instance_id": "42"}),
        ({"instance_id": "42"}, FOUND),
    ],
)
def test_engine_sources_that_may_stand_apart_are_taken(changes: tuple[dict[str, Any], ...]) -> None:
    assert sources(*changes) == []


def test_an_engine_source_stands_once() -> None:
    assert "stands twice" in errors({"dynamo": {"kv": {"engine_sources": [SOURCE, SOURCE]}}})[0]


def test_several_namespaces_need_one_in_each_engine_source() -> None:
    etcd = {"endpoints": ["127.0.0.1:2379"], "namespaces": ["a", "b"]}
    section = {"discovery": {"etcd": etcd}, "kv": {"engine_sources": [SOURCE]}}
    assert any("is required with several" in line for line in errors({"dynamo": section}))
    section["kv"] = {"engine_sources": [{**SOURCE, "namespace": "b"}]}
    assert not any("engine_sources" in line for line in errors({"dynamo": section}))
