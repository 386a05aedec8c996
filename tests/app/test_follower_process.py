"""The follower by itself: it folds, writes rows, and answers at its own door until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientSession

from app.config_load import load_config
from app.follower_process import FollowerProcess
from tests.app.log_on_disk import some_picks, written
from tests.app.main_site import until


@pytest.mark.req("EVS-13")
async def test_it_answers_for_itself_and_stops_when_asked(tmp_path: Path) -> None:
    data = written(some_picks(), tmp_path / "data")
    file = tmp_path / "config.yaml"
    file.write_text("{}\n")
    process = FollowerProcess(load_config(file), data, tells_parent=False, addresses=("127.0.0.1:0",))
    running = asyncio.create_task(process.run())
    await until(lambda: process.doors is not None and process.doors.ports, "it listens")
    assert process.doors is not None
    url = f"http://127.0.0.1:{process.doors.ports[0]}"
    async with ClientSession() as session:

        async def text(path: str) -> str:
            async with session.get(url + path) as answer:
                return f"{answer.status} {await answer.text()}"

        async with asyncio.timeout(30):
            while "picklog_audit_lag_records 0.0" not in await text("/metrics"):  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await text("/ready")).startswith("200")
        assert (await text("/health")).startswith("200")
        assert '"checkpoints":[]' in await text("/admin/checkpoints")
        assert (await text("/admin/config")).startswith("404")
    process.stop()
    assert await asyncio.wait_for(running, 30) == 0
    assert (data / "audit.sqlite").exists()


async def test_without_an_address_it_listens_nowhere(tmp_path: Path) -> None:
    data = written(some_picks(), tmp_path / "data")
    file = tmp_path / "config.yaml"
    file.write_text("audit: {enabled: false}\n")
    process = FollowerProcess(load_config(file), data, tells_parent=False)
    running = asyncio.create_task(process.run())
    process.stop()
    assert await asyncio.wait_for(running, 30) == 0
    assert process.doors is None
