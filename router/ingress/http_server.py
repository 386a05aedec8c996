"""The listening server: routes, limits, and what no handler sees.

aiohttp's compiled parser reads requests. What it refuses (two framings, two lengths, bare
line ends, oversized heads) is answered here in the API's own shape and the connection is
closed, so that nothing behind a malformed request is read as another one (B-114). So is
what it takes but a router must not: transfer codings beside chunks, and any in HTTP/1.0. Its
pure-Python stand-in is more lenient: a start without the compiled one says so once. A client
that sends request after request and reads no answer waits until it has read (B-108).

`/ready`, `/metrics` and the admin application are given by the composition root.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from aiohttp import HttpVersion10, HttpVersion11, http_parser, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from router.ingress.answers import SERVER, error_answer, json_answer
from router.ingress.chat import ChatRoute, request_id_of
from router.ingress.errors import ErrorCode, RequestRefused
from router.ingress.models import models_document, servable_models
from router.metrics import Route
from router.service import RouterService

HEADER_BYTES_MAX: Final = 16 * 1024  # of the request line, and of one header
HEADERS_MAX: Final = 100
KEEPALIVE_S: Final = 75.0
LINGER_S: Final = 2.0  # how long an unread body is thrown away before the connection closes
SHUTDOWN_S: Final = 30.0
ABORT_S: Final = 0.1  # 0 would mean for ever
UNREAD_S: Final = 75.0  # how long answers may lie unread before the next request is looked at

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = structlog.get_logger("router.ingress")


def build_application(
    service: RouterService | None, handlers: Mapping[str, Handler], admin: web.Application | None = None
) -> web.Application:
    """The routes; those of clients where there is a service.

    handlers: GET handlers of the composition root by path, e.g. /ready.
    admin: an application for everything below /admin.
    """
    routes: dict[str, tuple[tuple[str, ...], Handler]] = {
        Route.HEALTH.value: (("GET", "HEAD"), _health),
        **{path: (("GET", "HEAD"), handler) for path, handler in handlers.items()},
    }
    if service is not None:
        routes[Route.CHAT.value] = ("POST",), ChatRoute(service, Route.CHAT)
        routes[Route.COMPLETIONS.value] = ("POST",), ChatRoute(service, Route.COMPLETIONS)
        routes[Route.MODELS.value] = ("GET", "HEAD"), _models(service)
    application = web.Application()
    for path, (methods, handler) in routes.items():
        application.router.add_route("*", path, _guarded(methods, handler), expect_handler=_expect_later)
    if admin is not None:
        application.add_subapp("/admin", admin)
    nothing = _guarded((), _nothing_here)
    application.router.add_route("*", "/{path:.*}", nothing, expect_handler=_expect_later)
    application.on_response_prepare.append(_mark_answer)
    return application


class Door:
    """The server of one process, listening on any number of addresses.

    service: its two chat routes are found without the application's router.
    """

    def __init__(self, application: web.Application, service: RouterService | None = None) -> None:
        routes = () if service is None else (Route.CHAT, Route.COMPLETIONS)
        self._runner = _Runner(
            application,
            {route.value: ChatRoute(service, route) for route in routes if service is not None},
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
            lingering_time=LINGER_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
        )

    async def listen_tcp(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen on host:port; the port that was taken (0 takes a free one). Raises OSError."""
        await self._set_up()
        site = web.TCPSite(self._runner, host, port, backlog=1024, reuse_port=reuse_port or None)
        await site.start()
        server: Any = site._server  # the one place that knows a port of 0; asyncio's class or uvloop's
        taken: int = server.sockets[0].getsockname()[1]
        return taken

    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket. Raises OSError."""
        await self._set_up()
        await web.UnixSite(self._runner, path, backlog=1024).start()

    async def close(self) -> None:
        """Stop listening, let requests in flight end (30 s), close."""
        await self._runner.cleanup()

    async def abort(self) -> None:
        """Close now, behind a `close` that was cancelled; requests in flight are cancelled."""
        if self._runner.server is not None:
            await self._runner.server.shutdown(ABORT_S)

    async def _set_up(self) -> None:
        if self._runner.server is None:
            warn_without_compiled_parser()
            await self._runner.setup()


def warn_without_compiled_parser() -> bool:
    """Say once at start that requests are read by the lenient parser. Returns whether it said so."""
    compiled: bool = http_parser.HttpRequestParser is not http_parser.HttpRequestParserPy
    if not compiled:
        _log.warning("aiohttp has no compiled HTTP parser here: do not expose this server to the internet")
    return not compiled


class _Protocol(RequestHandler):
    """aiohttp's connection handler; errors that no handler saw have the API's shape."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that could not be read, or whose handler raised."""
        if status >= 500:
            # as text: a pretty printer of tracebacks would show prompts and keys
            _log.error("a request handler failed", trace="".join(traceback.format_exception(exc)))
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        code = ErrorCode.INTERNAL_ERROR if status >= 500 else ErrorCode.INVALID_REQUEST
        if isinstance(exc, LineTooLong):
            code = ErrorCode.HEADERS_TOO_LARGE
        answer = error_answer(RequestRefused(code), request_id_of(request))
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes our connection handlers."""

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Runner(web.AppRunner):
    """Runs an application behind our server, and the busiest routes before it."""

    __slots__ = ("_busiest",)

    def __init__(self, application: web.Application, busiest: dict[str, ChatRoute], **settings: Any) -> None:
        super().__init__(application, **settings)
        self._busiest = busiest

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        busiest, handle = self._busiest, made.request_handler

        def route(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
            if request.protocol.writing_paused:
                return _when_read(request, route)
            if _is_oddly_framed(request):
                return _refused(request)
            found = busiest.get(request.raw_path)
            return _shaped(request, handle) if found is None or request.method != "POST" else found(request)

        return _Server(
            route,
            request_factory=made.request_factory,
            handler_cancellation=True,
            loop=asyncio.get_running_loop(),
            **made._kwargs,
        )


def _is_oddly_framed(request: web.BaseRequest) -> bool:
    """Whether another server might see another end of this request's body (RFC 9112, 6.1)."""
    codings = request.headers.get("Transfer-Encoding")
    if codings is None:
        return request.version < HttpVersion10
    return request.version < HttpVersion11 or codings.strip().lower() != "chunked"


async def _refused(request: web.BaseRequest) -> web.StreamResponse:
    answer = error_answer(RequestRefused(ErrorCode.INVALID_REQUEST), request_id_of(request))
    answer.force_close()
    return answer


async def _when_read(
    request: web.BaseRequest, route: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The request, once the answers before it were read; memory for them stays within one."""
    try:
        async with asyncio.timeout(UNREAD_S):
            await request.writer.drain()
    except TimeoutError:
        transport = request.transport
        if transport is not None:
            transport.abort()
        raise ConnectionResetError("the client reads nothing") from None
    return await route(request)


async def _shaped(
    request: web.BaseRequest, handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The application's answer; what it refuses by itself has the shape of the API too."""
    try:
        return await handle(request)
    except web.HTTPException as refusal:
        if refusal.status < 400:
            raise
        code = ErrorCode.NOT_FOUND if refusal.status == 404 else ErrorCode.INVALID_REQUEST
        return error_answer(RequestRefused(code), request_id_of(request))


def _guarded(methods: tuple[str, ...], handler: Handler) -> Handler:
    """The handler for its methods, 405 for others; errors of ours in their shape."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            if methods and request.method not in methods:
                allow = (("Allow", ", ".join(methods)),)
                raise RequestRefused(ErrorCode.METHOD_NOT_ALLOWED, headers=allow)
            return await handler(request)
        except RequestRefused as refused:
            return error_answer(refused, request_id_of(request))

    return guarded


async def _mark_answer(request: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Every answer names its request and not the software's version."""
    headers: Any = answer.headers
    headers["Server"] = SERVER
    if "x-request-id" not in headers:
        headers["x-request-id"] = request_id_of(request)


async def _expect_later(request: web.Request) -> None:
    """Whoever reads the body says 100: after the checks that need no body."""


async def _nothing_here(request: web.Request) -> web.StreamResponse:
    raise RequestRefused(ErrorCode.NOT_FOUND)


async def _health(request: web.Request) -> web.StreamResponse:
    """The process is alive. Does no work (B-107)."""
    return json_answer(b'{"status":"ok"}', request_id_of(request))


def _models(service: RouterService) -> Handler:
    async def models(request: web.Request) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        frontage = service.frontage
        caller = frontage.keys.caller(
            request.headers.get("Authorization"), request.headers.get("X-API-Key"), time.time()
        )
        held = service.log.settings()
        found = servable_models(service, frontage, held, caller, int(loop.time() * 1_000_000))
        return json_answer(models_document(found), request_id_of(request))

    return models
