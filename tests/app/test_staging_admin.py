"""A staging directory is asked like a router, but decides and adopts nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.checkpoint_store import CheckpointFolder
from app.config_findings import ConfigError
from app.config_model import Config
from app.feeding import Feeding, StagingDirectory
from app.following import Following
from app.log_places import OpenLog
from app.staging_admin import StagingAdmin
from projections.fold import Fold
from tests.replay.captured import busy_log


def admin_of(staging: StagingDirectory, address: str = "127.0.0.1:0") -> StagingAdmin:
    return StagingAdmin(address, Config(), staging.data, lambda: staging.feed.cursor.fold)


async def asked(port: int, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", data=body) as answer,
    ):
        return answer.status, json.loads(await answer.text())


@pytest.mark.req("EVS-12")
async def test_the_fleet_and_picks_of_production_are_asked_of_staging(tmp_path: Path) -> None:
    world = busy_log()
    origin = OpenLog(world.log, CheckpointFolder(tmp_path / "none"), "memory")
    with StagingDirectory(tmp_path / "staging", origin, 0) as staging:
        feeding = Feeding(staging, Following(world.log), None, None, False, lambda text: None)
        await feeding.run(False)
        admin = admin_of(staging)
        port = await admin.start()
        try:
            status, document = await asked(port, "/admin/dynamo/workers")
            assert (status, len(document["workers"])) == (200, 3)
            status, document = await asked(port, "/admin/picks/last")
            assert (status, document["repeated"]) == (200, "equal")
            assert (await asked(port, "/admin/picks/nobody"))[0] == 404
            status, document = await asked(port, "/admin/state?at=40")
            assert (status, len(document["workers"]), document["mark"]) == (200, 3, "0:40")
            status, document = await asked(port, "/admin/config", "PUT", b"{}")
            assert status >= 400
            assert await asked(port, "/health") == (200, {"status": "ok"})
        finally:
            await admin.close()


async def test_it_is_served_until_the_feed_is_told_to_stop(tmp_path: Path) -> None:
    world = busy_log(2)
    origin = OpenLog(world.log, CheckpointFolder(tmp_path / "none"), "memory")
    with StagingDirectory(tmp_path / "staging", origin, 0) as staging:
        socket = tmp_path / "admin.sock"
        admin = admin_of(staging, f"unix:{socket}")
        feeding = Feeding(staging, Following(world.log), None, None, False, lambda text: None, admin)
        running = asyncio.create_task(feeding.run(False))
        for _ in range(100_000):
            if staging.feed.fed == world.log.end_offset() and socket.is_socket():
                break
            await asyncio.sleep(0)
        assert not running.done()
        feeding._source.stop()
        await asyncio.wait_for(running, 10)
        assert feeding.document(1.0)["records"] == world.log.end_offset()


def test_an_address_that_others_reach_is_refused_without_authentication(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other machines could read it"):
        StagingAdmin("0.0.0.0:0", Config(), tmp_path, Fold)
