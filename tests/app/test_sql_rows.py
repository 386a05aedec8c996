"""The database as the place where rows go: roll-ups follow where they are wanted."""

from __future__ import annotations

from pathlib import Path

from app.sql_rows import SqlRows
from tests.app.audit_site import rows, sink_settings, sqlite_url
from tests.app.stream_site import LOG, Story


async def test_roll_ups_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    for name, grace in (("without", None), ("with", 0)):
        story = Story(30).rows
        story.at += 3_600_000_000
        url = sqlite_url(tmp_path, name)
        store = SqlRows(sink_settings(url, rollup_grace_us=grace), LOG)
        await store.prepare()
        assert await store.mark() is None
        assert await store.write(story) == story.count
        await store.keep_up(story)
        await store.close()
        found = await rows(url)
        assert sum(row["picks"] for row in found["rollups"]) == (0 if grace is None else len(story.picks))
        assert found["rollup_windows"] == []
