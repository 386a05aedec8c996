"""A log and an audit database beside it: written by the real sink, read back plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import URL

from app.audit_database import connected, database_url, writing_engine
from app.audit_query import plain
from app.audit_sink import AuditSink
from app.sql_rows import SinkSettings
from app.sql_tables import metadata
from projections.events.control import ConfigAdopted, ReplicaGone
from projections.events.discovery import KeyDeleted, Keyspace
from projections.events.picks import Fault
from projections.events.ports import CheckpointStore, LogReader
from tests.replay.recorded_log import SETTINGS, RecordedLog


def sqlite_url(folder: Path, name: str = "audit.sqlite") -> URL:
    return database_url(str(folder / name))


def sink_settings(url: URL, candidates: int | None = 2, rollup_grace_us: int | None = None) -> SinkSettings:
    return SinkSettings(url, None, None, candidates, rollup_grace_us)


async def write(
    reader: LogReader,
    url: URL,
    until: int | None = None,
    *,
    checkpoints: CheckpointStore | None = None,
    candidates: int | None = 2,
) -> AuditSink:
    """Let the sink follow from its mark to `until` or the end of the log, then close it."""
    sink = AuditSink(reader, checkpoints, sink_settings(url, candidates), patient=False)
    try:
        await sink.follow(reader.end_offset() if until is None else until)
    finally:
        await sink.close()
    return sink


async def rows(url: URL) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables in the order of their keys; without the wall time of marks and gaps."""
    engine = writing_engine(url)
    found = {}
    try:
        async with connected(engine) as connection:
            for table in metadata.sorted_tables:
                columns = [
                    column for column in table.columns if column.name not in ("written_at", "noticed_at")
                ]
                result = await connection.execute(select(*columns).order_by(*table.primary_key.columns))
                found[table.name] = [
                    dict(zip([column.name for column in columns], map(plain, row), strict=True))
                    for row in result
                ]
    finally:
        await engine.dispose()
    return found


def eventful() -> RecordedLog:
    """A log in which everything happens that the audit tells of."""
    world = RecordedLog(3)
    world.sample(1, 10)
    world.sample(2, 900)
    first = world.replica()
    for number in range(3):
        world.pass_time(1_000_000)
        first.end(first.ask(f"first-{number}", tokens=64))
        first.read()
    second = world.replica()
    left_open = second.ask("left open")
    late = second.ask("late")
    world.say(
        ConfigAdopted(2, "admin", b"e", '{"dynamo":{"picker":"load_based"}}', SETTINGS._replace(ledger=False))
    )
    world.pass_time(40_000_000)
    world.say(ReplicaGone(second.id, world.time - 31_000_000))
    world.pass_time(1_000_000)
    second.end(late)  # it was only slow
    first.read()
    faulty = first.ask("faulty")
    dying = first.ask("dying")
    first.end(faulty, Fault.FAULT)
    for worker in (1, 2, 3):
        world.pass_time(1)
        key = f"backend/generate/{worker:x}"
        world.say(KeyDeleted(Keyspace.INSTANCES, "dynamo", key, 99))
    first.end(dying, Fault.FAULT)
    first.read()
    first.ask("nobody is there")
    world.add_worker(2)
    assert left_open.pick_id != late.pick_id
    return world
