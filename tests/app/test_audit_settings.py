"""What a configuration says of the audit."""

from pathlib import Path

from app.audit_settings import sink_settings
from app.config_storage import AuditSettings
from projections.bounds import GIB


def test_defaults_are_a_file_in_the_data_directory() -> None:
    found = sink_settings(AuditSettings(), Path("/d"), 100 * GIB)
    assert found.url.database == "/d/audit.sqlite"
    assert (found.candidates, found.bytes_max) == (2, 10 * GIB)
    assert found.retention_us == 30 * 86_400_000_000


def test_all_candidates_have_no_limit() -> None:
    settings = AuditSettings.model_validate({"candidates": "all", "bytes": "10%"})
    found = sink_settings(settings, Path("/d"), 100 * GIB)
    assert (found.candidates, found.bytes_max) == (None, 10 * GIB)


def test_minutes_are_rolled_up_unless_switched_off() -> None:
    assert sink_settings(AuditSettings(), Path("/d"), GIB).rollup_grace_us == 30_000_000
    off = AuditSettings.model_validate({"rollups": {"enabled": False}})
    assert sink_settings(off, Path("/d"), GIB).rollup_grace_us is None
