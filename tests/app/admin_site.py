"""An admin application on a free port of 127.0.0.1, with sources that a test may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import ClientSession, web

from app.admin import AdminSources, admin_application
from app.config_adoption import AdoptableSettings
from app.config_load import check_data
from app.config_model import Config
from app.marks import MarkRefused
from replay.explain import PickNotFound
from replay.timeline import StateGone
from tests.app.observed import adopted
from tests.projections.fleet_script import Script

TOKEN = {"Authorization": "Bearer admin-secret"}


def a_config(**more: Any) -> Config:
    """A configuration with a bearer token, a file source and some secrets."""
    data: dict[str, Any] = {
        "admin": {"auth": {"method": "bearer_token", "token": "admin-secret"}},
        "backends": [{"name": "shim", "url": "http://127.0.0.1:9", "api_key": "backend-secret"}],
        "dynamo": {"enabled": True, "discovery": {"source": "file", "file": {"root": "/store"}}},
        **more,
    }
    return check_data(data, extras=frozenset())[0]


class Answer(NamedTuple):
    status: int
    document: Any
    text: str
    headers: dict[str, str]


class Site:
    """The application and what it was asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.script = Script()
        self.extras: frozenset[str] = frozenset()
        self.inactive: str | None = None
        self.proposed: list[tuple[AdoptableSettings, Config]] = []
        self.answer_proposal: Callable[[], int] = lambda: 7
        self.explanations: dict[str, Any] = {}
        self.url = ""

    def sources(self) -> AdminSources:
        return AdminSources(
            config=lambda: self.config,
            fold=lambda: self.script.fold,
            inactive=lambda: self.inactive,
            propose=self._propose,
            explain=self._explain,
            state=self._state,
            extras=lambda: self.extras,
        )

    def adopt(self, *namespaces: str, **more: Any) -> None:
        self.script.say(adopted(*namespaces, **more))

    async def ask(self, path: str, method: str = "GET", **more: Any) -> Answer:
        headers = more.pop("headers", TOKEN)
        async with (
            ClientSession() as session,
            session.request(method, self.url + path, headers=headers, **more) as answer,
        ):
            text = await answer.text()
            is_json = answer.content_type == "application/json" and text
            return Answer(answer.status, await answer.json() if is_json else None, text, dict(answer.headers))

    async def _propose(self, adoptable: AdoptableSettings, config: Config) -> int:
        await asyncio.sleep(0)
        self.proposed.append((adoptable, config))
        return self.answer_proposal()

    def _state(self, mark: str) -> dict[str, Any]:
        if mark == "gone":
            raise StateGone("offset 3 is gone, the oldest state is at 9")
        if not mark.isdecimal() and mark != "end":
            raise MarkRefused(f"{mark} is no mark")
        return {"mark": mark}

    def _explain(self, name: str) -> dict[str, Any]:
        if name not in self.explanations:
            raise PickNotFound(name)
        found = self.explanations[name]
        if isinstance(found, BaseException):
            raise found
        document: dict[str, Any] = found() if callable(found) else found
        return document


@asynccontextmanager
async def a_site(config: Config | None = None) -> AsyncIterator[Site]:
    """Serve until the block ends."""
    site = Site(config if config is not None else a_config())
    application = web.Application()
    application.add_subapp("/admin", admin_application(site.sources()))
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    tcp = web.TCPSite(runner, "127.0.0.1", 0)
    await tcp.start()
    port = runner.addresses[0][1]
    site.url = f"http://127.0.0.1:{port}"
    try:
        yield site
    finally:
        await runner.cleanup()
