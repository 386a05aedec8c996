"""An owner of the log and a router beside it, in the test's own loop; each has a configuration file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from app.config_load import LoadedConfig, load_config
from app.log_access import OwnedLog
from app.shared_log import SharedLog
from app.wiring import MainProcess, Role
from tests.app.main_site import NoFollower, Run, Site


class Two(NamedTuple):
    """Both are ready."""

    owner: Run
    router: Run


def owner_of(site: Site) -> MainProcess:
    """The owner of the site's log, not run yet; without a follower."""
    loaded = load_config(site.file, environment={})
    process = MainProcess(loaded, OwnedLog(site.data, loaded.config), Role.INGEST)
    process.follower = NoFollower()  # type: ignore[assignment]
    return process


async def router_of(site: Site, loaded: LoadedConfig | None = None) -> MainProcess:
    """A router on the site's log, not run yet. loaded: its own configuration, else that of the site."""
    loaded = loaded or load_config(site.file, environment={})
    return MainProcess(loaded, await SharedLog.open(site.data, loaded.config), Role.ROUTER)


@asynccontextmanager
async def two_running(site: Site, loaded: LoadedConfig | None = None) -> AsyncIterator[Two]:
    """Both, during the block; the router ends first."""
    owner = Run(owner_of(site))
    try:
        router = Run(await router_of(site, loaded))
        try:
            await owner.is_ready()
            await router.is_ready()
            yield Two(owner, router)
        finally:
            await router.end()
    finally:
        await owner.end()
