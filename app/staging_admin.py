"""The admin endpoint of a staging directory: production's fleet, its picks explained, its state at a mark.

The application is the router's own, given the staged fold; there is no router behind it, so
nothing can be proposed and no chat is answered. It is the one socket of a feed, it listens
only, and only where it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from app.admin import AdminSources, admin_application
from app.checkpoint_store import CheckpointFolder
from app.config_addresses import read_bind
from app.config_adoption import AdoptableSettings
from app.config_findings import ConfigError, Finding
from app.config_model import Config
from app.config_rules import beyond_loopback
from app.config_sections import AuthMethod
from app.doors import make_way
from app.log_places import checkpoint_folder
from app.lookups import Lookups
from app.reloading import NotAdopted
from ingest.log.segment_reader import SegmentReader
from projections.fold import Fold

EVERY_EXTRA = frozenset(("etcd", "etcd3", "kv"))  # whichever source production reads, none is read here


class StagingAdmin:
    """Serves one staging directory. address: as in `server.bind_address`.

    Raises ConfigError for an address that other machines reach while the admin endpoint asks
    for nothing.
    """

    def __init__(self, address: str, config: Config, data: Path, fold: Callable[[], Fold]) -> None:
        self._bind = read_bind(address)
        server = config.server.model_copy(update={"bind_address": [address]})
        self._config = config.model_copy(update={"server": server})
        if beyond_loopback(self._config) is not None and config.admin.auth.method is AuthMethod.NONE:
            found = Finding(("--listen",), "other machines could read it", "name a loopback address")
            raise ConfigError([found])
        store = CheckpointFolder(checkpoint_folder(data))
        self._lookups = Lookups(data, store, lambda: SegmentReader.open(data))
        self._fold = fold
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; the port that was taken, 0 for a Unix socket. Raises OSError."""
        sources = AdminSources(
            config=lambda: self._config,
            fold=self._fold,
            inactive=lambda: None,
            propose=_refuse,
            explain=self._lookups.explain,
            state=self._lookups.state,
            extras=lambda: EVERY_EXTRA,
        )
        application = web.Application()
        application.router.add_get("/health", _health)
        application.add_subapp("/admin", admin_application(sources))
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        if self._bind.unix_path is not None:
            make_way(self._bind.unix_path)
            await web.UnixSite(self._runner, self._bind.unix_path).start()
            return 0
        site = web.TCPSite(self._runner, self._bind.host, self._bind.port)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()


async def _refuse(adoptable: AdoptableSettings, config: Config) -> int:
    raise NotAdopted("a staging directory adopts no settings: feed it again with -c FILE")


async def _health(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "ok"})
