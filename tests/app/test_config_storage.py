"""Defaults and ranges of the log, checkpoints and the SQL record."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.config_model import Config


def test_defaults_are_those_of_the_contract() -> None:
    log, checkpoints = Config().log, Config().checkpoints
    assert (log.kind, log.questions, log.fsync.every_ms, str(log.fsync.every_bytes)) == (
        "segments",
        "matched",
        2,
        "1MiB",
    )
    assert (str(log.retention.age), str(log.retention.bytes)) == ("7d", "25%")
    assert (log.raw.enabled, str(log.raw.age), str(log.raw.bytes)) == (True, "1h", "10GiB")
    assert (str(checkpoints.every), checkpoints.keep, str(checkpoints.bytes)) == ("1m", 3, "10GiB")


@pytest.mark.parametrize(
    "log",
    [
        {"kind": "memory"},
        {"questions": "all"},
        {"fsync": {"every_ms": 1001}},
        {"fsync": {"every_ms": "2ms"}},
        {"retention": {"age": "30s"}},
        {"retention": {"bytes": "0%"}},
        {"raw": {"bytes": -1}},
    ],
)
def test_values_outside_their_range_are_refused(log: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"log": log})
