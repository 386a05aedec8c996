"""The database as the place where rows go: roll-ups follow where they are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from app.audit_database import BrokersAway
from app.sql_rows import SqlRows
from projections.audit.rollups import RollupRow
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


class Ear:
    """Is told of roll-ups. away: fails; frozen: never answers."""

    def __init__(self, away: bool = False, frozen: bool = False) -> None:
        self.away, self.frozen = away, frozen
        self.heard: list[RollupRow] = []
        self.was_asked = asyncio.Event()
        self.closed = 0

    async def publish(self, rows: Sequence[RollupRow]) -> None:
        self.was_asked.set()
        if self.frozen:
            await asyncio.Event().wait()
        if self.away:
            raise BrokersAway("the brokers are away")
        self.heard += rows

    async def close(self) -> None:
        self.closed += 1


async def told(url: URL, ear: Ear, first: bool = False) -> None:
    """A run of a store: it writes if it is the first, and lives until the ear was asked."""
    story = Story(30).rows
    story.at += 3_600_000_000
    store = SqlRows(sink_settings(url, rollup_grace_us=0), LOG, told=ear)
    try:
        await store.prepare()
        await store.prepare()  # as after an error
        if first:
            assert await store.write(story) == story.count
            await store.keep_up(story)
        async with asyncio.timeout(60):
            await ear.was_asked.wait()
            while ear.heard and (await rows(url))["rollup_windows"]:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.01)
    finally:
        await store.close()
    assert ear.closed == 1


@pytest.mark.parametrize("trouble", ["away", "frozen"])
async def test_rows_do_not_wait_for_who_is_told_and_roll_ups_wait_in_the_database(
    tmp_path: Path, trouble: str
) -> None:
    url, deaf = sqlite_url(tmp_path), Ear(**{trouble: True})
    await told(url, deaf, first=True)
    found = await rows(url)
    assert len(found["picks"]) == len(Story(30).rows.picks)
    assert len(found["rollups"]) > 3 and {row["rolled"] for row in found["rollup_windows"]} == {1}
    assert deaf.heard == []
    ear = Ear()
    await told(url, ear)  # the next start
    assert sorted((row.model, row.picks, row.to_offset) for row in ear.heard) == sorted(
        (row["model"], row["picks"], row["to_offset"]) for row in found["rollups"]
    )
    assert (await rows(url))["rollup_windows"] == []
