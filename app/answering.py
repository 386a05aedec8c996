"""What a main process answers besides chats: `/ready`, `/metrics` and the admin application.

The routes themselves are the router's and the admin application's; here they are given
their sources.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aiohttp import web

from app.admin import AdminSources, admin_application
from app.admin_checkpoints import CheckpointRoutes
from app.exposition import CONTENT_TYPE
from app.folding import Folding
from app.log_access import LogAccess
from app.log_tail import monotonic_us
from app.lookups import Lookups
from app.observe import Observer
from app.owner_side import OwnerSide
from app.readiness import ready_document
from app.reloading import Reloading
from app.sibling_metrics import group_metrics
from ingest.subscriptions.engine_bindings import EngineRow
from router.ingress.answers import error_answer
from router.ingress.chat import request_id_of
from router.ingress.errors import ErrorCode, RequestRefused
from router.ingress.http_server import build_application
from router.prompt.self_check import MatchState
from router.service import RouterService


class Parts(Protocol):
    """The parts of a process that are asked."""

    folding: Folding
    service: RouterService | None
    observer: Observer
    reloading: Reloading
    data: Path
    access: LogAccess
    owning: OwnerSide | None

    @property
    def member(self) -> str | None:
        """Its name in a group of processes that share a port."""


def application_of(parts: Parts, lookups: Lookups) -> web.Application:
    """Everything that the process serves."""
    reloading = parts.reloading

    def matches() -> Sequence[MatchState]:
        prompts = parts.service.prompts if parts.service is not None else None
        return prompts.match_states() if prompts is not None else ()

    def engines() -> Sequence[EngineRow]:
        return parts.owning.engine_rows() if parts.owning is not None else ()

    sources = AdminSources(
        config=lambda: reloading.loaded.config,
        fold=lambda: parts.folding.tail.fold,
        inactive=lambda: reloading.inactive,
        propose=reloading.propose,
        explain=lookups.explain,
        state=lookups.state,
        matches=matches,
        engines=engines,
        checkpoints=CheckpointRoutes(parts.access.folder, lambda: parts.access.reader.log_id),
    )

    async def ready(_: web.Request) -> web.StreamResponse:
        document = ready_document(parts.folding.newest, parts.service, monotonic_us())
        return web.json_response(document, status=200 if document["ready"] else 503)

    async def metrics(request: web.Request) -> web.StreamResponse:
        if not reloading.loaded.config.metrics.enabled:
            return error_answer(RequestRefused(ErrorCode.NOT_FOUND), request_id_of(request))
        text = await parts.observer.text()
        if parts.member is not None and not _is_sibling(request):
            text = await group_metrics(parts.member, text, parts.data)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    handlers = {"/ready": ready, "/metrics": metrics}
    return build_application(parts.service, handlers, admin_application(sources))


def _is_sibling(request: web.Request) -> bool:
    """Whether a process of the same group asks, on this one's own socket."""
    asked = request.transport.get_extra_info("socket") if request.transport is not None else None
    return asked is not None and asked.family == socket.AF_UNIX
