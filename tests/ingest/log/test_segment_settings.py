from __future__ import annotations

from ingest.log.segment_settings import SegmentSettings
from projections.bounds import MIB, SECOND_US


def test_settings_of_the_contract_are_the_defaults() -> None:
    settings = SegmentSettings()
    assert settings.segment_bytes == 256 * MIB
    assert settings.reserve_bytes == 64 * MIB
    assert settings.retention_age_us == 7 * 24 * 3600 * SECOND_US
    assert settings.retention_share == 25
    assert settings.durable
    assert settings.allocate_bytes < settings.segment_bytes
