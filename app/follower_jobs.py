"""What the follower does beside checkpoints and the audit: it asks picks again.

Put together here from the configuration: where rows go (the audit's database, or a file
where there is none), and who is told the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from app.audit_database import AuditRefused, database_url
from app.config_load import LoadedConfig
from app.config_model import Config
from app.follower_asking import Asking
from app.follower_figures import FollowerFigures, tell_parent
from app.log_places import OpenLog
from app.shadow import RowSink
from app.shadow_file import JsonLinesSink
from app.shadow_sql import SqlSink

log = structlog.get_logger("picklog.shadow")


async def ask_again(
    loaded: LoadedConfig,
    data: Path,
    opened: OpenLog,
    standing: Callable[[], Mapping[str, object]],
    told: Callable[[bytes], object] | None = None,
) -> None:
    """Verify samples of picks and ask the shadow until cancelled. `opened`: for it alone.

    Figures are told each second, to `told`, or printed for the process that started this one. standing: what
    a line says beside them, see follower_standing.
    """
    figures = FollowerFigures()
    folder = loaded.path.absolute().parent if loaded.path is not None else Path.cwd()
    asking = Asking(
        opened.reader,
        opened.checkpoints,
        row_sink(loaded.config, data),
        figures,
        folder,
        source=opened.source,
    )

    def line() -> bytes:
        return figures.line(asking.is_shadowed, asking.lag_records, standing())

    tasks = [asyncio.create_task(asking.run()), asyncio.create_task(tell_parent(line, told))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asking.close()


def row_sink(config: Config, data: Path) -> RowSink:
    """The audit's database, else a file in the data directory."""
    if config.audit.enabled:
        try:
            return SqlSink(database_url(config.audit.url.get_secret_value(), data))
        except AuditRefused as problem:
            log.warning("rows of the shadow go to a file", cause=str(problem))
    return JsonLinesSink(data)
