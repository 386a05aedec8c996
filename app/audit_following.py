"""The audit inside the follower: it comes and goes with it, and its troubles are its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from app.audit_database import AuditRefused
from app.audit_figures import AuditFigures, Failure
from app.audit_rows import RowStore
from app.audit_settings import sink_settings
from app.audit_sink import AuditSink
from app.config_model import Config
from app.config_storage import AuditTarget, LogKind
from app.kafka_places import place_of
from app.log_places import OpenLog
from app.sql_rows import SinkSettings, SqlRows

FINISH_S_MAX = 2.0  # what the log holds when the follower is told to stop gets so long to be written

log = structlog.get_logger("picklog.audit")


async def follow_audit(config: Config, data: Path, opened: OpenLog, figures: AuditFigures) -> None:
    """Write the audit of a log until cancelled. `opened`: for it alone. figures: kept up.

    Never returns by itself: an address that cannot be used is told, and the rest of the
    follower goes on.
    """
    file_system = os.statvfs(data)
    size_bytes = file_system.f_blocks * file_system.f_frsize
    try:
        settings = sink_settings(config.audit, data, size_bytes)
        store: RowStore | None = None
        if config.audit.sink is AuditTarget.STREAM:
            store = _topic(config, opened, figures)
        elif config.log.kind is LogKind.KAFKA and settings.rollup_grace_us is not None:
            store = _told_too(config, opened, settings)
        sink = AuditSink(opened.reader, opened.checkpoints, settings, store=store, figures=figures)
    except AuditRefused as problem:
        figures.failed(Failure.REFUSED)
        log.error("no audit is written", cause=str(problem))
        await asyncio.Event().wait()
        return
    try:
        await sink.run()
    finally:
        await sink.finish(FINISH_S_MAX)
        await sink.close()


def _told_too(config: Config, opened: OpenLog, settings: SinkSettings) -> RowStore:
    """The database, and the topic of roll-ups beside it. Raises AuditRefused."""
    from app.rollup_topic import RollupTopic  # here: without Kafka nobody needs its client

    place = place_of(config.log.kafka)._replace(topic=config.log.kafka.rollups_topic)
    return SqlRows(settings, opened.reader.log_id, told=RollupTopic(place))


def _topic(config: Config, opened: OpenLog, figures: AuditFigures) -> RowStore:
    """The topic of audit messages. Raises AuditRefused where the client library is missing."""
    try:
        from app.audit_producer import AuditProducer  # here: without Kafka nobody needs its client
    except ImportError:
        raise AuditRefused(
            "audit.sink: stream needs a library that is not installed: pip install 'picklog[kafka]'"
        ) from None
    place = place_of(config.log.kafka)._replace(topic=config.log.kafka.audit_topic)
    return AuditProducer(place, opened.reader.log_id, figures.has_sent)
