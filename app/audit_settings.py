"""What a configuration says of the audit, as the sink takes it."""

from __future__ import annotations

from pathlib import Path

from app.audit_database import database_url
from app.config_storage import AuditSettings
from app.part_settings import bytes_of
from app.sql_rows import SinkSettings


def sink_settings(settings: AuditSettings, data: Path, file_system_bytes: int) -> SinkSettings:
    """Raises AuditRefused for an address that is none."""
    return SinkSettings(
        database_url(settings.url.get_secret_value(), data),
        settings.retention.us,
        bytes_of(settings.bytes, file_system_bytes),
        None if settings.candidates == "all" else settings.candidates,
        settings.rollups.grace.us if settings.rollups.enabled else None,
    )
