"""The `/admin` application: the fleet, the settings, one pick explained.

Every request is admitted by `admin_auth`, answered in the API's error shape, and leaves one
line in the process log. What may take long runs in a thread or gives the event loop back;
what may be large has a ceiling.

A configuration that is put is judged whole: masked secrets are taken from the one in
force, nothing is read from the environment, and the result is proposed in the log, whose
owner adopts it. It is not written to the file: a process that starts anew proposes its
file's settings.

Sources: contract, section 3; decision 49; requirement rows ADM-01..08, CFG-18, CFG-19, REL-13, REL-17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson
import structlog
from aiohttp import web

from app.admin_auth import AdminGate, Handler
from app.admin_checkpoints import CheckpointRoutes
from app.admin_documents import is_source_installed, json_bytes, workers_pieces
from app.config_adoption import AdoptableSettings, adoptable_settings, restore_secrets
from app.config_findings import ConfigError, Finding
from app.config_load import check_data, effective_settings, installed_extras
from app.config_model import Config
from app.config_reload import plan_reload
from app.config_rules import beyond_loopback
from app.config_yaml import FILE_BYTES_MAX, parse_yaml
from app.marks import MARK_CHARACTERS_MAX, MarkRefused
from app.reloading import NotAdopted
from ingest.subscriptions.engine_bindings import EngineRow
from projections.events.ports import LogError, OffsetGone
from projections.fold import Fold
from replay.explain import PickNotFound
from replay.timeline import StateGone
from router.ingress.answers import json_answer
from router.ingress.chat import request_id_of
from router.ingress.errors import ERRORS, ErrorCode, RequestRefused
from router.prompt.self_check import MatchState

BODY_S_MAX: Final = 30.0
ROWS_PER_SLICE: Final = 128
PICK_NAME_CHARACTERS_MAX: Final = 128
EXPLANATIONS_WAITING_MAX: Final = 16

log = structlog.get_logger("picklog.admin")


class AdminSources(NamedTuple):
    """What the admin application is given by wiring. Calls are on the event loop, but for `explain`.

    config: the configuration in force here, secrets included. fold: of this process.
    inactive: why discovery does not run though it may be enabled, None where it can.
    propose: put settings before the log's owner; the adopted version. Raises NotAdopted.
    explain, state: one pick, and the state at a mark, as documents; called in a thread, one at
    a time. Raise PickNotFound, MarkRefused, StateGone, and what the log raises.
    extras: installed extras of the distribution. matches: how true predicted blocks were, by model.
    engines: which worker each configured engine belongs to, where this process listens to the fleet.
    checkpoints: those that peers may fetch, None where there are none.
    """

    config: Callable[[], Config]
    fold: Callable[[], Fold]
    inactive: Callable[[], str | None]
    propose: Callable[[AdoptableSettings, Config], Awaitable[int]]
    explain: Callable[[str], dict[str, Any]]
    state: Callable[[str], dict[str, Any]]
    extras: Callable[[], frozenset[str]] = installed_extras
    matches: Callable[[], Sequence[MatchState]] = tuple
    engines: Callable[[], Sequence[EngineRow]] = tuple
    checkpoints: CheckpointRoutes | None = None


def admin_application(sources: AdminSources) -> web.Application:
    """The application to mount at /admin. Call with the configuration that the process listens by."""
    return Admin(sources).application()


class Admin:
    """The handlers."""

    def __init__(self, sources: AdminSources) -> None:
        self._sources = sources
        self._putting = asyncio.Lock()
        self._explaining = asyncio.Lock()
        self._explanations = 0
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()

    def application(self) -> web.Application:
        """Routes below /admin."""
        application = web.Application(client_max_size=FILE_BYTES_MAX)
        routes: dict[str, dict[str, Handler]] = {
            "/dynamo/workers": {"GET": self.workers},
            "/config": {"GET": self.show_config, "PUT": self.put_config},
            "/picks/{name}": {"GET": self.pick},
            "/state": {"GET": self.state},
        }
        if self._sources.checkpoints is not None:
            routes |= self._sources.checkpoints.handlers()
        # listening addresses stay as they were at the start, whatever later settings say
        is_local_only = beyond_loopback(self._sources.config()) is None
        AdminGate(lambda: self._sources.config().admin.auth, is_local_only).open(application, routes)
        return application

    # The fleet -----------------------------------------------------------------------

    async def workers(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/dynamo/workers."""
        config = self._sources.config()
        if not is_source_installed(config, self._sources.extras()):
            raise RequestRefused(
                ErrorCode.NOT_FOUND, "The extra of the configured discovery source is not installed."
            )
        is_active = self._sources.inactive() is None
        pieces: list[bytes] = []
        sources = self._sources
        found = workers_pieces(sources.fold(), config, is_active, sources.matches(), sources.engines())
        for step, piece in enumerate(found, 1):
            pieces.append(piece)
            if step % ROWS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return json_answer(b"".join(pieces), request_id_of(request))

    # The settings --------------------------------------------------------------------

    async def show_config(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/config: the settings in force, every default spelled out, secrets masked."""
        settings = effective_settings(self._sources.config())
        return json_answer(json_bytes(settings), request_id_of(request))

    async def put_config(self, request: web.Request) -> web.StreamResponse:
        """PUT /admin/config: a whole configuration as JSON or YAML, answered when it is adopted."""
        body = await _read_body(request)
        is_json = request.content_type == "application/json" or body.lstrip()[:1] == b"{"
        async with self._putting:
            live = self._sources.config()
            try:
                judged = await asyncio.to_thread(judge, body, is_json, live, self._sources.extras())
            except ConfigError as refusal:
                return _refused_config(refusal, request_id_of(request))
            try:
                version = await self._sources.propose(judged.adoptable, judged.config)
            except NotAdopted as problem:
                raise RequestRefused(ErrorCode.UPSTREAM_TIMEOUT, f"Not adopted: {problem}") from None
        document = {
            "version": version,
            "digest": judged.adoptable.digest.hex(),
            "changed": list(judged.changed),
            "needs_process_restart": list(judged.needs_process_restart),
            "warnings": [finding.to_json() for finding in judged.warnings],
        }
        return json_answer(json_bytes(document), request_id_of(request))

    # Picks ---------------------------------------------------------------------------

    async def pick(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/picks/{id}: the document of `picklog replay explain --json`."""
        name = request.match_info["name"]
        if len(name) > PICK_NAME_CHARACTERS_MAX or not (name.isascii() and name.isprintable()):
            raise RequestRefused(ErrorCode.NOT_FOUND, "There is no such pick.")
        try:
            found = await self._looked_up(self._sources.explain, name)
        except (PickNotFound, OffsetGone):
            raise RequestRefused(ErrorCode.NOT_FOUND, "There is no such pick in the log.") from None
        return json_answer(json_bytes(found), request_id_of(request))

    async def state(self, request: web.Request) -> web.StreamResponse:
        """GET /admin/state?at=M: the document of `picklog replay state --json`, of now without a mark."""
        mark = request.query.get("at", "end")
        if not 0 < len(mark) <= MARK_CHARACTERS_MAX:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "That is no mark.", "at")
        try:
            found = await self._looked_up(self._sources.state, mark)
        except MarkRefused as refused:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, str(refused), "at") from None
        except (StateGone, OffsetGone) as gone:
            raise RequestRefused(ErrorCode.NOT_FOUND, str(gone)) from None
        return json_answer(json_bytes(found), request_id_of(request))

    async def _looked_up(self, look: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
        """Ask the log in a thread; few may wait. Raises what `look` raises of the name."""
        if self._explanations >= EXPLANATIONS_WAITING_MAX:
            raise RequestRefused(ErrorCode.RATE_LIMITED, "Too many look into the log just now: try again.")
        self._explanations += 1
        # its own task: a client that leaves must not let a second reading of the log begin
        task = asyncio.get_running_loop().create_task(self._one_by_one(look, name))
        self._tasks.add(task)
        task.add_done_callback(self._explained)
        try:
            return await asyncio.shield(task)
        except OffsetGone:
            raise
        except (LogError, OSError) as problem:
            log.error("the log could not be looked into", asked=name, cause=str(problem))
            raise RequestRefused(
                ErrorCode.INTERNAL_ERROR, "The log cannot be read: see the process log."
            ) from None

    async def _one_by_one(self, look: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
        async with self._explaining:
            return await asyncio.to_thread(look, name)

    def _explained(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._explanations -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits is told; nobody may be waiting any more


class Judged(NamedTuple):
    """A configuration that was put and is valid. changed, needs_process_restart: schema paths."""

    config: Config
    adoptable: AdoptableSettings
    changed: tuple[str, ...]
    needs_process_restart: tuple[str, ...]
    warnings: tuple[Finding, ...]


def judge(body: bytes, is_json: bool, live: Config, extras: frozenset[str]) -> Judged:
    """Read and check a whole configuration against the one in force. Raises ConfigError."""
    document = _json_document(body) if is_json else parse_yaml(body, "request body")[0]
    try:
        restored = restore_secrets(document, live)
        config, report = check_data(restored, extras=extras)
    except RecursionError:
        raise ConfigError([Finding((), "the configuration is nested too deeply")]) from None
    plan = plan_reload(live, config)
    return Judged(
        config, adoptable_settings(config, extras), plan.changed, plan.needs_process_restart, report.warnings
    )


def _json_document(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        raise ConfigError([Finding((), f"the body is not JSON, see {where}")]) from None


def _refused_config(refusal: ConfigError, request_id: str) -> web.Response:
    """The first finding as the message, all of them beside it."""
    first = refusal.findings[0]
    row = ERRORS[ErrorCode.INVALID_REQUEST]
    error = {
        "message": str(first),
        "type": row.type,
        "code": ErrorCode.INVALID_REQUEST.value,
        "param": first.path or None,
        "findings": [finding.to_json() for finding in refusal.findings],
    }
    return json_answer(json_bytes({"error": error}), request_id, row.status)


async def _read_body(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RequestRefused(ErrorCode.UNSUPPORTED_ENCODING)
    if (request.content_length or 0) > FILE_BYTES_MAX:
        raise RequestRefused(ErrorCode.PAYLOAD_TOO_LARGE)
    parts = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for part in request.content.iter_any():
                parts += part
                if len(parts) > FILE_BYTES_MAX:
                    raise RequestRefused(ErrorCode.PAYLOAD_TOO_LARGE)
    except TimeoutError:
        raise RequestRefused(ErrorCode.REQUEST_TIMEOUT) from None
    return bytes(parts)
