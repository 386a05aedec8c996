"""Checkpoints are listed and sent to whoever may use the admin interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from app.admin_auth import AdminGate
from app.admin_checkpoints import SENT_AT_ONCE_MAX, CheckpointRoutes
from app.checkpoint_store import CheckpointFolder
from tests.app.admin_site import TOKEN, a_config
from tests.app.test_checkpoint_store import LOG, records


class Site:
    def __init__(self, store: CheckpointFolder, routes: CheckpointRoutes, url: str) -> None:
        self.store, self.routes, self.url = store, routes, url

    async def ask(self, path: str, **more: object) -> tuple[int, bytes]:
        headers = more.get("headers", TOKEN)
        async with ClientSession() as session, session.get(self.url + path, headers=headers) as answer:  # type: ignore[arg-type]
            return answer.status, await answer.read()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    store = CheckpointFolder(tmp_path)
    routes = CheckpointRoutes(store, lambda: LOG)
    application = web.Application()
    AdminGate(lambda: a_config().admin.auth, True).open(application, routes.handlers())
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Site(store, routes, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


@pytest.mark.req("EVS-13")
async def test_they_are_listed_newest_first_and_sent_as_they_lie_there(site: Site) -> None:
    old, new = (site.store.write(LOG, offset, 1, 2, iter(records(3))) for offset in (4, 9))
    status, body = await site.ask("/checkpoints")
    assert status == 200 and body.index(new.name.encode()) < body.index(old.name.encode())
    assert LOG.hex().encode() in body
    path = site.store.path_of(new.name)
    assert path is not None
    assert await site.ask(f"/checkpoints/{new.name}") == (200, path.read_bytes())


async def test_only_whoever_may_use_the_interface_gets_them(site: Site) -> None:
    info = site.store.write(LOG, 4, 1, 2, iter(records(3)))
    assert (await site.ask("/checkpoints", headers={}))[0] == 401
    assert (await site.ask(f"/checkpoints/{info.name}", headers={}))[0] == 401


@pytest.mark.parametrize("name", ["x", "..%2Fsecret", ".hidden.tmp", "%2Fetc%2Fpasswd"])
async def test_no_other_file_is_sent(site: Site, name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    assert (await site.ask(f"/checkpoints/{name}"))[0] == 404


async def test_few_are_sent_at_the_same_time(site: Site) -> None:
    info = site.store.write(LOG, 4, 1, 2, iter(records(3)))
    site.routes._sending = SENT_AT_ONCE_MAX
    assert (await site.ask(f"/checkpoints/{info.name}"))[0] == 429
    site.routes._sending = 0
    assert (await site.ask(f"/checkpoints/{info.name}"))[0] == 200
