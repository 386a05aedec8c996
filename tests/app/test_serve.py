"""`serve` and its follower as processes: set up, told to stop, done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.log_places import checkpoint_folder
from tests.app.main_site import Site, site_in, until

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


@asynccontextmanager
async def child(site: Site, command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`picklog COMMAND` on the site; killed behind the block if it still runs."""
    words = ["-m", "app", command, "-c", str(site.file), "--data", str(site.data)]
    with (site.folder / "process.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=log, stderr=log, cwd=REPOSITORY
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def said(site: Site, sentence: str) -> bool:
    return sentence in (site.folder / "process.log").read_text()


@pytest.mark.req("EVS-13")
async def test_serve_stops_at_sigterm_with_a_checkpoint_that_only_it_may_read(site: Site) -> None:
    async with child(site, "serve") as process:
        await until(lambda: said(site, "the follower begins"), "both processes run", 60)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    assert not said(site, "Traceback")
    (checkpoint,) = CheckpointFolder(checkpoint_folder(site.data)).list()
    due = [record.offset for record in site.records() if type(record.fact).__name__ == "CheckpointDue"]
    assert checkpoint.offset in due
    for path in site.data.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_a_follower_alone_writes_what_is_due_and_stops_at_sigterm(site: Site) -> None:
    async with site.running() as run:
        assert run.process.owning is not None
        run.process.owning.owner.checkpoint_now("asked")
        await run.flushed()
        async with child(site, "follower") as process:
            store = CheckpointFolder(checkpoint_folder(site.data))
            await until(store.list, "a checkpoint", 60)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
    assert not said(site, "Traceback")
