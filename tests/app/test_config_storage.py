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


def test_the_audit_is_on_and_keeps_the_best_two_candidates_for_a_month() -> None:
    audit = Config().audit
    assert (audit.enabled, audit.candidates, str(audit.retention), str(audit.bytes)) == (
        True,
        2,
        "30d",
        "10GiB",
    )


def test_every_candidate_may_be_asked_for() -> None:
    assert Config.model_validate({"audit": {"candidates": "all"}}).audit.candidates == "all"


@pytest.mark.parametrize(
    "audit",
    [
        {"url": "mysql://u:hunter2@db/audit"},
        {"candidates": -1},
        {"candidates": "most"},
        {"candidates": 65_537},
        {"retention": "1s"},
    ],
)
def test_an_audit_outside_its_range_is_refused(audit: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"audit": audit})
