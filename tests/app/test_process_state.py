"""Figures of a running process: read at each scrape, those of the disk at most every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.log_access import StoreFigures
from app.process_state import FIGURES_AGE_S, ProcessState
from ingest.log.raw_frames import RawFrames, RawSettings
from tests.app.main_site import Site, site_in


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


async def test_a_scrape_tells_where_log_fold_and_backends_stand(site: Site) -> None:
    async with site.running() as run:
        await run.chat()
        await run.flushed()
        series = await run.metrics()
        process = run.process
        assert series["continuum_dynamo_discovery_connected"] == 1
        assert series['continuum_dynamo_workers{namespace="dynamo",role="decode"}'] == 2
        assert series["picklog_log_end_offset"] >= process.folding.tail.fold.mark.offset
        assert series["picklog_log_lag_records"] <= 4
        assert series['picklog_log_room{room="plenty"}'] == 1
        assert series["picklog_log_bytes_max"] == 64 << 20
        assert series["picklog_own_unfolded"] == 0
        assert series["picklog_owns_log"] == 1
        assert (series["picklog_owner_routers"], series["picklog_owner_turned_away_total"]) == (0, 0)
        assert series['picklog_backend_health{backend="front",state="ready"}'] == 1
        assert series['picklog_shed_total{importance="pick"}'] == 0
        assert series["picklog_config_version"] == 1


async def test_raw_frames_that_were_dropped_count_as_shed(site: Site) -> None:
    async with site.running() as run:
        owning = run.process.owning
        assert owning is not None
        assert (await run.metrics())['picklog_shed_total{importance="raw"}'] == 0
        raw = RawFrames(run.process.data, run.process.access.reader.log_id, RawSettings())
        owning._raw = raw
        raw.drop()
        assert (await run.metrics())['picklog_shed_total{importance="raw"}'] == 1


async def test_before_the_claim_there_are_no_figures_of_a_writer(site: Site) -> None:
    process = site.process()
    figures = ProcessState(process).log_figures()
    assert (figures.pending_bytes, figures.pending_picks, figures.shed) == (None, None, ())
    assert figures.end_offset == 0
    process.access.close()


@pytest.mark.looptime
async def test_segments_and_checkpoints_are_looked_at_now_and_then(tmp_path: Path) -> None:
    process = Site(tmp_path).process()
    looks: list[int] = []

    def figures() -> StoreFigures:
        looks.append(1)
        return StoreFigures(len(looks), 100, 1_000_000)

    process.store_figures = figures  # type: ignore[method-assign]
    state = ProcessState(process)
    assert [state.log_figures().stored_bytes for _ in range(3)] == [1, 1, 1]
    assert state.checkpoint_time() is None
    await asyncio.sleep(FIGURES_AGE_S)
    assert state.log_figures().stored_bytes == 2
    process.access.close()
