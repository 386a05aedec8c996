"""What a main process answers besides chats, over its own door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from projections.events.picks import PickMade
from tests.app.main_site import Site, site_in, until


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


@pytest.mark.req("ADM-02", "ADM-03")
async def test_admin_reads_the_fold_and_the_settings_in_force(site: Site) -> None:
    async with site.running() as run:
        status, document = await run.get("/admin/dynamo/workers")
        assert status == 200
        ids = {int(row["worker_id"]) for row in document["workers"]}
        assert ids == {*site.workers("prefill"), *site.workers("decode")}
        shown = (await run.get("/admin/config"))[1]
        assert shown["dynamo"]["discovery"]["file"]["root"] == str(site.store)


async def test_a_pick_is_explained_over_http_as_by_the_command(site: Site) -> None:
    async with site.running() as run:
        await run.chat("explained")
        await run.flushed()
        (pick,) = site.facts(PickMade)
        status, document = await run.get(f"/admin/picks/{pick.pick_id.hex()}")
        assert (status, document["repeated"]) == (200, "equal")
        assert (await run.get("/admin/picks/unheard-of"))[0] == 404


@pytest.mark.req("EVS-11")
async def test_ready_turns_with_the_fleet(site: Site) -> None:
    async with site.running() as run:
        for worker in site.workers("decode"):
            site.remove(worker)
        fold = run.process.folding
        await until(lambda: len(fold.tail.fold.state.registry.fleet.workers) == 2, "no decode worker")
        assert await run.get("/ready") == (503, {"ready": False, "missing": ["route"], "degraded": []})
        assert (await run.metrics())["picklog_ready"] == 0


async def test_metrics_may_be_switched_off(site: Site) -> None:
    async with site.running() as run:
        assert (await run.metrics())["picklog_ready"] == 1
    site.config["metrics"] = {"enabled": False}
    site.write(site.config)
    async with site.running() as run:
        assert (await run.get("/metrics"))[0] == 404
