"""How much the stores of a data directory may take, against the disk that they share.

Each store has its own byte ceiling. Together they may promise more than there is; then the
log would shed long before its retention says so. That is told at start, with figures.

Source: contract, section 5; decision 15.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import structlog

from app.aside import BYTES_MAX, KEPT
from app.config_model import Config
from app.config_storage import LogKind
from app.part_settings import bytes_of
from app.replay_steps import STEP_BYTES_MAX
from app.shadow_file import FILES_BYTES_MAX
from ingest.log.segment_files import Disk
from projections.bounds import ARTIFACT_CACHE_BYTES_MAX, RESERVE_BYTES

ASIDE_BYTES_MAX = KEPT * BYTES_MAX

log = structlog.get_logger("picklog.config")


class Ceilings(NamedTuple):
    """Bytes that each store may take. reserve: kept for picks, ends and control records.

    derived: `DIR/steps`, `DIR/aside`, `DIR/shadow.jsonl` where the shadow has no database, and
    `DIR/artifacts` where prompts are read and no other folder is named.

    An owner on Kafka keeps checkpoints, `DIR/aside` and its spool alone.
    """

    log: int
    raw: int
    checkpoints: int
    audit: int
    derived: int
    reserve: int
    spool: int = 0

    @property
    def sum_bytes(self) -> int:
        """All of them together."""
        kept = self.log + self.raw + self.checkpoints + self.audit + self.derived
        return kept + self.reserve + self.spool


def ceilings_of(config: Config, file_system_bytes: int) -> Ceilings:
    """The ceilings in force on a file system of that size."""
    raw = config.log.raw
    checkpoints = 0 if config.checkpoints.folder else bytes_of(config.checkpoints.bytes, file_system_bytes)
    if config.log.kind is LogKind.KAFKA:
        return Ceilings(0, 0, checkpoints, 0, ASIDE_BYTES_MAX, 0, config.log.kafka.spool_bytes.count)
    return Ceilings(
        bytes_of(config.log.retention.bytes, file_system_bytes),
        bytes_of(raw.bytes, file_system_bytes) if raw.enabled else 0,
        checkpoints,
        bytes_of(config.audit.bytes, file_system_bytes) if _is_in_data(config) else 0,
        STEP_BYTES_MAX
        + ASIDE_BYTES_MAX
        + (0 if config.audit.enabled else FILES_BYTES_MAX)
        + (ARTIFACT_CACHE_BYTES_MAX if _keeps_artifacts(config) else 0),
        RESERVE_BYTES,
    )


def _keeps_artifacts(config: Config) -> bool:
    return config.dynamo.kv.enabled and config.dynamo.kv.artifact_cache_dir is None


def _is_in_data(config: Config) -> bool:
    return config.audit.enabled and "{data}" in config.audit.url.get_secret_value()


def say_overcommitted(config: Config, data: Path, disk: Disk | None = None) -> bool:
    """Warn where the ceilings exceed the disk of the data directory. Returns whether they do."""
    folder = next((one for one in (data, *data.absolute().parents) if one.is_dir()), Path("/"))
    total = (disk or Disk()).total_bytes(folder)
    ceilings = ceilings_of(config, total)
    if ceilings.sum_bytes <= total:
        return False
    log.warning(
        "the stores may take more than the disk holds",
        file_system_bytes=total,
        sum_bytes=ceilings.sum_bytes,
        log_bytes=ceilings.log,
        raw_bytes=ceilings.raw,
        checkpoints_bytes=ceilings.checkpoints,
        audit_bytes=ceilings.audit,
        derived_bytes=ceilings.derived,
        spool_bytes=ceilings.spool,
        remedy="lower log.retention.bytes, log.raw.bytes, checkpoints.bytes, audit.bytes "
        "or log.kafka.spool_bytes",
    )
    return True
