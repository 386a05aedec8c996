"""Single values of the gateway's sections: types, ranges, defaults."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.config_model import Config
from app.config_sections import AuthMethod, LogLevel


def test_one_bind_address_may_be_a_string_or_a_list() -> None:
    assert Config().server.bind_address == ("127.0.0.1:8080",)
    assert Config.model_validate({"server": {"bind_address": "h:1"}}).server.bind_address == ("h:1",)
    assert Config.model_validate({"server": {"bind_address": ["h:1", "h:2"]}}).server.bind_address == (
        "h:1",
        "h:2",
    )


def test_defaults_of_the_gateway_are_the_documented_ones() -> None:
    config = Config()
    assert config.server.body_bytes_max.count == 16 << 20
    health = config.health_checks
    assert [str(value) for value in (health.interval, health.timeout)] == ["30s", "10s"]
    assert (health.unhealthy_threshold, health.healthy_threshold, health.path) == (3, 2, "/v1/models")
    assert [str(v) for v in (health.warmup_check_interval, health.max_warmup_duration)] == ["1s", "5m"]
    assert config.admin.auth.method is AuthMethod.NONE
    assert not config.disaggregated_serving.enabled and not config.disaggregated_serving.fallback_to_unified


@pytest.mark.parametrize(
    "data",
    [
        {"server": {"body_bytes_max": "1023B"}},
        {"server": {"bind_address": []}},
        {"server": {"bind_address": 8080}},
        {"backends": [{"name": "a"}]},
        {"backends": [{"name": "a" * 129, "url": "http://h"}]},
        {"api_keys": {"keys": [{"id": "i", "key": ""}]}},
        {"api_keys": {"mode": "open"}},
        {"health_checks": {"interval": "1"}},
        {"health_checks": {"unhealthy_threshold": 0}},
        {"health_checks": {"path": "v1/models"}},
        {"circuit_breaker": {"failure_threshold": 0}},
        {"request": {"max_retries": 65}},
        {"request": {"timeout": "2d"}},
        {"logging": {"level": "loud"}},
        {"unknown": 1},
    ],
)
def test_values_outside_their_range_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(data)


@pytest.mark.parametrize(("text", "level"), [("warn", "warning"), ("INFO", "info"), ("trace", "debug")])
def test_usual_names_of_levels_are_understood(text: str, level: str) -> None:
    assert Config.model_validate({"logging": {"level": text}}).logging.level is LogLevel(level)


def test_secrets_show_in_no_text_of_a_model() -> None:
    data = {"backends": [{"name": "a", "url": "http://h", "api_key": "hunter2"}]}
    assert "hunter2" not in repr(Config.model_validate(data)) + str(Config.model_validate(data))


@pytest.mark.parametrize(
    "data",
    [
        {"dynamo": {"kv": {"artifact_cache_dir": "a\0b"}}},
        {"dynamo": {"discovery": {"file": {"root": "/store\0"}}}},
        {"backends": [{"name": "f", "url": "http://f:1\0"}]},
    ],
)
def test_no_text_holds_a_nul_character(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="holds a NUL character"):
        Config.model_validate(data)
